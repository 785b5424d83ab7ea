"""The stores under ZODB storages: one per folder in a process, regardless of the number of
storages.

The only state here beside the store is for coordination: the commit turn, which all processes
share, and the oids that this process may assign. Committed data is read from the store.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ZODB.POSException import ReadOnlyError, StorageError, StorageTransactionError  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .. import _native
from .._errors import Conflict, Error, NotAStore
from .._turn import Turn
from . import _rows

if TYPE_CHECKING:
    from .._native import Db, Keyspace, Transaction

OIDS = 1_000
"""Number of oids that a process reserves at once."""
TRIM_BYTES = 64 << 20
"""Written bytes after which the log is trimmed of data that the tables already hold."""


class SharedStore:
    """An open store with the locks that the storages of this process share."""

    def __init__(self, path: str, *, read_only: bool, keep_history: bool, options: dict[str, Any]) -> None:
        shared: bool = options.get("shared", False)
        # A read-only store does not follow other processes, so the store is opened for writing and
        # the storage refuses writes.
        read_only = read_only and not shared
        self.path = path
        self.pid = os.getpid()
        self.users = 0
        self.read_only = read_only
        self.db: Db = _native.open(path, read_only=read_only, retention="latest", **options)
        try:
            self._open_keyspaces(keep_history)
        except BaseException:
            self.db.close()
            raise
        self.turn = Turn(path, shared=shared)
        """The commit turn: its holder commits, among all threads and all processes that share the
        store."""
        self.pack_turn = Turn(path, "pack", shared=shared)
        self._oid_lock = threading.Lock()
        self._oid = self._last_oid = 0
        """The last assigned oid, and the last reserved one."""
        self._reserved = 0
        """Oids up to here are reserved, as far as this process knows; others may have reserved more
        since."""
        self._written = 0
        if not read_only:
            self._know_oids()

    def _open_keyspaces(self, keep_history: bool) -> None:
        known = self.db.keyspaces()
        if self.read_only and _rows.META not in known:
            raise ReadOnlyError(f"{self.path} does not contain a ZODB database; open it once for writing")
        spaces: list[Keyspace] = [
            self.db.keyspace(name) if self.read_only else self.db.keyspace(name, retention="latest")
            for name in _rows.KEYSPACES
        ]
        self.objects, self.history, self.transactions, self.meta = spaces
        found = self.meta.get(_rows.META_FORMAT)
        if found is None:
            # If several processes create it at once, the first one decides.
            found = self.db.transact(self._make, keep_history)
        if found != _rows.FORMAT:
            raise StorageError(f"{self.path} holds a ZODB of format {found!r}; this version reads {_rows.FORMAT!r}")
        self.keep_history = self.meta.get(_rows.META_KEEP_HISTORY) == b"1"
        if self.keep_history != keep_history:
            kept = "keeps history" if self.keep_history else "keeps no history"
            raise StorageError(f"{self.path} {kept}: open it with keep_history={self.keep_history}, or convert it")

    def _make(self, tx: Transaction, keep_history: bool) -> bytes:
        meta = tx.keyspace(self.meta)
        if _rows.META_FORMAT not in meta:
            meta.put_many({_rows.META_FORMAT: _rows.FORMAT, _rows.META_KEEP_HISTORY: b"1" if keep_history else b"0"})
        return meta[_rows.META_FORMAT]

    def is_open(self) -> bool:
        """Whether a storage of this process has a store in the folder open."""
        with _guard:
            return self.path in _stores

    def last_tid(self) -> bytes:
        """The tid of the newest transaction."""
        last = self.transactions.last()
        return last[0] if last else _rows.ZERO

    def wait_until_durable(self) -> None:
        """Waits for the sync of commits ordered before, by any process; until then no snapshot
        includes them."""
        self.db.transaction(ordered=True).commit()

    def check_no_turn(self) -> None:
        """Raises `StorageTransactionError` if this thread holds the turn, because it would wait for
        itself."""
        if self.turn.is_mine:
            raise StorageTransactionError(
                "this thread is committing another transaction of this database; finish or abort it first (a transaction can use one connection per database, "
                "or undo once; `DB.undoMultiple` undoes several transactions)"
            )

    def new_oid(self) -> bytes:
        """An unused oid."""
        with self._oid_lock:
            if self._oid == self._last_oid:
                self._oid = self._reserve(0)
                self._last_oid = self._reserved
            self._oid += 1
            return self._oid.to_bytes(8, "big")

    def saw_oid(self, oid: bytes) -> None:
        """Notes that an object is being stored under an oid that may come from elsewhere."""
        number = int.from_bytes(oid, "big")
        if self._oid < number <= self._last_oid or number > self._reserved:
            with self._oid_lock:
                if self._oid < number <= self._last_oid:
                    self._oid = number
                if number > self._reserved:
                    self._reserve(number)

    def _reserve(self, least: int) -> int:
        """Reserves oids above `least`; returns the one before the first. The caller holds the lock
        of oids."""
        while True:
            # Not awaited, because an object with one of these oids commits afterwards.
            tx = self.db.transaction(ordered=True)
            meta = tx.keyspace(self.meta)
            before = max(int.from_bytes(meta.get(_rows.META_OID, _rows.ZERO), "big"), least)
            meta.put(_rows.META_OID, (before + OIDS).to_bytes(8, "big"))
            with suppress(Conflict):
                tx.commit_submit()
                self._reserved = before + OIDS
                return before

    def _know_oids(self) -> None:
        """Reserves the oids of existing objects, because another version may have stored them
        without reserving oids."""
        last = self.objects.last()
        self._reserved = int.from_bytes(self.meta.get(_rows.META_OID, _rows.ZERO), "big")
        if last is not None:
            self.saw_oid(last[0])

    def wrote(self, size: int) -> None:
        """Counts written bytes, and has the log trimmed occasionally."""
        # Concurrent increments may lose one.
        self._written += size
        if self._written >= TRIM_BYTES:
            self._written = 0
            # The transaction is committed regardless of the log; the next one reports a broken
            # store.
            with suppress(Error):
                self.db.log.trim(self.db.newest)


_stores: dict[str, SharedStore] = {}
_guard = threading.RLock()


def _forget_in_child() -> None:
    """A forked child opens its own stores, and does not inherit a lock held by a thread of its
    parent."""
    global _guard
    _guard = threading.RLock()
    for store in _stores.values():
        # A user of the parent's store gets an error, and waits for no thread of the parent.
        store._oid_lock = threading.Lock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def acquire(path: str, *, read_only: bool, keep_history: bool, options: dict[str, Any]) -> SharedStore:
    """The store in a folder, opened if necessary. A store that is open for writing also serves
    read-only storages."""
    path = os.path.realpath(path)
    with _guard:
        store = _stores.get(path)
        if store is None:
            store = _stores[path] = SharedStore(path, read_only=read_only, keep_history=keep_history, options=options)
        elif store.read_only and not read_only:
            raise ReadOnlyError(f"{path} is open read-only in this process; close that storage first")
        elif store.keep_history != keep_history:
            raise StorageError(f"{path} is open with keep_history={store.keep_history} in this process")
        store.users += 1
        return store


_FILES = ("SHARED", "index", "members", "warm", "log", "LOCK")
"""File names in the folder of a store. The log is removed after the index, because a folder with
rows but no log would look like a damaged store."""


def remove(path: str) -> None:
    """Removes a store that is not open anywhere. Other files in the folder stay, and so does the
    folder."""
    try:
        # Fails if another process has it open, or if it is not a store.
        _native.open(path, create=False).close()
    except NotAStore:
        return
    names = [*_FILES, *(name for name in os.listdir(path) if name.endswith(".lock"))]
    for name in names:
        entry = os.path.join(path, name)
        if os.path.isdir(entry):
            shutil.rmtree(entry)
        elif os.path.exists(entry):
            os.unlink(entry)
    with suppress(OSError):
        os.rmdir(path)


def release(store: SharedStore) -> None:
    """Releases a store; the last user closes it."""
    if store.pid != os.getpid():
        return
    with _guard:
        store.users -= 1
        if store.users > 0:
            return
        if _stores.get(store.path) is store:
            del _stores[store.path]
        store.db.close()
        store.turn.close()
        store.pack_turn.close()
