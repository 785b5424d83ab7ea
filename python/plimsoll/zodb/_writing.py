"""Two-phase commit: a ZODB transaction is one transaction of the store.

`store` and similar calls stage their arguments, concurrently with other transactions. `tpc_vote`
takes the commit turn, which one transaction of all processes holds at a time: it compares with the
newest commits, resolves conflicts, undoes, and writes the rows in the order of the calls.
`tpc_finish` orders the commit, releases the turn, and then waits until the commit is durable, in
one sync with later commits. A transaction too large for memory is staged in an unnamed file until
its vote.

Invariant: nothing takes the turn before the vote. A transaction of several databases stores, undoes
and deletes in all of them before it votes in the first, and votes in a fixed order; if a turn were
taken in between, two such transactions could deadlock.
"""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from persistent.mapping import PersistentMapping  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.blob import remove_committed  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ConflictError,
    POSKeyError,
    ReadConflictError,
    ReadOnlyError,
    StorageTransactionError,
)
from ZODB.serialize import ObjectWriter  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.utils import newTid  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .._errors import Error
from . import _rows
from ._reading import Announcement

STAGED_BYTES = 8 << 20
"""Bytes that a transaction stages in memory until it has the turn. More is staged in a file, in
parts of this size."""
STAGED_OVERHEAD_BYTES = 200

_EMPTY_ROOT: bytes = ObjectWriter().serialize(PersistentMapping())
"""The object that `ZODB.DB` stores as the root of an empty database."""

_STORE, _RESTORE, _DELETE, _CHECK, _UNDO = range(5)

if TYPE_CHECKING:
    from .._native import Hold, Transaction, WriteMapping
    from .._turn import Turn
    from ._shared import SharedStore


