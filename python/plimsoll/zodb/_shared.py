"""The stores under ZODB storages: one for each folder in a process, however many storages look at it.

What is kept here beside the store is only what a process needs to take turns: the turn of the committing transaction, which all processes share, and
the oids that it may hand out. What was committed is read from the store.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ZODB.POSException import ReadOnlyError, StorageError  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .. import _native
from .._errors import Conflict, Error, NotAStore
from .._turn import Turn
from . import _rows

if TYPE_CHECKING:
    from .._native import Db, Keyspace, Transaction

OIDS = 1_000
"""Oids that a process takes at once."""
TRIM_BYTES = 64 << 20
"""Written bytes after which the log gives back what the tables already hold."""


class SharedStore:
    """An open store with the locks that the storages of this process share."""

    def __init__(self, path: str, *, read_only: bool, keep_history: bool, options: dict[str, Any]) -> None:
        shared: bool = options.get("shared", False)
        # A store that is only read does not follow the others: here the storage refuses to write.
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
        """Who has it commits: of all threads, and of all processes that share the store."""
        self.pack_turn = Turn(path, "pack", shared=shared)
        self._oid_lock = threading.Lock()
        self._oid = self._last_oid = 0
        """What was handed out last, and what may be."""
        self._reserved = 0
        """Up to here oids are taken, as far as this process knows: others may have taken more since."""
        self._written = 0
        if not read_only:
            self._know_oids()

    def _open_keyspaces(self, keep_history: bool) -> None:
        known = self.db.keyspaces()
        if self.read_only and _rows.META not in known:
            raise ReadOnlyError(f"{self.path} holds no ZODB; open it for writing once")
        spaces: list[Keyspace] = [
            self.db.keyspace(name) if self.read_only else self.db.keyspace(name, retention="latest")
            for name in _rows.KEYSPACES
        ]
        self.objects, self.history, self.transactions, self.meta = spaces
        found = self.meta.get(_rows.META_FORMAT)
        if found is None:
            # Of several processes that make it at once, the first one decides.
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
        """Waits for the sync of what was ordered before, by any process: until then no snapshot has it."""
        self.db.transaction(ordered=True).commit()

    def new_oid(self) -> bytes:
        """An oid that no object has had."""
        with self._oid_lock:
            if self._oid == self._last_oid:
                self._oid = self._reserve(0)
                self._last_oid = self._reserved
            self._oid += 1
            return self._oid.to_bytes(8, "big")

    def saw_oid(self, oid: bytes) -> None:
        """An object is being stored under an oid that may come from elsewhere."""
        number = int.from_bytes(oid, "big")
        if self._oid < number <= self._last_oid or number > self._reserved:
            with self._oid_lock:
                if self._oid < number <= self._last_oid:
                    self._oid = number
                if number > self._reserved:
                    self._reserve(number)

    def _reserve(self, least: int) -> int:
        """Takes oids that no other process takes, above `least`; returns the one before the first. The caller holds the lock of oids."""
        while True:
            # Not waited for: an object that has one of them is committed after this.
            tx = self.db.transaction(ordered=True)
            meta = tx.keyspace(self.meta)
            before = max(int.from_bytes(meta.get(_rows.META_OID, _rows.ZERO), "big"), least)
            meta.put(_rows.META_OID, (before + OIDS).to_bytes(8, "big"))
            with suppress(Conflict):
                tx.commit_submit()
                self._reserved = before + OIDS
                return before

    def _know_oids(self) -> None:
        """A store whose objects were not stored by this version has oids that were not taken."""
        last = self.objects.last()
        self._reserved = int.from_bytes(self.meta.get(_rows.META_OID, _rows.ZERO), "big")
        if last is not None:
            self.saw_oid(last[0])

    def wrote(self, size: int) -> None:
        """Counts bytes that were written, and has the log trimmed now and then."""
        # A count that two threads change at once may lose one of them.
        self._written += size
        if self._written >= TRIM_BYTES:
            self._written = 0
            # The transaction is committed whatever becomes of the log; the next one reports a store that is broken.
            with suppress(Error):
                self.db.log.trim(self.db.newest)


_stores: dict[str, SharedStore] = {}
_guard = threading.RLock()


def _forget_in_child() -> None:
    """A forked child opens stores of its own, and does not inherit a lock that a thread of its parent held."""
    global _guard
    _guard = threading.RLock()
    for store in _stores.values():
        # Who uses its parent's store is told so, and waits for no thread of the parent.
        store._oid_lock = threading.Lock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def acquire(path: str, *, read_only: bool, keep_history: bool, options: dict[str, Any]) -> SharedStore:
    """The store in a folder, opened if it is not open. A store that is open for writing serves read-only storages, too."""
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
"""Names in the folder of a store. The log goes after the index: a folder with rows but no log would be taken for a damaged store."""


def remove(path: str) -> None:
    """Removes a store that nothing has open. Other files in the folder stay, and the folder with them."""
    try:
        # Refuses if another process has it open, and if it is no store.
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
    """Gives a store back; the last one closes it."""
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
