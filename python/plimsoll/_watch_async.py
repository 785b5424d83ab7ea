"""Watches for asyncio.

asyncio is imported where it is used: it takes several times as long to import as the rest of the package, and a fleet of workers imports it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import Closed

if TYPE_CHECKING:
    import asyncio

    from ._native import Change, Ticket, Watch

# Seconds that a thread of the event loop's pool waits before it looks whether it is still wanted.
_STEP = 0.5


class AsyncWatch:
    """The changes of keys with a prefix, as they are committed: an asynchronous iterator, from `LiveMapping.watch_async`.

    One task at a time may wait for it. Where that task is cancelled, no change is lost: the next one that waits gets it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._closed = False
        self._waiting: asyncio.Future[Change | None] | None = None

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Change:
        import asyncio

        while not self._closed:
            if self._waiting is None:
                self._waiting = asyncio.ensure_future(asyncio.to_thread(self._step))
            change = await asyncio.shield(self._waiting)
            self._waiting = None
            if change is not None:
                return change
        raise StopAsyncIteration

    def _step(self) -> Change | None:
        try:
            return self._watch.next(timeout=_STEP)
        except Closed:
            self._closed = True
            return None

    @property
    def position(self) -> int:
        """The GLSN from which a new watch misses nothing."""
        return self._watch.position

    def close(self) -> None:
        """Ends the watch, also while a task waits for it."""
        self._closed = True
        self._watch.close()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *exception: object) -> None:
        import asyncio

        self.close()
        if self._waiting is not None:
            await asyncio.gather(self._waiting, return_exceptions=True)
            self._waiting = None


async def wait_for(ticket: Ticket) -> int:
    """Waits for a ticket in another thread."""
    import asyncio

    return await asyncio.to_thread(ticket.wait)
