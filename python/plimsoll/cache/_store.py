"""The stores under caches: one per folder in a process, regardless of the number of caches, and
their transactions.

A write takes the store's writer turn, so a cache never meets a conflict: during `transact` no other
thread writes, nor does another process that shares the store, as in diskcache. A new holder of the
turn first refreshes the counters and settings that another process may have changed.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .. import _native
from .._block import block
from .._errors import Behind, Closed, Error, NotKeeper, OutOfBudget, Poisoned, Stalled
from .._turn import Turn
from ._disk import Disk

if TYPE_CHECKING:
    from .._native import Db, Keyspace, ReadMapping, Transaction

_log = logging.getLogger("plimsoll.cache")

UPKEEP_BYTES = 32 << 20
UPKEEP_LEAST_BYTES = 1 << 20
"""Bytes that all processes write between two rounds of `CacheStore._upkeep`: 1/16 of the limit,
within these bounds."""
SPARE_BYTES = 8 << 20
"""The files of a store may occupy the limit, a fifth of it, and this, before space is reclaimed.
The remainder, up to half of the limit plus 16 MiB, is for writes until the next round and for
copies that a compaction makes before it removes the old files."""
GARBAGE_BYTES = 64 << 20
"""The files occupy at most twice the bytes of the rows plus this, regardless of the limit."""
REGAINED_BYTES = 4 << 20
"""A store is compacted again once its files have grown by this since the last compaction, or by an
eighth if that is more. It is also compacted when half of it was cleared."""
DISK_ERRORS = (OSError, Poisoned)
"""Errors of a write on a full or failing disk. Optional writes ignore them, because the next write
of a row fails by itself."""


Options = dict[str, Any]
"""How a store is opened: arguments of `plimsoll.open`."""


class Timeout(Exception):
    """Another thread, or another process, kept the cache locked for longer than `timeout` seconds.

    >>> import threading
    >>> cache = plimsoll.Cache(timeout=0.01)
    >>> def write():
    ...     try:
    ...         cache.set("key", 1)
    ...     except plimsoll.Timeout:
    ...         print("another thread writes")
    >>> with cache.transact():
    ...     other = threading.Thread(target=write)
    ...     other.start()
    ...     other.join()
    another thread writes
    """


class StoreTable(Protocol):
    """The rows of one cache, as their store sees them at the ends of transactions."""

    size: int

    @property
    def committed(self) -> Keyspace: ...

    @property
    def size_max(self) -> int: ...

    @property
    def has_news(self) -> bool: ...

    def refresh(self, rows: ReadMapping) -> None: ...

    def before_commit(self, transaction: Transaction) -> None: ...

    def after_commit(self) -> None: ...

    def after_abort(self) -> None: ...

    def flush_touched(self) -> None: ...


_Table = TypeVar("_Table", bound=StoreTable)


class CacheStore:
    """An open store with its lock, its open transaction, and the tables of the caches in it."""

    def __init__(self, path: str, options: Options) -> None:
        self.db: Db = _native.open(path, retention="latest", **options)
        self.shared: bool = options["shared"]
        self.path = path
        self.identity = identity(path)
        self.users: set[Use[Any]] = set()
        """The caches that have it open. A set, not a count: an interrupted open or close is
        repeated, and must count once."""
        self.writes: set[object] = set()
        """The writes in progress: the last one closes a store that no cache has open."""
        self.is_closed = False
        """Whether it was closed because nothing used it."""
        self.tables: dict[str, StoreTable] = {}
        self._turn = Turn(path, shared=self.shared, prepare=lambda: self.db.newest)
        self._transaction: Transaction | None = None
        self._owner = 0
        self._written = 0
        self._cleared = 0
        """Bytes of rows that were cleared since the last compaction."""
        self._upkeep_bytes = UPKEEP_LEAST_BYTES
        self._upkeep_lock = threading.Lock()
        self._compacted_bytes = 0
        """The size of the files after the last compaction, or less if they have shrunk since."""
        self._files_written: list[tuple[Disk, str]] = []
        self._files_dropped: list[tuple[Disk, str]] = []
        self._last_commit = -1
        """The last commit of this process: if no other follows it, the state in memory is
        current."""
        self._is_clean = True
        """Whether the state in memory is the committed one. It is not after an interrupted end of a
        write."""

    @property
    def transaction(self) -> Transaction | None:
        """The open transaction, if it is this thread's."""
        return self._transaction if self._owner == threading.get_ident() else None

    @block
    def write(self, timeout: float | None) -> Iterator[Transaction | None]:
        """Joins this thread's transaction, or begins one and commits it at the end. Waits for
        others without a limit if `timeout` is None.

        Yields `None` if another thread has just closed the store. The caller reopens it.
        """
        open_one = self.transaction
        if open_one is not None:
            yield open_one
            return
        write = object()
        try:
            # Before the check, because a closing thread sets the flag and then checks the writes.
            self.writes.add(write)
            if self.is_closed:
                yield None
                return
            # Not `with`, because each set would enter a second context manager.
            yield from self._write_in_turn(timeout)
            if self._written >= self._upkeep_bytes:
                self._upkeep()
        finally:
            self.writes.discard(write)
            if not self.users:
                _close_unused(self)

    @block
    def write_last(self) -> Iterator[Transaction]:
        """Like `write`, for a closing thread: does not wait."""
        yield from self._write_in_turn(0)

    def _write_in_turn(self, timeout: float | None) -> Iterator[Transaction]:
        transaction = ticket = None
        written: list[tuple[Disk, str]] = []
        dropped: list[tuple[Disk, str]] = []
        try:
            with self._turn.hold(timeout) as is_held:
                if not is_held:
                    raise Timeout("another thread or process has kept the cache locked; pass retry=True to wait for it")
                try:
                    self._files_written, self._files_dropped = written, dropped
                    transaction = self.db.transaction(ordered=True)
                    self._transaction, self._owner = transaction, threading.get_ident()
                    if not self._is_clean or (self.shared and transaction.at != self._last_commit):
                        for table in list(self.tables.values()):
                            table.refresh(transaction.keyspace(table.committed))
                    self._is_clean = False
                    yield transaction
                    for table in list(self.tables.values()):
                        table.before_commit(transaction)
                    ticket = transaction.commit_submit()
                    self._committed(ticket.glsn)
                except BaseException:
                    if transaction is not None:
                        # A signal handler may raise just after the commit was ordered.
                        if transaction.glsn is not None:
                            self._committed(transaction.glsn)
                        else:
                            self._abort(transaction, written)
                    raise
                finally:
                    self._transaction, self._owner = None, 0
        finally:
            if transaction is not None and transaction.glsn is not None:
                # Others write meanwhile, and one sync serves several commits.
                if ticket is not None:
                    ticket.wait()
                else:
                    self.db.transaction(ordered=True).commit()
                _remove_files(dropped)

    def _committed(self, glsn: int) -> None:
        self._last_commit = glsn
        for table in list(self.tables.values()):
            table.after_commit()
        self._is_clean = True

    def _abort(self, transaction: Transaction, written: list[tuple[Disk, str]]) -> None:
        transaction.abort()
        _remove_files(written)
        # A store that was closed meanwhile, as at interpreter exit, has no state to restore.
        with suppress(Closed):
            for table in list(self.tables.values()):
                table.after_abort()
            self._is_clean = True

    def file_written(self, disk: Disk, filename: str) -> None:
        """Removes a file again if the open transaction is aborted."""
        self._files_written.append((disk, filename))

    def drop_file(self, disk: Disk, filename: str) -> None:
        """Removes a file: after the commit of this thread's open transaction, or now if there is
        none."""
        if self.transaction is None:
            disk.remove(filename)
        else:
            self._files_dropped.append((disk, filename))

    def wrote(self, size: int) -> None:
        """Counts written bytes towards the next upkeep."""
        self._written += size

    def cleared(self, size: int) -> None:
        """Counts removed bytes of rows, so that the next upkeep reclaims their space."""
        self._written += size
        self._cleared += size

    def _upkeep(self) -> None:
        """Reclaims the disk space of overwritten and evicted rows, while others write."""
        if not self._upkeep_lock.acquire(blocking=False):
            return
        self._written = 0
        # The writes are committed, and the caller knows it; a later round catches up.
        try:
            with suppress(Behind, Closed, NotKeeper, Stalled):
                tables = list(self.tables.values())
                limit = sum(table.size_max for table in tables)
                rows = sum(table.size for table in tables)
                apart = min(UPKEEP_BYTES, max(UPKEEP_LEAST_BYTES, limit // 16))
                self._upkeep_bytes = apart // max(1, len(self.db.members()))
                allowed = min(limit + limit // 5 + SPARE_BYTES, 2 * rows + GARBAGE_BYTES)
                size: int = self.db.stats()["disk_bytes"]
                if size > allowed or self._cleared > size // 2:
                    # Beyond the newest commit, so that the current segment ends too.
                    self.db.log.trim(self.db.newest + 1)
                    size = self.db.stats()["disk_bytes"]
                before = self._compacted_bytes = min(size, self._compacted_bytes)
                # If half of it was cleared, a compaction rewrites less than it reclaims.
                if self._cleared > size // 2 or size > max(allowed, before + max(REGAINED_BYTES, before // 8)):
                    self._compact(size)
        except (*DISK_ERRORS, OutOfBudget) as error:
            # If the disk is full or the store is poisoned, the next write reports it. Any other
            # error is reported only here.
            _log.warning("cannot reclaim disk space of the cache in %s: %s", self.path, error)
        finally:
            self._upkeep_lock.release()

    def _compact(self, size: int) -> None:
        """Compacts files of `size` bytes; a second time if the first reclaimed little of the
        cleared bytes."""
        cleared = self._cleared
        for _ in range(2 if cleared else 1):
            self.db.compact()
            self._compacted_bytes = self.db.stats()["disk_bytes"]
            if size - self._compacted_bytes >= cleared // 2:
                break
        self._cleared -= cleared

    def close(self) -> None:
        """Closes the store."""
        self.db.close()
        self._turn.close()


def _remove_files(files: list[tuple[Disk, str]]) -> None:
    for disk, filename in files:
        disk.remove(filename)


class Use(Generic[_Table]):
    """A cache's claim on its open store: one object for the life of the cache."""

    def __init__(self) -> None:
        self.store: CacheStore | None = None
        self.table: _Table | None = None
        """The rows of the cache while it is open. Set last, because other threads then use it."""
        _uses.add(self)


_stores: dict[str, CacheStore] = {}
_uses: weakref.WeakSet[Use[Any]] = weakref.WeakSet()
_guard = threading.RLock()


def _forget_in_child() -> None:
    """A forked child does not inherit a lock held by a thread of its parent. It leaves the stores
    to its parent, so each cache reopens its store at its next use in the child.
    """
    global _guard
    _guard = threading.RLock()
    _stores.clear()
    for use in list(_uses):
        use.store = use.table = None


os.register_at_fork(after_in_child=_forget_in_child)


def opening() -> threading.RLock:
    """The lock for opening and closing caches. Its holder waits for no writer."""
    return _guard


def identity(path: str) -> tuple[int, int] | None:
    """The identity of a folder; None if it does not exist."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def acquire(path: str, options: Options, use: Use[Any]) -> CacheStore:
    """The store in a folder, opened if necessary. The first opener in a process decides on the
    options."""
    with _guard:
        path = os.path.realpath(path)
        while True:
            store = _stores.get(path)
            if store is None:
                store = use.store = CacheStore(path, options)
                store.users.add(use)
                _stores[path] = store
                return store
            # First, because a cache that is collected in this thread meanwhile may be the last
            # other user.
            use.store = store
            store.users.add(use)
            if store is not _stores.get(path):
                continue
            if store.identity is not None and identity(path) == store.identity:
                # An interrupted close may have set it.
                store.is_closed = False
                return store
            # The folder was removed under an open cache, and possibly recreated.
            store.users.discard(use)
            del _stores[path]
            with suppress(Error):
                store.close()


def release(use: Use[Any]) -> None:
    """Releases a store unless it was released before. The last release closes it, unless threads
    write; the last of these closes it then. Waits for no writer."""
    with _guard:
        store = use.store
        if store is None:
            return
        store.users.discard(use)
        _close_unused(store)
        # Last, so that an interrupted release is repeated from the start.
        use.store = None


def _close_unused(store: CacheStore) -> None:
    """Closes a store if it is open and not in use."""
    with _guard:
        if store.users or store not in _stores.values():
            return
        store.is_closed = True
        if store.writes:
            # The last writer closes it.
            store.is_closed = False
            return
        for path, known in list(_stores.items()):
            if known is store:
                del _stores[path]
        if store.identity != identity(store.path):
            # The folder was removed or replaced: the store refuses writes and reports it.
            with suppress(Error):
                store.close()
            return
        try:
            if any(table.has_news for table in store.tables.values()):
                # Uses and hits are hints, so do not wait for another writing process.
                with suppress(Closed, Timeout, *DISK_ERRORS), store.write_last():
                    for table in list(store.tables.values()):
                        table.flush_touched()
        finally:
            store.close()
