"""Two-phase commit: what a ZODB transaction writes is one transaction of the store.

A transaction holds the commit lock from `tpc_begin` on, so what `store` compares with is what is replaced. Its rows stay invisible
until `tpc_finish`, whose commit is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ZODB.POSException import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ConflictError,
    POSKeyError,
    ReadConflictError,
    ReadOnlyError,
    StorageTransactionError,
)
from ZODB.utils import newTid  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows

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
    """The tid of the transaction that is open."""
    _tx: Transaction | None = None
    _tx_objects: WriteMapping
    _tx_history: WriteMapping
    _written: dict[bytes, None]
    _data_tids: dict[bytes, bytes]
    _resolved: list[bytes]
    _status: bytes = b" "
    _undone = False
    _bytes = 0

    tryToResolveConflict: Callable[..., bytes]
    _blob_tpc_abort: Callable[[], None]
    _blob_tpc_finish: Callable[[], None]
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

    def _check_transaction(self, transaction: Any) -> None:
        self._check_writable()
        if transaction is None or transaction is not self._transaction:
            raise StorageTransactionError(self, transaction)

    def tpc_begin(self, transaction: Any, tid: bytes | None = None, status: str = " ") -> None:
        """Begins to commit a transaction, and waits for another one that is being committed."""
        self._check_writable()
        if self._transaction is transaction:
            raise StorageTransactionError("Duplicate tpc_begin calls for same transaction")
        self._shared.commit_lock.acquire()
        try:
            last = self._shared.last_tid()
            if tid is None:
                tid = newTid(last)
            elif tid <= last:
                raise StorageTransactionError(f"tid {tid.hex()} is not above the last one, {last.hex()}")
            tx = self._shared.db.transaction()
            self._tx_objects = tx.keyspace(self._shared.objects)
            self._tx_history = tx.keyspace(self._shared.history)
        except BaseException:
            self._shared.commit_lock.release()
            raise
        self._tx, self._tid, self._status = tx, tid, status.encode() if isinstance(status, str) else status
        self._written, self._data_tids, self._resolved = {}, {}, []
        self._undone, self._bytes = False, 0
        self._transaction = transaction

    def _write(self, oid: bytes, current: bytes | None, data: bytes) -> None:
        """Makes `data` the newest revision, and `current` one of the history."""
        if current is not None and current[:8] != self._tid and self._shared.keep_history:
            self._tx_history.put(oid + current[:8], current[8:])
            self._bytes += len(current)
        self._tx_objects.put(oid, self._tid + data)
        self._bytes += len(data)
        self._written[oid] = None
        self._data_tids.pop(oid, None)

    def store(self, oid: bytes, serial: bytes, data: bytes, version: str, transaction: Any) -> None:
        """Stores a new revision of an object that was read as `serial`."""
        self._check_transaction(transaction)
        assert not version
        current = self._tx_objects.get(oid)
        if current is None:
            self._shared.saw_oid(oid)
        elif current[:8] != serial and current[:8] != self._tid:
            committed = current[:8]
            if len(current) == 8:
                raise ConflictError(oid=oid, serials=(committed, serial), data=data)
            data = self.tryToResolveConflict(oid, committed, serial, data, committedData=current[8:])
            self._resolved.append(oid)
        self._write(oid, current, data)

    def restore(self, oid: bytes, serial: bytes, data: bytes | None, version: str, prev_txn: bytes | None, transaction: Any) -> None:
        """Stores a revision as another database had it, without a look at conflicts."""
        self._check_transaction(transaction)
        assert not version
        current = self._tx_objects.get(oid)
        if current is None:
            self._shared.saw_oid(oid)
        self._write(oid, current, data or b"")
        if prev_txn is not None:
            self._data_tids[oid] = prev_txn

    def deleteObject(self, oid: bytes, oldserial: bytes, transaction: Any) -> None:
        """Deletes an object that an external garbage collection has found unreachable."""
        self._check_transaction(transaction)
        current = self._tx_objects.get(oid)
        if current is None or len(current) == 8:
            raise POSKeyError(oid)
        if current[:8] != oldserial:
            raise ConflictError(oid=oid, serials=(current[:8], oldserial))
        self._undone = True
        self._write(oid, current, b"")

    def checkCurrentSerialInTransaction(self, oid: bytes, serial: bytes, transaction: Any) -> None:
        """Refuses the transaction if an object that it relies on has changed."""
        self._check_transaction(transaction)
        current = self._tx_objects.get(oid)
        if current is None or len(current) == 8:
            raise POSKeyError(oid)
        if current[:8] != serial and current[:8] != self._tid:
            raise ReadConflictError(oid=oid, serials=(current[:8], serial))

    def tpc_vote(self, transaction: Any) -> list[bytes]:
        """Promises that `tpc_finish` can commit. The oids whose conflicts were resolved."""
        self._check_transaction(transaction)
        tx = self._tx
        assert tx is not None
        extension = getattr(transaction, "extension_bytes", None)
        if extension is None:
            from ZODB._compat import dumps  # type: ignore[import-untyped, import-not-found, unused-ignore]

            extension = dumps(transaction.extension, 3) if transaction.extension else b""
        row = _rows.TransactionRow(
            self._status,
            _as_bytes(transaction.user),
            _as_bytes(transaction.description),
            extension,
            tuple(self._written),
            self._data_tids,
        )
        tx.keyspace(self._shared.transactions).put(self._tid, row.encode())
        return self._resolved

    def tpc_finish(self, transaction: Any, f: Callable[[bytes], object] | None = None) -> bytes:
        """Commits; returns the tid once the transaction is durable."""
        self._check_transaction(transaction)
        tx, tid = self._tx, self._tid
        assert tx is not None
        try:
            tx.commit()
            self._blob_tpc_finish()
            if self._seen is not None and not self._undone:
                # The objects of the connection are already as it has stored them.
                self._own_tids.add(tid)
            if f is not None:
                f(tid)
            self._shared.wrote(self._bytes)
        finally:
            self._end()
        return tid

    def tpc_abort(self, transaction: Any) -> None:
        """Forgets a transaction."""
        if transaction is None or transaction is not self._transaction:
            return
        try:
            if self._tx is not None:
                self._tx.abort()
            self._blob_tpc_abort()
        finally:
            self._end()

    def _end(self) -> None:
        self._tx = None
        del self._tx_objects, self._tx_history
        self._written, self._data_tids, self._resolved = {}, {}, []
        self._transaction = None
        self._shared.commit_lock.release()

    def tpc_transaction(self) -> Any:
        """The transaction that is being committed."""
        return self._transaction


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
