"""The writers' turn: a lock that one thread of all processes sharing a store holds.

A transaction that holds it meets no conflict. It is a system lock on a file beside the store's own,
so it is released when its process is killed.

Processes queue at a second lock. The holder of that lock is next: it prepares (applies the commits
of others) while another process has the turn, and so holds the turn only for its own write. A
process that had the turn may retake it for some milliseconds without queueing, which avoids most
switches between processes.
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
"""How long a process may retake the turn before it must queue. If processors are scarce, a switch
of processes may take as long."""
_FIRST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3

_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


class Turn:
    """A turn, named by its file in the folder of a store. Unless shared, only threads of this
    process take turns."""

    thread = 0
    """The thread that has the turn."""
    _file = _next = -1
    """Its files. Also a class attribute, so that a turn can be closed even if its creation was
    interrupted."""
    unlocks: tuple[Callable[[], object], ...] = ()
    """Release the system locks: called by `Hold`, without handling signals."""

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
        """Holds the turn for a `with` block. Entering it waits for the turn, without a limit if
        `timeout` is None, and returns whether it was acquired."""
        return Hold(self, self._lock, timeout, None if timeout is None else time.monotonic() + timeout)

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn."""
        return self.thread == threading.get_ident()

    def take_from_processes(self, deadline: float | None) -> bool:
        """Waits for the other processes. Called by `Hold` once no other thread has the turn; if it
        raises or is too late, `Hold` releases everything."""
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
    """Waits for a lock; returns whether it was acquired."""
    pause = _FIRST_PAUSE
    while not _try(file):
        if deadline is None and not _switches_greenlets():
            # The system wakes this thread. A blocking system lock has no timeout.
            fcntl.flock(file, fcntl.LOCK_EX)
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _switches_greenlets() -> bool:
    """Whether `time.sleep` lets other greenlets run (gevent); a blocking system call would block
    them too."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("time"))


def _leave_in_child() -> None:
    """A forked child holds its parent's files open; without this, it would keep the turn for a
    killed parent. The child does not wait for threads of its parent, because it cannot use the
    parent's store."""
    for turn in list(_turns):
        turn.close()
        turn._lock, turn.thread = threading.Lock(), 0


os.register_at_fork(after_in_child=_leave_in_child)
