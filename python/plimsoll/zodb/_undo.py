"""Undo: a new transaction that restores objects to their state before an earlier one.

If an object was changed again since, by others or earlier in the same transaction, conflict
resolution decides: its class merges the newer change into the older state. Data that the
transaction stores after the undo replaces the restored data, as in `FileStorage`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ZODB.POSException import ConflictError, MultipleUndoErrors, UndoError  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows
from ._iteration import describe, revision
from ._reading import Filter

if TYPE_CHECKING:
    from .._native import ReadMapping
    from ._shared import SharedStore


class _NotUndoable(Exception):
    """One object of a transaction cannot be undone; the text is the reason."""


def _undo_error(reason: str) -> UndoError:
    """An `UndoError` of the class that ZEO can send to a client."""
    return MultipleUndoErrors([(None, reason)])


def undo_log(shared: SharedStore, first: int, last: int, filter: Filter | None) -> list[dict[str, Any]]:
    """The transactions that can be undone, newest first."""
    if last < 0:
        last = first - last
    found: list[dict[str, Any]] = []
    if not shared.keep_history:
        return found
    snapshot = shared.db.snapshot()
    packed = snapshot.keyspace(_rows.META).get(_rows.META_PACKED, _rows.ZERO)
    position = 0
    for tid, row in snapshot.keyspace(_rows.TRANSACTIONS).items(_rows.after(packed), reverse=True):
        if position >= last:
            break
        entry = describe(tid, _rows.decode_transaction(row))
        entry["id"] = b64encode(tid)
        if filter is None or filter(entry):
            if position >= first:
                found.append(entry)
            position += 1
    return found


def undone_tid(transaction_id: bytes) -> bytes:
    """The tid in an id of `undo_log`; empty if it is none."""
    try:
        return b64decode(transaction_id + b"=" * (-len(transaction_id) % 4), validate=False)
    except ValueError:
        return b""


def oids_to_undo(shared: SharedStore, transactions: ReadMapping, undone: bytes) -> list[bytes]:
    """The objects of a transaction that may be undone. Raises `UndoError` for any other."""
    row = transactions.get(undone) if len(undone) == 8 else None
    if row is None or not shared.keep_history:
        raise _undo_error("Invalid transaction id")
    if undone <= shared.meta.get(_rows.META_PACKED, _rows.ZERO):
        raise _undo_error("Undoing a packed transaction")
    return _rows.decode_oids(row)


class Undoing:
    """Undoes transactions in the state of a transaction that has the turn.

    `tid` is the tid of that transaction, and `data_tids` are its repeated records.
    """

    def __init__(
        self,
        objects: ReadMapping,
        history: ReadMapping,
        transactions: ReadMapping,
        tid: bytes,
        data_tids: dict[bytes, bytes],
        resolve: Callable[..., bytes],
    ) -> None:
        self._objects, self._history, self._transactions = objects, history, transactions
        self._tid, self._data_tids, self._resolve = tid, data_tids, resolve

    def restored(self, shared: SharedStore, undone: bytes) -> dict[bytes, tuple[bytes, bytes, bytes | None]]:
        """For each object of a transaction: the current row, the data that undoes the transaction,
        and the tid of the revision that this data is from. Raises `UndoError` if one cannot be
        undone."""
        restored: dict[bytes, tuple[bytes, bytes, bytes | None]] = {}
        failures: list[tuple[bytes, str]] = []
        for oid in oids_to_undo(shared, self._transactions, undone):
            try:
                restored[oid] = self._before(oid, undone)
            except _NotUndoable as error:
                failures.append((oid, str(error)))
        if failures:
            raise MultipleUndoErrors(failures)
        return restored

    def _before(self, oid: bytes, undone: bytes) -> tuple[bytes, bytes, bytes | None]:
        """The current row of an object, its new data, and the tid of the revision that this data is
        from."""
        current = self._objects.get(oid)
        taken = revision(self._objects, self._history, oid, undone)
        if current is None or taken is None:
            raise _NotUndoable("The record to undo was packed")
        found = self._history.scan(oid, oid + undone, reverse=True, limit=1)
        before_tid, before = (found[0][0][8:], found[0][1]) if found else (None, b"")
        newest = current[:8]
        same = newest == undone or self.origin(oid, newest) == self.origin(oid, undone) or current[8:] == taken
        if same:
            if not before:
                return current, b"", None
            assert before_tid is not None
            return current, before, before_tid
        if not before:
            raise _NotUndoable("The object was changed since it was created")
        if len(current) > 8 and taken:
            try:
                data = self._resolve(oid, newest, undone, before, committedData=current[8:])
                return current, data, None
            except ConflictError:
                pass
        raise _NotUndoable("Some data were modified by a later transaction")

    def origin(self, oid: bytes, tid: bytes) -> bytes:
        """The revision whose data this one repeats, or the revision itself."""
        if tid == self._tid:
            return self._data_tids.get(oid, tid)
        row = self._transactions.get(tid)
        return tid if row is None else _rows.decode_transaction(row).data_tids.get(oid, tid)
