"""`PlimsollStorage`: a ZODB storage on a Plimsoll store.

It is an `IMVCCStorage`: every connection has an instance of its own that reads a snapshot, and asks the store what has changed when it moves to a
newer one. There is no list of instances and none of invalidations.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ZODB import interfaces  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.ConflictResolution import ConflictResolvingStorage  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import StorageError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from zope.interface import alsoProvides, implementer  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .._turn import Turn
from . import _pack, _rows, _shared
from ._blobs import Blobs
from ._iteration import Iteration
from ._reading import Reading
from ._undo import Undo
from ._writing import Writing

if TYPE_CHECKING:
    from .._native import Db


@implementer(
    interfaces.IStorage,
    interfaces.IMultiCommitStorage,
    interfaces.IMVCCStorage,
    interfaces.IMVCCPrefetchStorage,
    interfaces.IMVCCAfterCompletionStorage,
    interfaces.IStorageIteration,
    interfaces.IStorageRestoreable,
    interfaces.IStorageCurrentRecordIteration,
    interfaces.ReadVerifyingStorage,
    interfaces.IExternalGC,
)
class PlimsollStorage(Reading, Writing, Undo, Iteration, Blobs, ConflictResolvingStorage):  # type: ignore[misc, unused-ignore]
    """A ZODB storage in the folder `path`.

    `keep_history=False` keeps the newest revision alone: no undo, less to write. `blob_dir` is the folder of blobs; without it, there are none.
    With `shared`, other processes may have the folder open as well, each with `shared`; `memory_total` then bounds what the stores of all of them hold in
    memory, and each has an equal part. `memory` bounds what the store of this process holds in memory, `durability` says whether a finished transaction survives a power cut ("sync") or only the
    end of the process ("buffered"). `warm=False` leaves out that what was hot comes back
    after a restart: for processes that live for a few transactions. `pack_gc` is whether `pack` collects garbage.

    >>> import ZODB
    >>> from plimsoll.zodb import PlimsollStorage
    >>> db = ZODB.DB(PlimsollStorage(path, memory="64MB"))
    >>> with db.transaction() as connection:
    ...     connection.root()["answer"] = 42
    >>> with db.transaction() as connection:
    ...     connection.root()["answer"]
    42
    >>> db.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        keep_history: bool = True,
        read_only: bool = False,
        create: bool = False,
        blob_dir: str | os.PathLike[str] | None = None,
        memory: int | str | None = None,
        memory_total: int | str | None = None,
        shared: bool = False,
        warm: bool = True,
        durability: str = "sync",
        pack_gc: bool = True,
    ) -> None:
        path = os.fspath(path)
        self.__name__ = name or path
        self._is_read_only = read_only
        self._pack_gc = pack_gc
        self._blob_dir = None if blob_dir is None else os.path.abspath(os.fspath(blob_dir))
        options: dict[str, Any] = {"durability": durability, "shared": shared, "warm": warm}
        if memory is not None:
            options["memory"] = memory
        if memory_total is not None:
            options["memory_total"] = memory_total
        self._shared = _shared.acquire(path, read_only=read_only, keep_history=keep_history, options=options)
        try:
            self._begin()
            if create:
                self.zap_all()
        except BaseException:
            _shared.release(self._shared)
            raise

    def _begin(self) -> None:
        """The state of a fresh instance."""
        self._lock = threading.RLock()
        self._begun = Turn()
        self._objects = self._shared.objects
        self._own_tids = set()
        self._closed = False
        if self._blob_dir is None:
            self._blob_init_no_blobs()
        else:
            self._blob_init(self._blob_dir)
            alsoProvides(self, interfaces.IBlobStorageRestoreable)
        if self._shared.keep_history:
            alsoProvides(self, interfaces.IStorageUndoable)

    # Instances

    def new_instance(self) -> PlimsollStorage:
        """A storage with a snapshot of its own on the same store."""
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(
            {
                name: value
                for name, value in self.__dict__.items()
                if name in ("__name__", "_is_read_only", "_pack_gc", "_blob_dir", "_shared")
                or name.startswith("_crs_")
                or name.endswith("__untransform_record_data")
            }
        )
        with _shared._guard:
            self._shared.users += 1
        other._begin()
        return other

    def release(self) -> None:
        """Gives up the snapshot and the instance."""
        self.close()

    def afterCompletion(self) -> None:
        """Gives up the snapshot between two transactions."""
        self._leave_snapshot()

    def close(self) -> None:
        """Closes it; the last storage on a store closes the store."""
        if self._closed:
            return
        self._closed = True
        self._leave_snapshot()
        _shared.release(self._shared)

    def cleanup(self) -> None:
        """Removes the files of the store, and the files of blobs, of a closed storage. Refuses while anything has the store open.

        >>> import os
        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> storage.close()
        >>> storage.cleanup()
        >>> os.path.exists(path)
        False
        """
        self._check_writable()
        if self._shared.is_open():
            raise StorageError(f"{self._shared.path} is open in this process: close all storages on it before cleanup()")
        _shared.remove(self._shared.path)
        if self._blob_dir is not None:
            self._remove_blobs()

    @property
    def db(self) -> Db:
        """The store, for statistics, backups and the log of changes. Do not write through it.

        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> sorted(storage.db.keyspaces())
        ['default', 'zodb.history', 'zodb.meta', 'zodb.objects', 'zodb.transactions']
        >>> storage.close()
        """
        return self._shared.db

    # Names

    def getName(self) -> str:
        """Its name."""
        return self.__name__

    def sortKey(self) -> str:
        """Where it stands among the databases of one transaction."""
        return f"{self._shared.db.id}:{self.__name__}"

    def __repr__(self) -> str:
        return f"<PlimsollStorage {self.__name__!r}>"

    # The whole database

    def pack(self, t: float, referencesf: Callable[..., Any], gc: bool | None = None) -> None:
        """Gives up revisions that were replaced before `t`, and objects that nothing refers to.

        >>> import time, ZODB
        >>> db = ZODB.DB(plimsoll.zodb.PlimsollStorage(path, memory="64MB"))
        >>> for number in range(3):
        ...     with db.transaction() as connection:
        ...         connection.root()["answer"] = number
        >>> db.pack(time.time() + 1)
        >>> len(db.history(ZODB.utils.z64, size=10))
        1
        >>> db.close()
        """
        self._check_writable()
        self._check_no_turn()
        collect = self._pack_gc if gc is None else gc
        files = self._blob_files if self._blob_dir is not None else lambda: []
        _pack.pack(self._shared, _pack.pack_tid(t), referencesf, collect, files, self._remove_blob)

    def copyTransactionsFrom(self, other: Any, verbose: bool = False) -> None:
        """Copies all transactions, and the blobs, of another storage.

        >>> import ZODB.FileStorage
        >>> source = ZODB.FileStorage.FileStorage(path + ".fs")
        >>> with ZODB.DB(source).transaction() as connection:
        ...     connection.root()["answer"] = 42
        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> storage.copyTransactionsFrom(source)
        >>> storage.lastTransaction() == source.lastTransaction()
        True
        >>> source.close()
        >>> storage.close()
        """
        self._check_begun()
        try:
            if self._blob_dir is not None and hasattr(other, "loadBlob"):
                Blobs.copyTransactionsFrom(self, other)
            else:
                from ZODB.BaseStorage import copy  # type: ignore[import-untyped, import-not-found, unused-ignore]

                copy(other, self, verbose)
        except BaseException:
            # The transactions before it are there; without this, it would keep the turn.
            if self._begun.is_mine:
                self.tpc_abort(self._transaction)
            raise

    def zap_all(self, **_options: object) -> None:
        """Removes everything, at once and for ever.

        >>> import ZODB
        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> with ZODB.DB(storage).transaction() as connection:
        ...     connection.root()["answer"] = 42
        >>> storage.zap_all()
        >>> list(storage.iterator())
        []
        >>> storage.close()
        """
        self._check_writable()
        self._check_no_turn()
        with self._shared.pack_turn.hold(), self._shared.turn.hold():
            with self._shared.db.transaction(ordered=True) as tx:
                kept = tx.keyspace(self._shared.meta).scan()
                for space in (self._shared.objects, self._shared.history, self._shared.transactions, self._shared.meta):
                    tx.keyspace(space).clear()
                names = (_rows.META_FORMAT, _rows.META_KEEP_HISTORY, _rows.META_OID)
                tx.keyspace(self._shared.meta).put_many([(key, value) for key, value in kept if key in names])
            if self._blob_dir is not None:
                self._remove_blobs()
