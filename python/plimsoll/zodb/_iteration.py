"""Iteration over transactions and over current records, for copying a database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ZODB.BaseStorage import DataRecord, TransactionRecord  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import POSKeyError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.TimeStamp import TimeStamp  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows

if TYPE_CHECKING:
    from .._native import LiveMapping, Snapshot
    from ._shared import SharedStore


class Transaction(TransactionRecord):  # type: ignore[misc, unused-ignore]
    """A transaction of the database: an iterable of its remaining records."""

    def __init__(self, tid: bytes, row: _rows.TransactionRow, snapshot: Snapshot) -> None:
        super().__init__(tid, row.status.decode(), row.user, row.description, row.extension)
        self._row = row
        self._snapshot = snapshot

    def __iter__(self) -> Iterator[DataRecord]:
        objects = self._snapshot.keyspace(_rows.OBJECTS)
        history = self._snapshot.keyspace(_rows.HISTORY)
        for oid in self._row.oids:
            data = revision(objects, history, oid, self.tid)
            if data is None:
                continue
            repeated = self._row.data_tids.get(oid)
            if repeated is not None and not revision(objects, history, oid, repeated):
                repeated = None
            yield DataRecord(oid, self.tid, data or None, repeated)


def revision(objects: Any, history: Any, oid: bytes, tid: bytes) -> bytes | None:
    """The data of a revision in a snapshot: empty if it deletes the object, `None` if it does not
    exist."""
    row: bytes | None = objects.get(oid)
    if row is not None and row[:8] == tid:
        return row[8:]
    found: bytes | None = history.get(oid + tid)
    return found


def describe(tid: bytes, row: _rows.TransactionRow) -> dict[str, Any]:
    """A transaction in the format of `history` and `undoLog`."""
    entry: dict[str, Any] = {}
    if row.extension:
        entry.update(TransactionRecord(tid, "", b"", b"", row.extension).extension)
    entry.update(time=TimeStamp(tid).timeTime(), user_name=row.user, description=row.description)
    return entry


def glsn_of(transactions: LiveMapping, tid: bytes) -> int | None:
    """The GLSN of a transaction's commit; `None` if there is none."""
    newest = next(transactions.history(tid), None)
    row = None if newest is None else newest.value()
    if newest is None or row is None:
        return None
    return _rows.decode_transaction(row).glsn or newest.glsn


class Iteration:
    """The listing operations of a storage."""

    _shared: SharedStore

    # A transaction of ZODB is one commit of the store.

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
        transactions = self._shared.transactions
        found, low, high = _rows.ZERO, 0, 1 << 64
        # Tids and GLSNs ascend together. This is a binary search over possible tids; each step
        # reads the first existing one.
        while low < high:
            middle = (low + high) // 2
            first = transactions.scan(middle.to_bytes(8, "big"), limit=1)
            tid = first[0][0] if first else b"\xff" * 8
            at = glsn_of(transactions, tid) if first else None
            if at is not None and at <= glsn:
                found, low = tid, int.from_bytes(tid, "big") + 1
            else:
                high = middle
        return found

    def iterator(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[Transaction]:
        """The transactions from `start` to `stop`, both inclusive, in their current state."""
        snapshot = self._shared.db.snapshot()
        rows = snapshot.keyspace(_rows.TRANSACTIONS).items(start, None if stop is None else _rows.after(stop))
        for tid, row in rows:
            yield Transaction(tid, _rows.decode_transaction(row), snapshot)

    def record_iternext(self, next: bytes | None = None) -> tuple[bytes, bytes, bytes, bytes | None]:
        """The current record of the first object from `next` on, and the oid of the following
        object."""
        first = self._first_live(next)
        if first is None:
            raise POSKeyError(next or _rows.ZERO)
        oid, row = first
        second = self._first_live(_rows.after(oid))
        return oid, row[:8], row[8:], second[0] if second else None

    def _first_live(self, start: bytes | None) -> tuple[bytes, bytes] | None:
        while found := self._shared.objects.scan(start, limit=1):
            oid, row = found[0]
            if len(row) > 8:
                return oid, row
            start = _rows.after(oid)
        return None
