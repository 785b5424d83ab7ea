"""The stores under ZODB storages: one for each folder in a process, however many storages look at it.

What is kept here beside the store is only what a process needs to take turns: the lock of the committing transaction, and the
oids that it has handed out. What was committed is read from the store.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ZODB.POSException import ReadOnlyError, StorageError  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .. import _native
from .._errors import Error
from . import _rows

if TYPE_CHECKING:
    from .._native import Db, Keyspace

TRIM_BYTES = 64 << 20
"""Written bytes after which the log gives back what the tables already hold."""


class SharedStore:
    """An open store with the locks that the storages of this process share."""

    def __init__(self, path: str, *, read_only: bool, keep_history: bool, options: dict[str, Any]) -> None:
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
        self.commit_lock = threading.Lock()
        self.pack_lock = threading.Lock()
        self._oid_lock = threading.Lock()
        self._oid = 0
        self._written = 0
        self.reset_oids()

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
            self.meta.put_many(
                {_rows.META_FORMAT: _rows.FORMAT, _rows.META_KEEP_HISTORY: b"1" if keep_history else b"0"}
            )
        elif found != _rows.FORMAT:
            raise StorageError(f"{self.path} holds a ZODB of format {found!r}; this version reads {_rows.FORMAT!r}")
        self.keep_history = self.meta.get(_rows.META_KEEP_HISTORY) == b"1"
        if self.keep_history != keep_history:
            kept = "keeps history" if self.keep_history else "keeps no history"
            raise StorageError(f"{self.path} {kept}: open it with keep_history={self.keep_history}, or convert it")

    def last_tid(self) -> bytes:
        """The tid of the newest transaction."""
        last = self.transactions.last()
        return last[0] if last else _rows.ZERO

    def new_oid(self) -> bytes:
        """An oid that no object has had."""
        with self._oid_lock:
            self._oid += 1
            return self._oid.to_bytes(8, "big")

    def saw_oid(self, oid: bytes) -> None:
        """An object was stored under an oid that may come from elsewhere."""
        number = int.from_bytes(oid, "big")
        if number > self._oid:
            with self._oid_lock:
                self._oid = max(self._oid, number)

    def reset_oids(self) -> None:
        """Continues behind the greatest oid of the store."""
        last = self.objects.last()
        kept = self.meta.get(_rows.META_OID, _rows.ZERO)
        with self._oid_lock:
            self._oid = int.from_bytes(max(kept, last[0] if last else _rows.ZERO), "big")

    def greatest_oid(self) -> bytes:
        """The greatest oid that was given to an object."""
        with self._oid_lock:
            return self._oid.to_bytes(8, "big")

    def wrote(self, size: int) -> None:
        """Counts bytes that were written, and has the log trimmed now and then. The caller holds the commit lock."""
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
