"""The turn of writers: a lock that one thread of all processes holds that share a store.

A transaction that holds it meets no conflict. It is a lock of the system on a file beside the store's own: a process that is killed gives it back.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref

_FIRST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3

_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


class Turn:
    """A turn, by the name of its file in the folder of a store. If the store is not shared, only threads of this process take turns."""

    def __init__(self, folder: str, name: str = "writers", *, shared: bool) -> None:
        self._lock = threading.Lock()
        self._file = -1
        if shared:
            self._file = os.open(os.path.join(folder, name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _turns.add(self)

    def acquire(self, timeout: float | None = None) -> bool:
        """Waits for the turn, without end if `timeout` is None; returns whether it got it."""
        start = time.monotonic()
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return False
        if self._file < 0:
            return True
        try:
            got = self._acquire_from_processes(None if timeout is None else start + timeout)
        except BaseException:
            self._lock.release()
            raise
        if not got:
            self._lock.release()
        return got

    def _acquire_from_processes(self, deadline: float | None) -> bool:
        pause = _FIRST_PAUSE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                pass
            if deadline is None:
                # The system wakes this thread. A lock of the system that is waited for has no timeout.
                fcntl.flock(self._file, fcntl.LOCK_EX)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def release(self) -> None:
        """Gives the turn to the next one."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def close(self) -> None:
        """Closes its file."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def __del__(self) -> None:
        self.close()


def _leave_in_child() -> None:
    """A forked child holds its parent's file open: without this, it would keep the turn for a parent that is killed."""
    for turn in list(_turns):
        turn.close()


os.register_at_fork(after_in_child=_leave_in_child)
