"""Iteration over transactions and over current records, as copies of a database need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ZODB.BaseStorage import DataRecord, TransactionRecord  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import POSKeyError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.TimeStamp import TimeStamp  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows

if TYPE_CHECKING:
    from .._native import Snapshot
    from ._shared import SharedStore


class Transaction(TransactionRecord):  # type: ignore[misc, unused-ignore]
    """A transaction of the database: an iterable of its records that are still there."""

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
    """The data of a revision in a snapshot: empty if it deletes the object, `None` if there is none."""
    row: bytes | None = objects.get(oid)
    if row is not None and row[:8] == tid:
        return row[8:]
    found: bytes | None = history.get(oid + tid)
    return found


def describe(tid: bytes, row: _rows.TransactionRow) -> dict[str, Any]:
    """A transaction as `history` and `undoLog` tell it."""
    entry: dict[str, Any] = {}
    if row.extension:
        entry.update(TransactionRecord(tid, "", b"", b"", row.extension).extension)
    entry.update(time=TimeStamp(tid).timeTime(), user_name=row.user, description=row.description)
    return entry


class Iteration:
    """What a storage lists."""

    _shared: SharedStore

    def iterator(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[Transaction]:
        """The transactions from `start` to `stop`, both included, as they are now."""
        snapshot = self._shared.db.snapshot()
        rows = snapshot.keyspace(_rows.TRANSACTIONS).items(start, None if stop is None else _rows.after(stop))
        for tid, row in rows:
            yield Transaction(tid, _rows.decode_transaction(row), snapshot)

    def record_iternext(self, next: bytes | None = None) -> tuple[bytes, bytes, bytes, bytes | None]:
        """The current record of the first object from `next` on, and the oid of the one after it."""
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
