"""Iteration over transactions and over current records, for copying a database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ZODB.BaseStorage import DataRecord, TransactionRecord  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import POSKeyError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.TimeStamp import TimeStamp  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows

if TYPE_CHECKING:
    from .._native import LiveMapping, ReadMapping, Snapshot
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


def revision(objects: ReadMapping, history: ReadMapping, oid: bytes, tid: bytes) -> bytes | None:
    """The data of a revision in a snapshot: empty if it deletes the object, `None` if it does not
    exist."""
    row = objects.get(oid)
    if row is not None and row[:8] == tid:
        return row[8:]
    return history.get(oid + tid)


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


def tid_at(transactions: LiveMapping, glsn: int) -> bytes:
    """The tid of the newest remaining transaction committed at or before a GLSN."""
    found, low, high = _rows.ZERO, 0, 1 << 64
    # Tids and GLSNs ascend together. This is a binary search over possible tids; each step reads the
    # first existing one.
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


def transactions_between(shared: SharedStore, start: bytes | None, stop: bytes | None) -> Iterator[Transaction]:
    """The transactions from `start` to `stop`, both inclusive, in their current state."""
    snapshot = shared.db.snapshot()
    rows = snapshot.keyspace(_rows.TRANSACTIONS).items(start, None if stop is None else _rows.after(stop))
    for tid, row in rows:
        yield Transaction(tid, _rows.decode_transaction(row), snapshot)


def first_live(objects: LiveMapping, start: bytes | None) -> tuple[bytes, bytes] | None:
    """The current record of the first object from `start` on that is not deleted."""
    while found := objects.scan(start, limit=1):
        oid, row = found[0]
        if len(row) > 8:
            return oid, row
        start = _rows.after(oid)
    return None
