"""`PlimsollStorage`: a ZODB storage on a Plimsoll store.

It is an `IMVCCStorage`: every connection has its own instance, which reads a snapshot and asks the
store for changes when it moves to a newer one. There is no list of instances and none of
invalidations.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ZODB import interfaces  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.ConflictResolution import ConflictResolvingStorage  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import POSKeyError, ReadOnlyError, StorageError, StorageTransactionError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.UndoLogCompatible import UndoLogCompatible  # type: ignore[import-untyped, import-not-found, unused-ignore]
from zope.interface import alsoProvides, implementer  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .._errors import Error
from .._turn import Turn
from . import _pack, _rows, _shared
from ._blobs import Blobs
from ._commit import Commit, check_tid
from ._iteration import Transaction, first_live, glsn_of, tid_at, transactions_between
from ._reading import Announcement, Filter, View, history_of, load_before
from ._undo import oids_to_undo, undo_log, undone_tid

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
class PlimsollStorage(Blobs, UndoLogCompatible, ConflictResolvingStorage):  # type: ignore[misc, unused-ignore]
    """A ZODB storage in the folder `path`.

    `keep_history=False` keeps only the newest revision: no undo, fewer writes. `blob_dir` is the
    folder of blobs; without it, blobs are not supported. With `shared`, other processes may have
    the folder open as well, each with `shared`; `memory_total` then bounds the memory of all their
    stores together, divided equally. `memory` bounds the memory of this process's store.
    `durability` is "sync" (a finished transaction survives a power cut) or "buffered" (it survives
    a crash of the process, but not of the machine). `warm=False` disables reloading hot data after
    a restart, for processes that live for a few transactions. `pack_gc` is whether `pack` collects
    garbage.

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
        """The initial state of an instance."""
        self._lock = threading.RLock()
        self._begun = Turn()
        """Held from `tpc_begin` to the end: an instance commits one transaction at a time."""
        self._view = View(self._shared)
        self._commit: Commit | None = None
        self._announcing: Announcement | None = None
        """A transaction that is being committed and whose callback has not returned."""
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
        """A storage with its own snapshot on the same store."""
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
        """Releases the snapshot and the instance."""
        self.close()

    def afterCompletion(self) -> None:
        """Releases the snapshot between two transactions."""
        self._view.leave()

    def close(self) -> None:
        """Closes it; the last storage on a store closes the store."""
        if self._closed:
            return
        self._closed = True
        self._view.leave()
        _shared.release(self._shared)

    def cleanup(self) -> None:
        """Removes the store's files and the blob files of a closed storage. Fails while the store
        is open anywhere.

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
        """The store, for statistics, backups and the log of changes. Do not write to it.

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
        """Its position among the databases of one transaction."""
        return f"{self._shared.db.id}:{self.__name__}"

    def __repr__(self) -> str:
        return f"<PlimsollStorage {self.__name__!r}>"

    # Reading

    def poll_invalidations(self) -> list[bytes] | None:
        """Moves to the newest commit. Returns the oids changed since the last poll; `None` if they
        are no longer known."""
        return self._view.poll()

    def sync(self, force: bool = True) -> None:
        """Called before a poll; `force` says whether a transaction begins."""
        self._view.begins = force

    def lastTransaction(self) -> bytes:
        """The newest transaction whose invalidations were delivered; for a storage that was never
        polled, the newest transaction. If that transaction's `tpc_finish` here has not called its
        callback yet, waits for the callback, because wrappers invalidate in it. The callback
        itself, and a caller that has waited ten seconds, get the previous transaction."""
        if self._view.seen is not None:
            return self._view.seen
        last = self._shared.last_tid()
        # Order matters: the mark is set before the commit is readable, and removed after the
        # callback.
        announcing = self._announcing
        if announcing is not None and last >= announcing.tid:
            if announcing.wait():
                return last
            before = self._shared.transactions.scan(None, announcing.tid, reverse=True, limit=1)
            return before[0][0] if before else _rows.ZERO
        return last

    def load(self, oid: bytes, version: str = "") -> tuple[bytes, bytes]:
        """The data of an object and its tid."""
        return self._view.load(oid)

    def prefetch(self, oids: Iterable[bytes]) -> None:
        """Loads objects into memory with one call into the store."""
        self._view.objects.get_many(oids)

    def loadBefore(self, oid: bytes, tid: bytes) -> tuple[bytes, bytes, bytes | None] | None:
        """The revision before `tid`: its data, its tid, and the tid of the next one."""
        return load_before(self._shared, oid, tid)

    def loadSerial(self, oid: bytes, serial: bytes) -> bytes:
        """The data of one revision."""
        return self._view.load_serial(oid, serial)

    def getTid(self, oid: bytes) -> bytes:
        """The tid of the newest revision."""
        row = self._shared.objects.get(oid)
        if row is None or len(row) == 8:
            raise POSKeyError(oid)
        return row[:8]

    def history(self, oid: bytes, size: int = 1, filter: Filter | None = None) -> list[dict[str, Any]]:
        """The newest revisions of an object, newest first."""
        return history_of(self._shared, oid, size, filter)

    def __len__(self) -> int:
        # An estimate is good enough for many objects, but zero would make a storage false.
        rough = self._shared.objects.approximate_len()
        return rough if rough > 10_000 else self._shared.objects.count()

    def __bool__(self) -> bool:
        return True

    def getSize(self) -> int:
        """Bytes on disk, without blobs."""
        return int(self._shared.db.stats()["disk_bytes"])

    # Writing

    def isReadOnly(self) -> bool:
        """Whether the storage is read-only."""
        return self._is_read_only

    def new_oid(self) -> bytes:
        """An oid for a new object."""
        self._check_writable()
        return self._shared.new_oid()

    def _check_writable(self) -> None:
        if self._is_read_only:
            raise ReadOnlyError()

    def _check_begun(self) -> None:
        if self._begun.is_mine:
            raise StorageTransactionError("this thread is committing another transaction through this storage; finish or abort it first")

    def _current(self, transaction: Any) -> Commit:
        """The commit of a transaction that has begun here."""
        self._check_writable()
        commit = self._commit
        if commit is None or transaction is None or transaction is not commit.transaction:
            raise StorageTransactionError(self, transaction)
        return commit

    def tpc_begin(self, transaction: Any, tid: bytes | None = None, status: str = " ") -> None:
        """Begins to commit a transaction. Waits for another transaction that is being committed
        through this instance."""
        self._check_writable()
        if self._commit is not None and self._commit.transaction is transaction:
            raise StorageTransactionError("Duplicate tpc_begin calls for same transaction")
        if tid is not None:
            check_tid(tid, self._shared.last_tid())
        self._check_begun()
        hold = self._begun.hold()
        with hold:
            self._commit = Commit(self, self._shared, transaction, hold, tid, _as_bytes(status))
            hold.keep()

    def store(self, oid: bytes, serial: bytes, data: bytes, version: str, transaction: Any) -> None:
        """Stores a new revision of an object that was read as `serial`."""
        commit = self._commit
        if commit is None or transaction is not commit.transaction:
            commit = self._current(transaction)
        assert not version
        if "tryToResolveConflict" in self.__dict__:
            # A ZEO server whose clients resolve conflicts has replaced it. The server collects all
            # conflicts of a transaction from `store`; the vote could report only one.
            commit.raise_conflict(oid, serial, data)
        commit.store(oid, serial, data)

    def restore(self, oid: bytes, serial: bytes, data: bytes | None, version: str, prev_txn: bytes | None, transaction: Any) -> None:
        """Stores a revision copied from another database, without conflict detection."""
        assert not version
        self._current(transaction).restore(oid, prev_txn or b"", data or b"")

    def deleteObject(self, oid: bytes, oldserial: bytes, transaction: Any) -> None:
        """Deletes an object that an external garbage collection has found unreachable."""
        self._current(transaction).delete(oid, oldserial)

    def checkCurrentSerialInTransaction(self, oid: bytes, serial: bytes, transaction: Any) -> None:
        """Fails the transaction if an object that it depends on has changed."""
        self._current(transaction).check(oid, serial)

    def storeBlob(self, oid: bytes, oldserial: bytes, data: bytes, blobfilename: str, version: str, transaction: Any) -> None:
        """Stores a revision with a file, and takes ownership of the file."""
        self.store(oid, oldserial, data, version, transaction)
        self._current(transaction).staged_blobs.append((oid, self._take_blob_file(blobfilename)))

    def restoreBlob(
        self, oid: bytes, serial: bytes, data: bytes, blobfilename: str, prev_txn: bytes | None, transaction: Any
    ) -> None:
        """Like `restore`, with a file."""
        self.restore(oid, serial, data, "", prev_txn, transaction)
        # It gets its name under the turn; otherwise a pack would remove it.
        self._current(transaction).staged_blobs.append((oid, self._take_blob_file(blobfilename)))

    def tpc_vote(self, transaction: Any) -> list[bytes]:
        """Guarantees that `tpc_finish` can commit. Returns the oids whose conflicts were
        resolved."""
        commit = self._current(transaction)
        extension = getattr(transaction, "extension_bytes", None)
        if extension is None:
            from ZODB._compat import dumps  # type: ignore[import-untyped, import-not-found, unused-ignore]

            extension = dumps(transaction.extension, 3) if transaction.extension else b""
        return commit.vote(_as_bytes(transaction.user), _as_bytes(transaction.description), extension)

    def tpc_finish(self, transaction: Any, f: Callable[[bytes], object] | None = None) -> bytes:
        """Commits; returns the tid once the transaction is durable."""
        commit = self._current(transaction)
        tx, tid, hold = commit.tx, commit.tid, commit.hold
        assert tx is not None and hold is not None, "tpc_vote comes before tpc_finish"
        if f is not None:
            # Before the commit can be read: `lastTransaction` must not return its tid until the
            # callback has passed the invalidations to the caller's instances.
            self._announcing = Announcement(tid)
        try:
            try:
                ticket = tx.commit_submit()
            finally:
                # One native call, so that a signal handler raises before or after it.
                hold.give()
            ticket.wait()
            if self._view.seen is not None and not commit.undone:
                # The objects of the connection are already in the state that it stored.
                self._view.own_tids.add(tid)
            if f is not None:
                f(tid)
            self._shared.wrote(commit.bytes)
        finally:
            announced, self._announcing = self._announcing, None
            if announced is not None:
                announced.end()
            if tx.glsn is not None:
                # As in `_blob_tpc_finish`, even if a signal handler has raised since the commit. A
                # call could let one raise again.
                self.dirty_oids = []
            self._end(commit)
        return tid

    def tpc_abort(self, transaction: Any) -> None:
        """Aborts a transaction. After a conflict, returns once the winning commit is readable,
        because a retry would otherwise lose to it again."""
        commit = self._commit
        if commit is None or transaction is None or transaction is not commit.transaction:
            return
        met_conflict, hold = commit.met_conflict, commit.hold
        try:
            if commit.tx is not None:
                commit.tx.abort()
            self._blob_tpc_abort()
        finally:
            try:
                if hold is not None:
                    hold.give()
            finally:
                self._end(commit)
        if met_conflict:
            # A broken store reports the error to the next transaction.
            with suppress(Error):
                self._shared.wait_until_durable()

    def _end(self, commit: Commit) -> None:
        try:
            commit.end()
        finally:
            self._commit = None
            commit.begun.give()

    def tpc_transaction(self) -> Any:
        """The transaction that is being committed."""
        return None if self._commit is None else self._commit.transaction

    # Undo

    def supportsUndo(self) -> bool:
        """Whether there is a history to undo."""
        return self._shared.keep_history

    def undoLog(self, first: int = 0, last: int = -20, filter: Filter | None = None) -> list[dict[str, Any]]:
        """The transactions that can be undone, newest first."""
        return undo_log(self._shared, first, last, filter)

    def undo(self, transaction_id: bytes, transaction: Any) -> tuple[None, list[bytes]]:
        """Undoes a transaction at the vote, after the operations given to this transaction before.
        Returns the oids.

        Raises `UndoError` for an unknown transaction; for one that cannot be undone, the vote
        raises it.
        """
        commit = self._current(transaction)
        undone = undone_tid(transaction_id)
        oids = oids_to_undo(self._shared, self._shared.transactions, undone)
        commit.undo(undone)
        return None, oids

    # Listing. A transaction of ZODB is one commit of the store.

    def glsn_of(self, tid: bytes) -> int:
        """The GLSN of a transaction's commit in the store: its position in `db.log`.

        Raises `POSKeyError` if there is no such transaction, or if a pack has removed it.

        >>> import ZODB
        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> with ZODB.DB(storage).transaction() as connection:
        ...     connection.root()["answer"] = 42
        >>> tid = storage.lastTransaction()
        >>> storage.tid_at(storage.glsn_of(tid)) == tid
        True
        >>> storage.close()
        """
        glsn = glsn_of(self._shared.transactions, tid)
        if glsn is None:
            raise POSKeyError(tid)
        return glsn

    def tid_at(self, glsn: int) -> bytes:
        """The tid of the newest remaining transaction committed at or before a GLSN; `z64` if there
        is none.

        >>> storage = plimsoll.zodb.PlimsollStorage(path, memory="64MB")
        >>> storage.tid_at(storage.db.newest)
        b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
        >>> storage.close()
        """
        return tid_at(self._shared.transactions, glsn)

    def iterator(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[Transaction]:
        """The transactions from `start` to `stop`, both inclusive, in their current state."""
        return transactions_between(self._shared, start, stop)

    def record_iternext(self, next: bytes | None = None) -> tuple[bytes, bytes, bytes, bytes | None]:
        """The current record of the first object from `next` on, and the oid of the following
        object."""
        first = first_live(self._shared.objects, next)
        if first is None:
            raise POSKeyError(next or _rows.ZERO)
        oid, row = first
        second = first_live(self._shared.objects, _rows.after(oid))
        return oid, row[:8], row[8:], second[0] if second else None

    # The whole database

    def pack(self, t: float, referencesf: Callable[..., Any], gc: bool | None = None) -> None:
        """Removes revisions that were replaced before `t`, and unreferenced objects.

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
        self._shared.check_no_turn()
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
            # The earlier transactions are complete; without this, the storage would keep the turn.
            if self._begun.is_mine:
                self.tpc_abort(self.tpc_transaction())
            raise

    def zap_all(self, **_options: object) -> None:
        """Removes everything permanently.

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
        self._shared.check_no_turn()
        with self._shared.pack_turn.hold(), self._shared.turn.hold():
            with self._shared.db.transaction(ordered=True) as tx:
                kept = tx.keyspace(self._shared.meta).scan()
                for space in (self._shared.objects, self._shared.history, self._shared.transactions, self._shared.meta):
                    tx.keyspace(space).clear()
                names = (_rows.META_FORMAT, _rows.META_KEEP_HISTORY, _rows.META_OID)
                tx.keyspace(self._shared.meta).put_many([(key, value) for key, value in kept if key in names])
            if self._blob_dir is not None:
                self._remove_blobs()


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