class Writing:
    """The write operations of a storage."""

    _shared: SharedStore
    _own_tids: set[bytes]
    _seen: bytes | None
    _is_read_only: bool
    _transaction: Any = None
    _turn_tid: bytes = _rows.ZERO
    """The tid of the transaction that has the turn. Not `_tid`, because a storage that knows its
    tid before the vote has that, and wrappers rely on it."""
    _tx: Transaction | None = None
    """The transaction of the store, while this one has the turn."""
    _tx_objects: WriteMapping
    _tx_history: WriteMapping
    _tx_transactions: WriteMapping
    _hold: Hold | None = None
    """Of the turn."""
    _announcing: Announcement | None = None
    """The tid of a transaction that is being committed and whose callback has not returned."""
    _begun: Turn
    """Held from `tpc_begin` to the end: an instance commits one transaction at a time."""
    _begun_hold: Hold | None = None
    _given_tid: bytes | None
    _staged: list[tuple[int, bytes, bytes, bytes]]
    """The staged operations: kind, oid, tid, data."""
    _staged_bytes: int
    _staged_file: IO[bytes] | None = None
    """The earlier parts of the staged operations."""
    _staged_blobs: list[tuple[bytes, str]]
    _written: dict[bytes, bytes]
    """The objects that this transaction has written, with the tids of the replaced revisions;
    `_rows.ZERO` for a new object."""
    _data_tids: dict[bytes, bytes]
    _resolved: list[bytes]
    _status: bytes = b" "
    _undone = False
    _met_conflict = False
    """Whether the comparison with newer commits has found a conflict."""
    _bytes = 0

    tryToResolveConflict: Callable[..., bytes]
    _take_blob_file: Callable[[str], str]
    _blob_storeblob: Callable[[bytes, bytes, str], None]
    _blob_tpc_abort: Callable[[], None]
    _undo: Callable[[bytes], None]
    dirty_oids: list[tuple[bytes, bytes]]
    """The blobs whose files are removed if the transaction is aborted."""
    fshelper: Any

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

    def _check_no_turn(self) -> None:
        if self._shared.turn.is_mine:
            raise StorageTransactionError(
                "this thread commits another transaction of this database: finish or abort it first. (In one transaction, a database commits through one "
                "connection, or undoes, once: `DB.undoMultiple` undoes several transactions.)"
            )

    def _check_begun(self) -> None:
        if self._begun.is_mine:
            raise StorageTransactionError("this thread commits another transaction through this storage: finish or abort it first")

    def _check_transaction(self, transaction: Any) -> None:
        self._check_writable()
        if transaction is None or transaction is not self._transaction:
            raise StorageTransactionError(self, transaction)

    def tpc_begin(self, transaction: Any, tid: bytes | None = None, status: str = " ") -> None:
        """Begins to commit a transaction. Waits for another transaction that is being committed
        through this instance."""
        self._check_writable()
        if self._transaction is transaction:
            raise StorageTransactionError("Duplicate tpc_begin calls for same transaction")
        if tid is not None:
            self._check_tid(tid, self._shared.last_tid())
        self._check_begun()
        hold = self._begun.hold()
        with hold:
            self._begun_hold = hold
            self._given_tid, self._status = tid, status.encode() if isinstance(status, str) else status
            self._staged, self._staged_bytes, self._staged_blobs = [], 0, []
            self._written, self._data_tids, self._resolved = {}, {}, []
            self._undone, self._met_conflict, self._bytes = False, False, 0
            self._transaction = transaction
            hold.keep()

    def _check_tid(self, tid: bytes, last: bytes) -> None:
        if tid <= last:
            raise StorageTransactionError(f"tid {tid.hex()} is not above the last one, {last.hex()}")

    # Staged until the turn.

    def store(self, oid: bytes, serial: bytes, data: bytes, version: str, transaction: Any) -> None:
        """Stores a new revision of an object that was read as `serial`."""
        if transaction is None or transaction is not self._transaction:
            self._check_transaction(transaction)
        assert not version
        if "tryToResolveConflict" in self.__dict__:
            # A ZEO server whose clients resolve conflicts has replaced it. It collects the conflicts
            # of a transaction from `store`; the vote could tell one only.
            row = self._shared.objects.get(oid) or _rows.ZERO
            self._resolved_data(oid, serial, data, row[:8], row[8:])
            self._resolved.clear()
        self._stage(_STORE, oid, serial, data)

    def restore(self, oid: bytes, serial: bytes, data: bytes | None, version: str, prev_txn: bytes | None, transaction: Any) -> None:
        """Stores a revision copied from another database, without conflict detection."""
        self._check_transaction(transaction)
        assert not version
        self._stage(_RESTORE, oid, prev_txn or b"", data or b"")

    def deleteObject(self, oid: bytes, oldserial: bytes, transaction: Any) -> None:
        """Deletes an object that an external garbage collection has found unreachable."""
        self._check_transaction(transaction)
        # Report a conflict that is known now; the vote checks again.
        row = self._shared.objects.get(oid) or _rows.ZERO
        self._check_deletion(oid, oldserial, row[:8], row[8:])
        self._undone = True
        self._stage(_DELETE, oid, oldserial, b"")

    def checkCurrentSerialInTransaction(self, oid: bytes, serial: bytes, transaction: Any) -> None:
        """Fails the transaction if an object that it depends on has changed."""
        self._check_transaction(transaction)
        self._stage(_CHECK, oid, serial, b"")

    def storeBlob(self, oid: bytes, oldserial: bytes, data: bytes, blobfilename: str, version: str, transaction: Any) -> None:
        """Stores a revision with a file, and takes ownership of the file."""
        self.store(oid, oldserial, data, version, transaction)
        self._staged_blobs.append((oid, self._take_blob_file(blobfilename)))

    def restoreBlob(
        self, oid: bytes, serial: bytes, data: bytes, blobfilename: str, prev_txn: bytes | None, transaction: Any
    ) -> None:
        """Like `restore`, with a file."""
        self.restore(oid, serial, data, "", prev_txn, transaction)
        # It gets its name under the turn; otherwise a pack would remove it.
        self._staged_blobs.append((oid, self._take_blob_file(blobfilename)))

    def _stage_undo(self, tid: bytes) -> None:
        """Makes the vote undo a transaction, after the operations staged before."""
        self._undone = True
        self._stage(_UNDO, _rows.ZERO, tid, b"")

    def _stage(self, kind: int, oid: bytes, tid: bytes, data: bytes) -> None:
        if self._tx is not None:
            raise StorageTransactionError("the transaction has voted: nothing can be added to it")
        self._staged.append((kind, oid, tid, data))
        self._staged_bytes += len(data) + STAGED_OVERHEAD_BYTES
        if self._staged_bytes > STAGED_BYTES:
            if self._staged_file is None:
                # Beside the store, because the folder for temporary files may be in memory.
                self._staged_file = tempfile.TemporaryFile(dir=self._shared.path)
            marshal.dump(self._staged, self._staged_file)
            self._staged, self._staged_bytes = [], 0

    # The turn.

    def _take_turn(self) -> None:
        """Takes the turn: no other transaction commits until this one has ended."""
        if self._tx is not None:
            return
        self._check_no_turn()
        hold = self._shared.turn.hold()
        with hold:
            # Earlier transactions may not be durable yet; this one becomes durable only after them.
            tx = self._shared.db.transaction(ordered=True)
            self._tx_objects = tx.keyspace(self._shared.objects)
            self._tx_history = tx.keyspace(self._shared.history)
            self._tx_transactions = tx.keyspace(self._shared.transactions)
            found = self._tx_transactions.last()
            last = found[0] if found else _rows.ZERO
            if self._given_tid is not None:
                self._check_tid(self._given_tid, last)
            self._turn_tid = self._given_tid or newTid(last)
            # From here on `tpc_finish` or `tpc_abort` releases the turn.
            self._hold, self._tx = hold, tx
            hold.keep()
        self._write_staged()
        self._name_blobs()

    def _name_blobs(self) -> None:
        # Unnamed files are removed at the end.
        named = 0
        try:
            for oid, path in self._staged_blobs:
                self._blob_storeblob(oid, self._turn_tid, path)
                named += 1
        finally:
            del self._staged_blobs[:named]

    def _write_staged(self) -> None:
        """Compares the staged operations with the revisions they replace, and writes them."""
        self._met_conflict = True
        file, self._staged_file = self._staged_file, None
        if file is not None:
            with file:
                end, newest = file.tell(), self._staged
                file.seek(0)
                while file.tell() < end:
                    self._write_part(marshal.load(file))
            self._staged = newest
        staged, self._staged, self._staged_bytes = self._staged, [], 0
        self._write_part(staged)
        self._met_conflict = False

    def _write_part(self, staged: list[tuple[int, bytes, bytes, bytes]]) -> None:
        begin = 0
        if self._undone:
            for at, (kind, _, tid, _) in enumerate(staged):
                if kind == _UNDO:
                    self._compare_and_write(staged[begin:at])
                    self._undo(tid)
                    begin = at + 1
        self._compare_and_write(staged[begin:])

    def _compare_and_write(self, staged: list[tuple[int, bytes, bytes, bytes]]) -> None:
        oids = list(dict.fromkeys(entry[1] for entry in staged))
        rows: dict[bytes, bytes | None] = dict(zip(oids, self._tx_objects.get_many(oids), strict=True))
        objects: dict[bytes, bytes] = {}
        history: dict[bytes, bytes] = {}
        keeps, tid, written = self._shared.keep_history, self._turn_tid, self._written
        for kind, oid, serial, data in staged:
            current = rows[oid]
            # The common case first: no other transaction has changed the object.
            if kind == _STORE and current is not None and current[:8] == serial != tid:
                written[oid] = serial
                if keeps:
                    history[oid + serial] = current[8:]
            else:
                committed, replaced = self._replaced(oid, current, history)
                if kind == _CHECK:
                    self._check_serial(oid, serial, committed, replaced)
                    continue
                if current is None:
                    self._shared.saw_oid(oid)
                if kind == _STORE:
                    data = self._resolved_data(oid, serial, data, committed, replaced)
                elif kind == _DELETE:
                    self._check_deletion(oid, serial, committed, replaced)
                if oid not in written:
                    written[oid] = committed
                    if committed != _rows.ZERO and keeps:
                        history[oid + committed] = replaced or b""
            if kind == _RESTORE and serial:
                self._data_tids[oid] = serial
            elif self._data_tids:
                self._data_tids.pop(oid, None)
            rows[oid] = objects[oid] = tid + data
        if objects:
            self._tx_objects.put_many(objects)
        if history:
            self._tx_history.put_many(history)
        self._bytes += sum(map(len, objects.values())) + sum(map(len, history.values()))

    def _replaced(self, oid: bytes, current: bytes | None, history: dict[bytes, bytes]) -> tuple[bytes, bytes | None]:
        """Tid and data of the committed revision that this transaction replaces. The data is
        missing if that revision deletes the object, and `None` if it is no longer kept. The tid is
        `_rows.ZERO` for a new object."""
        if current is None:
            return _rows.ZERO, b""
        if current[:8] != self._turn_tid:
            return current[:8], current[8:]
        # Exclude this transaction's own earlier writes, which others do not know.
        committed = self._written[oid]
        key = oid + committed
        return committed, history[key] if key in history else self._tx_history.get(key)

    def _resolved_data(self, oid: bytes, serial: bytes, data: bytes, committed: bytes, replaced: bytes | None) -> bytes:
        if committed in (_rows.ZERO, serial):
            return data
        if not replaced:
            raise ConflictError(oid=oid, serials=(committed, serial), data=data)
        if oid == serial == _rows.ZERO and data in (replaced, _EMPTY_ROOT):
            # Two processes may create the root of a database at once; the other one may have filled
            # it already.
            data = replaced
        else:
            try:
                data = self.tryToResolveConflict(oid, committed, serial, data, committedData=replaced)
            except ConflictError as error:
                # Read by a ZEO server.
                error.data = data
                raise
        self._resolved.append(oid)
        return data

    def _check_deletion(self, oid: bytes, serial: bytes, committed: bytes, replaced: bytes | None) -> None:
        if committed == _rows.ZERO or replaced == b"":
            raise POSKeyError(oid)
        if committed != serial:
            raise ConflictError(oid=oid, serials=(committed, serial))

    def _check_serial(self, oid: bytes, serial: bytes, committed: bytes, replaced: bytes | None) -> None:
        if committed == _rows.ZERO or replaced == b"":
            raise POSKeyError(oid)
        if committed != serial:
            raise ReadConflictError(oid=oid, serials=(committed, serial))

    def _write(self, oid: bytes, current: bytes, data: bytes) -> None:
        """Makes `data` the newest revision and moves `current` to the history. For an undo."""
        if current[:8] != self._turn_tid:
            self._written[oid] = current[:8]
            self._tx_history.put(oid + current[:8], current[8:])
            self._bytes += len(current)
        self._tx_objects.put(oid, self._turn_tid + data)
        self._bytes += len(data)
        self._data_tids.pop(oid, None)

    # The end.

    def tpc_vote(self, transaction: Any) -> list[bytes]:
        """Guarantees that `tpc_finish` can commit. Returns the oids whose conflicts were
        resolved."""
        self._check_transaction(transaction)
        extension = getattr(transaction, "extension_bytes", None)
        if extension is None:
            from ZODB._compat import dumps  # type: ignore[import-untyped, import-not-found, unused-ignore]

            extension = dumps(transaction.extension, 3) if transaction.extension else b""
        texts = _as_bytes(transaction.user), _as_bytes(transaction.description)
        self._take_turn()
        row = _rows.TransactionRow(
            self._status,
            *texts,
            extension,
            tuple(self._written),
            self._data_tids,
        )
        self._tx_transactions.put(self._turn_tid, row.encode())
        return self._resolved

    def tpc_finish(self, transaction: Any, f: Callable[[bytes], object] | None = None) -> bytes:
        """Commits; returns the tid once the transaction is durable."""
        self._check_transaction(transaction)
        tx, tid, hold = self._tx, self._turn_tid, self._hold
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
            if self._seen is not None and not self._undone:
                # The objects of the connection are already in the state that it stored.
                self._own_tids.add(tid)
            if f is not None:
                f(tid)
            self._shared.wrote(self._bytes)
        finally:
            announced, self._announcing = self._announcing, None
            if announced is not None:
                announced.end()
            if tx.glsn is not None:
                # As in `_blob_tpc_finish`, even if a signal handler has raised since the commit. A
                # call could let one raise again.
                self.dirty_oids = []
            self._end()
        return tid

    def tpc_abort(self, transaction: Any) -> None:
        """Aborts a transaction. After a conflict, returns once the winning commit is readable,
        because a retry would otherwise lose to it again."""
        if transaction is None or transaction is not self._transaction:
            return
        met_conflict, hold = self._met_conflict, self._hold
        try:
            if self._tx is not None:
                self._tx.abort()
            self._blob_tpc_abort()
        finally:
            try:
                if hold is not None:
                    hold.give()
            finally:
                self._end()
        if met_conflict:
            # A broken store reports the error to the next transaction.
            with suppress(Error):
                self._shared.wait_until_durable()

    def _end(self) -> None:
        begun = self._begun_hold
        try:
            if self._tx is not None:
                self._tx = self._hold = None
                del self._tx_objects, self._tx_history, self._tx_transactions
            blobs, self._staged_blobs = self._staged_blobs, []
            for _, path in blobs:
                # A file that could not be named may have been moved.
                with suppress(OSError):
                    remove_committed(path)
            if self._staged_file is not None:
                self._staged_file.close()
                self._staged_file = None
            self._staged, self._written, self._data_tids, self._resolved = [], {}, {}, []
        finally:
            self._transaction = self._begun_hold = None
            if begun is not None:
                begun.give()

    def tpc_transaction(self) -> Any:
        """The transaction that is being committed."""
        return self._transaction


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
