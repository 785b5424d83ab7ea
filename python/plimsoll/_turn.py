"""The turn of writers: a lock that one thread of all processes holds that share a store.

A transaction that holds it meets no conflict. It is a lock of the system on a file beside the store's own: a process that is killed gives it back.

Processes queue at a second lock. Who has that one is next: it prepares (takes in what others have committed) while the turn is another's, and so holds
the turn for its own write only. Who has had the turn may take it again for some milliseconds without queueing, which spares most changes of the process.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from ._native import Hold

_AGAIN_SECONDS = 5e-3
"""How long a process takes the turn again before it queues for it. Where processors are short, a change of process may take as long."""
_FIRST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3

_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


class Turn:
    """A turn, by the name of its file in the folder of a store. Unless it is shared, only threads of this process take turns."""

    thread = 0
    """The thread that has the turn."""
    _file = _next = -1
    """Its files; of the class, too, because a turn whose making was interrupted is closed nevertheless."""
    unlocks: tuple[Callable[[], object], ...] = ()
    """Give back the locks of the system: called by `Hold`, without a look at signals."""

    def __init__(
        self, folder: str = "", name: str = "writers", *, shared: bool = False, prepare: Callable[[], object] = lambda: None
    ) -> None:
        self._lock = threading.Lock()
        self._prepare = prepare
        self._again_until = 0.0
        if shared:
            self._file = _open(os.path.join(folder, name + ".lock"))
            self._next = _open(os.path.join(folder, name + ".next.lock"))
            self.unlocks = tuple(partial(fcntl.flock, file, fcntl.LOCK_UN) for file in (self._file, self._next))
        _turns.add(self)

    def hold(self, timeout: float | None = None) -> Hold:
        """The turn for the length of a `with` block. Entering it waits for the turn, without end if `timeout` is None, and says whether it was had."""
        return Hold(self, self._lock, timeout, None if timeout is None else time.monotonic() + timeout)

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn."""
        return self.thread == threading.get_ident()

    def take_from_processes(self, deadline: float | None) -> bool:
        """Waits for the other processes. Called by `Hold` once no other thread has the turn; if it raises or is too late, `Hold` gives back everything."""
        self.thread = threading.get_ident()
        if self._file < 0 or (time.monotonic() < self._again_until and _try(self._file)):
            return True
        if not _wait(self._next, deadline):
            return False
        self._prepare()
        if not _wait(self._file, deadline):
            return False
        fcntl.flock(self._next, fcntl.LOCK_UN)
        self._again_until = time.monotonic() + _AGAIN_SECONDS
        return True

    def close(self) -> None:
        """Closes its files."""
        files, self._file, self._next, self.unlocks = (self._file, self._next), -1, -1, ()
        for file in files:
            if file >= 0:
                os.close(file)

    def __del__(self) -> None:
        self.close()


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(file: int, deadline: float | None) -> bool:
    """Waits for a lock; returns whether it got it."""
    pause = _FIRST_PAUSE
    while not _try(file):
        if deadline is None and not _switches_greenlets():
            # The system wakes this thread. A lock of the system that is waited for has no timeout.
            fcntl.flock(file, fcntl.LOCK_EX)
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _switches_greenlets() -> bool:
    """Whether `time.sleep` lets other greenlets run (gevent), which a wait in the system would keep waiting, too."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("time"))


def _leave_in_child() -> None:
    """A forked child holds its parent's files open: without this, it would keep the turn for a parent that is killed. Nor does it wait for a thread of its
    parent: the store of a parent refuses to be used."""
    for turn in list(_turns):
        turn.close()
        turn._lock, turn.thread = threading.Lock(), 0


os.register_at_fork(after_in_child=_leave_in_child)
