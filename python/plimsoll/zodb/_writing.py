"""Two-phase commit: what a ZODB transaction writes is one transaction of the store.

`store` and its kin keep what they are given, beside all who do the same. `tpc_vote` takes the turn, which one transaction of all processes has at a
time: it compares with what was committed last, resolves conflicts, and writes the rows. `tpc_finish` orders the commit, gives the turn away,
and then waits until the commit is durable, in one sync with those that followed. What has to see the newest rows earlier (an undo) takes the turn before the
vote. A transaction that is too large for memory waits for its vote in a file without a name.

Law: `store` does not take the turn. A transaction of several databases stores in all of them, in their order, before it votes in the first: with a turn taken
between, two such transactions could wait for each other.
"""

from __future__ import annotations

import marshal
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from ZODB.blob import remove_committed  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ConflictError,
    POSKeyError,
    ReadConflictError,
    ReadOnlyError,
    StorageTransactionError,
)
from ZODB.utils import newTid  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .._errors import Error
from . import _rows

STAGED_BYTES = 8 << 20
"""What a transaction keeps in memory while it waits for its turn. What is more goes into a file, in parts of this size."""
STAGED_OVERHEAD_BYTES = 200

_STORE, _RESTORE, _DELETE, _CHECK = range(4)

if TYPE_CHECKING:
    from .._native import Transaction, WriteMapping
    from ._shared import SharedStore


