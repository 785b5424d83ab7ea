"""Watches for asyncio.

asyncio is imported lazily: it takes several times as long to import as the rest of the package, and
a fleet of workers imports it at once.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from ._errors import Closed

if TYPE_CHECKING:
    import asyncio

    from ._native import Change, Ticket, Watch


class AsyncWatch:
    """The changes of keys with a prefix, as they are committed: an asynchronous iterator, from `LiveMapping.watch_async`.

    One task at a time may wait for a change; a second one gets a `RuntimeError`. If the waiting
    task is cancelled, no change is lost; the next waiting task gets it. While a task waits, a
    thread of the watch waits for the store. The thread ends when the watch is closed or the last
    reference to the watch is dropped.

    >>> import asyncio
    >>> async def follow(db):
    ...     async with db.watch_async(b"user/") as watch:
    ...         db.update({b"user/ada": b"Ada", b"user/alan": b"Alan"})
    ...         return [(await anext(watch)).key for _ in range(2)]
    >>> asyncio.run(follow(plimsoll.in_memory()))
    [b'user/ada', b'user/alan']
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._news = _News()
        self._end = weakref.finalize(self, watch.close)
        self._end.atexit = False

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Change:
        news = self._news
        while self._end.alive:
            change = self._watch._ahead()
            if change is not None:
                return change
            error, news.error = news.error, None
            if isinstance(error, Closed):
                self.close()
            elif error is not None:
                raise error
            else:
                if news.thread is None:
                    news.thread = threading.Thread(target=_wait, args=(self._watch, news), name="plimsoll-watch", daemon=True)
                    news.thread.start()
                await news.wait()
        raise StopAsyncIteration

    @property
    def position(self) -> int:
        """The GLSN from which a new watch continues without a gap."""
        return self._watch.position

    def close(self) -> None:
        """Ends the watch, even while a task waits for it.

        >>> import asyncio
        >>> async def changes(db):
        ...     watch = db.watch_async()
        ...     watch.close()
        ...     return [change async for change in watch]
        >>> asyncio.run(changes(plimsoll.in_memory()))
        []
        """
        self._end()
        self._news.tell()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class _News:
    """The thread that waits for the store, and the task that waits for the thread. It holds no
    reference to the `AsyncWatch`, so that the thread does not keep the watch alive."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Waits until the thread has ended, or until `tell` is called."""
        import asyncio

        before = self._waiting
        if before is not None and not before.done() and not before.get_loop().is_closed():
            raise RuntimeError("another task is waiting for this watch; give each task its own watch")
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        if self.thread is None:
            # The thread ended before the task was registered.
            self._waiting = None
            return
        await waiting

    def tell(self) -> None:
        """Wakes the task that waits, from any thread."""
        waiting = self._waiting
        if waiting is not None:
            # The loop may have been closed.
            with suppress(RuntimeError):
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)


def _wait(watch: Watch, news: _News) -> None:
    try:
        watch._hold()
    except Exception as error:  # noqa: BLE001 (the task that waits raises it)
        news.error = error
    news.thread = None
    news.tell()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def wait_for(ticket: Ticket) -> int:
    """Waits for a ticket in another thread."""
    import asyncio

    return await asyncio.to_thread(ticket.wait)