class Writing:
    """What a storage writes."""

    _shared: SharedStore
    _own_tids: set[bytes]
    _seen: bytes | None
    _is_read_only: bool
    _transaction: Any = None
    _tid: bytes = _rows.ZERO
    """The tid of the transaction that has the turn."""
    _tx: Transaction | None = None
    """The transaction of the store, while this one has the turn."""
    _tx_objects: WriteMapping
    _tx_history: WriteMapping
    _tx_transactions: WriteMapping
    _begun: threading.Lock
    """Held from `tpc_begin` to the end: an instance commits one transaction at a time."""
    _given_tid: bytes | None
    _staged: list[tuple[int, bytes, bytes, bytes]]
    """What waits for the turn: what to do, the oid, a tid, the data."""
    _staged_bytes: int
    _staged_file: IO[bytes] | None = None
    """The earlier parts of what waits."""
    _staged_blobs: list[tuple[bytes, str]]
    _written: dict[bytes, None]
    _data_tids: dict[bytes, bytes]
    _resolved: list[bytes]
    _status: bytes = b" "
    _undone = False
    _met_conflict = False
    """It was compared with what was committed, and lost."""
    _bytes = 0

    tryToResolveConflict: Callable[..., bytes]
    _take_blob_file: Callable[[str], str]
    _blob_storeblob: Callable[[bytes, bytes, str], None]
    _blob_tpc_abort: Callable[[], None]
    dirty_oids: list[tuple[bytes, bytes]]
    """The blobs whose files go if the transaction is aborted."""
    fshelper: Any

    def isReadOnly(self) -> bool:
        """Whether it refuses to write."""
        return self._is_read_only

    def new_oid(self) -> bytes:
        """An oid for a new object."""
        self._check_writable()
        return self._shared.new_oid()

    def _check_writable(self) -> None:
        if self._is_read_only:
            raise ReadOnlyError()

    def _check_no_turn(self) -> None:
        if self._tx is not None:
            raise StorageTransactionError("a transaction of this storage is being committed: finish or abort it first")

    def _check_transaction(self, transaction: Any) -> None:
        self._check_writable()
        if transaction is None or transaction is not self._transaction:
            raise StorageTransactionError(self, transaction)

    def tpc_begin(self, transaction: Any, tid: bytes | None = None, status: str = " ") -> None:
        """Begins to commit a transaction. Waits for another one that is being committed through this instance."""
        self._check_writable()
        if self._transaction is transaction:
            raise StorageTransactionError("Duplicate tpc_begin calls for same transaction")
        if tid is not None:
            self._check_tid(tid, self._shared.last_tid())
        self._begun.acquire()
        self._given_tid, self._status = tid, status.encode() if isinstance(status, str) else status
        self._staged, self._staged_bytes, self._staged_blobs = [], 0, []
        self._written, self._data_tids, self._resolved = {}, {}, []
        self._undone, self._met_conflict, self._bytes = False, False, 0
        self._transaction = transaction

    def _check_tid(self, tid: bytes, last: bytes) -> None:
        if tid <= last:
            raise StorageTransactionError(f"tid {tid.hex()} is not above the last one, {last.hex()}")

    # What is to be written, kept until the turn.

    def store(self, oid: bytes, serial: bytes, data: bytes, version: str, transaction: Any) -> None:
        """Stores a new revision of an object that was read as `serial`."""
        if transaction is None or transaction is not self._transaction:
            self._check_transaction(transaction)
        assert not version
        self._stage(_STORE, oid, serial, data)

    def restore(self, oid: bytes, serial: bytes, data: bytes | None, version: str, prev_txn: bytes | None, transaction: Any) -> None:
        """Stores a revision as another database had it, without a look at conflicts."""
        self._check_transaction(transaction)
        assert not version
        self._stage(_RESTORE, oid, prev_txn or b"", data or b"")

    def deleteObject(self, oid: bytes, oldserial: bytes, transaction: Any) -> None:
        """Deletes an object that an external garbage collection has found unreachable."""
        self._check_transaction(transaction)
        self._undone = True
        self._take_turn()
        self._stage(_DELETE, oid, oldserial, b"")

    def checkCurrentSerialInTransaction(self, oid: bytes, serial: bytes, transaction: Any) -> None:
        """Refuses the transaction if an object that it relies on has changed."""
        self._check_transaction(transaction)
        self._stage(_CHECK, oid, serial, b"")

    def storeBlob(self, oid: bytes, oldserial: bytes, data: bytes, blobfilename: str, version: str, transaction: Any) -> None:
        """Stores a revision with a file. The file is the storage's from here on."""
        self.store(oid, oldserial, data, version, transaction)
        self._staged_blobs.append((oid, self._take_blob_file(blobfilename)))
        if self._tx is not None:
            self._name_blobs()

    def restoreBlob(
        self, oid: bytes, serial: bytes, data: bytes, blobfilename: str, prev_txn: bytes | None, transaction: Any
    ) -> None:
        """As `restore`, with a file."""
        # A pack may remove a file that has its name while no transaction has the turn.
        self._check_transaction(transaction)
        self._take_turn()
        self.restore(oid, serial, data, "", prev_txn, transaction)
        self._blob_storeblob(oid, serial, blobfilename)

    def _stage(self, kind: int, oid: bytes, tid: bytes, data: bytes) -> None:
        self._staged.append((kind, oid, tid, data))
        self._staged_bytes += len(data) + STAGED_OVERHEAD_BYTES
        if self._tx is not None:
            self._write_staged()
        elif self._staged_bytes > STAGED_BYTES:
            if self._staged_file is None:
                # Beside the store: the folder for temporary files may be in memory.
                self._staged_file = tempfile.TemporaryFile(dir=self._shared.path)
            marshal.dump(self._staged, self._staged_file)
            self._staged, self._staged_bytes = [], 0

    # The turn.

    def _take_turn(self) -> None:
        """From here on no other transaction is committed until this one has ended."""
        if self._tx is not None:
            return
        self._shared.turn.acquire()
        try:
            # Those before it may not be durable yet; this one is not before they are.
            tx = self._shared.db.transaction(ordered=True)
            self._tx_objects = tx.keyspace(self._shared.objects)
            self._tx_history = tx.keyspace(self._shared.history)
            self._tx_transactions = tx.keyspace(self._shared.transactions)
            found = self._tx_transactions.last()
            last = found[0] if found else _rows.ZERO
            if self._given_tid is not None:
                self._check_tid(self._given_tid, last)
            self._tid = self._given_tid or newTid(last)
        except BaseException:
            self._shared.turn.release()
            raise
        self._tx = tx
        self._write_staged()
        self._name_blobs()

    def _name_blobs(self) -> None:
        # Those that have no name yet are removed at the end.
        named = 0
        try:
            for oid, path in self._staged_blobs:
                self._blob_storeblob(oid, self._tid, path)
                named += 1
        finally:
            del self._staged_blobs[:named]

    def _write_staged(self) -> None:
        """Compares what was kept with what is replaced, and writes it."""
        self._met_conflict = True
        file, self._staged_file = self._staged_file, None
        if file is not None:
            with file:
                end, newest = file.tell(), self._staged
                file.seek(0)
                while file.tell() < end:
                    self._staged = marshal.load(file)
                    self._compare_and_write()
            self._staged = newest
        self._compare_and_write()
        self._met_conflict = False

    def _compare_and_write(self) -> None:
        staged, self._staged, self._staged_bytes = self._staged, [], 0
        oids = list(dict.fromkeys(entry[1] for entry in staged))
        rows: dict[bytes, bytes | None] = dict(zip(oids, self._tx_objects.get_many(oids), strict=True))
        objects: dict[bytes, bytes] = {}
        history: dict[bytes, bytes] = {}
        keeps, tid = self._shared.keep_history, self._tid
        for kind, oid, serial, data in staged:
            current = rows[oid]
            # The common case first: no other transaction has changed the object.
            if kind == _STORE and current is not None and current[:8] == serial != tid:
                if keeps:
                    history[oid + serial] = current[8:]
            elif kind == _CHECK:
                self._check_serial(oid, serial, current)
                continue
            else:
                if current is None:
                    self._shared.saw_oid(oid)
                if kind == _STORE:
                    data = self._resolved_data(oid, serial, data, current)
                elif kind == _DELETE:
                    self._check_deletion(oid, serial, current)
                if current is not None and current[:8] != tid and keeps:
                    history[oid + current[:8]] = current[8:]
            if kind == _RESTORE and serial:
                self._data_tids[oid] = serial
            elif self._data_tids:
                self._data_tids.pop(oid, None)
            rows[oid] = objects[oid] = tid + data
        if objects:
            self._tx_objects.put_many(objects)
            self._written.update(dict.fromkeys(objects))
        if history:
            self._tx_history.put_many(history)
        self._bytes += sum(map(len, objects.values())) + sum(map(len, history.values()))

    def _resolved_data(self, oid: bytes, serial: bytes, data: bytes, current: bytes | None) -> bytes:
        if current is None or current[:8] == serial or current[:8] == self._tid:
            return data
        committed = current[:8]
        if len(current) == 8:
            raise ConflictError(oid=oid, serials=(committed, serial), data=data)
        if oid == serial == _rows.ZERO and data == current[8:]:
            # The root of a database that two processes make at once.
            return data
        data = self.tryToResolveConflict(oid, committed, serial, data, committedData=current[8:])
        self._resolved.append(oid)
        return data

    def _check_deletion(self, oid: bytes, serial: bytes, current: bytes | None) -> None:
        if current is None or len(current) == 8:
            raise POSKeyError(oid)
        if current[:8] != serial:
            raise ConflictError(oid=oid, serials=(current[:8], serial))

    def _check_serial(self, oid: bytes, serial: bytes, current: bytes | None) -> None:
        if current is None or len(current) == 8:
            raise POSKeyError(oid)
        if current[:8] != serial and current[:8] != self._tid:
            raise ReadConflictError(oid=oid, serials=(current[:8], serial))

    def _write(self, oid: bytes, current: bytes | None, data: bytes) -> None:
        """Makes `data` the newest revision, and `current` one of the history. For an undo, which has the turn."""
        if current is not None and current[:8] != self._tid and self._shared.keep_history:
            self._tx_history.put(oid + current[:8], current[8:])
            self._bytes += len(current)
        self._tx_objects.put(oid, self._tid + data)
        self._bytes += len(data)
        self._written[oid] = None
        self._data_tids.pop(oid, None)

    # The end.

    def tpc_vote(self, transaction: Any) -> list[bytes]:
        """Promises that `tpc_finish` can commit. The oids whose conflicts were resolved."""
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
        self._tx_transactions.put(self._tid, row.encode())
        return self._resolved

    def tpc_finish(self, transaction: Any, f: Callable[[bytes], object] | None = None) -> bytes:
        """Commits; returns the tid once the transaction is durable."""
        self._check_transaction(transaction)
        tx, tid = self._tx, self._tid
        assert tx is not None, "tpc_vote comes before tpc_finish"
        try:
            ticket = tx.commit_submit()
            self._give_turn()
            ticket.wait()
            if self._seen is not None and not self._undone:
                # The objects of the connection are already as it has stored them.
                self._own_tids.add(tid)
            if f is not None:
                f(tid)
            self._shared.wrote(self._bytes)
        finally:
            if tx.glsn is not None:
                # What `_blob_tpc_finish` does, also if a signal's handler has raised since the commit. In a call, one could raise again.
                self.dirty_oids = []
            self._end()
        return tid

    def tpc_abort(self, transaction: Any) -> None:
        """Forgets a transaction. After a conflict, returns once the commit that it lost to can be read: run again, it would lose to it again."""
        if transaction is None or transaction is not self._transaction:
            return
        met_conflict = self._met_conflict
        try:
            if self._tx is not None:
                self._tx.abort()
            self._blob_tpc_abort()
        finally:
            self._end()
        if met_conflict:
            # A store that is broken says so to the next transaction.
            with suppress(Error):
                self._shared.wait_until_durable()

    def _give_turn(self) -> None:
        if self._tx is not None:
            self._tx = None
            del self._tx_objects, self._tx_history, self._tx_transactions
            self._shared.turn.release()

    def _end(self) -> None:
        self._give_turn()
        blobs, self._staged_blobs = self._staged_blobs, []
        for _, path in blobs:
            # One that could not be named may have been moved.
            with suppress(OSError):
                remove_committed(path)
        if self._staged_file is not None:
            self._staged_file.close()
            self._staged_file = None
        self._staged, self._written, self._data_tids, self._resolved = [], {}, {}, []
        self._transaction = None
        self._begun.release()

    def tpc_transaction(self) -> Any:
        """The transaction that is being committed."""
        return self._transaction


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
