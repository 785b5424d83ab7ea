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
from ZODB.UndoLogCompatible import UndoLogCompatible  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows
from ._iteration import describe, revision

if TYPE_CHECKING:
    from .._native import ReadMapping, WriteMapping
    from ._shared import SharedStore


class _NotUndoable(Exception):
    """One object of a transaction cannot be undone; the text is the reason."""


def _undo_error(reason: str) -> UndoError:
    """An `UndoError` of the class that ZEO can send to a client."""
    return MultipleUndoErrors([(None, reason)])


class Undo(UndoLogCompatible):  # type: ignore[misc, unused-ignore]
    """The undo operations of a storage."""

    _shared: SharedStore
    _turn_tid: bytes
    _tx_objects: WriteMapping
    _tx_history: WriteMapping
    _tx_transactions: WriteMapping
    _data_tids: dict[bytes, bytes]
    tryToResolveConflict: Callable[..., bytes]
    is_blob_record: Callable[[bytes], bool]
    _check_transaction: Callable[[Any], None]
    _stage_undo: Callable[[bytes], None]
    _write: Callable[[bytes, bytes, bytes], None]
    _copy_blob: Callable[[bytes, bytes, bytes], None]

    def supportsUndo(self) -> bool:
        """Whether there is a history to undo."""
        return self._shared.keep_history

    def undoLog(self, first: int = 0, last: int = -20, filter: Callable[[dict[str, Any]], bool] | None = None) -> list[dict[str, Any]]:
        """The transactions that can be undone, newest first."""
        if last < 0:
            last = first - last
        found: list[dict[str, Any]] = []
        if not self._shared.keep_history:
            return found
        snapshot = self._shared.db.snapshot()
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

    def undo(self, transaction_id: bytes, transaction: Any) -> tuple[None, list[bytes]]:
        """Undoes a transaction at the vote, after the operations given to this transaction before.
        Returns the oids.

        Raises `UndoError` for an unknown transaction; for one that cannot be undone, the vote
        raises it.
        """
        self._check_transaction(transaction)
        try:
            undone = b64decode(transaction_id + b"=" * (-len(transaction_id) % 4), validate=False)
        except ValueError:
            undone = b""
        oids = self._oids_to_undo(self._shared.transactions, undone)
        self._stage_undo(undone)
        return None, oids

    def _oids_to_undo(self, transactions: ReadMapping, undone: bytes) -> list[bytes]:
        row = transactions.get(undone) if len(undone) == 8 else None
        if row is None or not self._shared.keep_history:
            raise _undo_error("Invalid transaction id")
        if undone <= self._shared.meta.get(_rows.META_PACKED, _rows.ZERO):
            raise _undo_error("Undoing a packed transaction")
        return _rows.decode_oids(row)

    def _undo(self, undone: bytes) -> None:
        """Writes the revisions that undo a transaction. Raises `UndoError` if that is not
        possible."""
        restored: dict[bytes, tuple[bytes, bytes, bytes | None]] = {}
        failures: list[tuple[bytes, str]] = []
        for oid in self._oids_to_undo(self._tx_transactions, undone):
            try:
                restored[oid] = self._before(oid, undone)
            except _NotUndoable as error:
                failures.append((oid, str(error)))
        if failures:
            raise MultipleUndoErrors(failures)
        for oid, (current, data, data_tid) in restored.items():
            self._write(oid, current, data)
            if data_tid is not None:
                # The origin may have been packed; the file is that of the previous revision.
                self._data_tids[oid] = self._origin(oid, data_tid)
                if self.is_blob_record(data):
                    self._copy_blob(oid, data_tid, self._turn_tid)

    def _before(self, oid: bytes, undone: bytes) -> tuple[bytes, bytes, bytes | None]:
        """The current row of an object, its new data, and the tid of the revision that this data is
        from."""
        current = self._tx_objects.get(oid)
        taken = revision(self._tx_objects, self._tx_history, oid, undone)
        if current is None or taken is None:
            raise _NotUndoable("The record to undo was packed")
        found = self._tx_history.scan(oid, oid + undone, reverse=True, limit=1)
        before_tid, before = (found[0][0][8:], found[0][1]) if found else (None, b"")
        newest = current[:8]
        same = newest == undone or self._origin(oid, newest) == self._origin(oid, undone) or current[8:] == taken
        if same:
            if not before:
                return current, b"", None
            assert before_tid is not None
            return current, before, before_tid
        if not before:
            raise _NotUndoable("The object was changed since it was created")
        if len(current) > 8 and taken:
            try:
                data = self.tryToResolveConflict(oid, newest, undone, before, committedData=current[8:])
                return current, data, None
            except ConflictError:
                pass
        raise _NotUndoable("Some data were modified by a later transaction")

    def _origin(self, oid: bytes, tid: bytes) -> bytes:
        """The revision whose data this one repeats, or the revision itself."""
        if tid == self._turn_tid:
            return self._data_tids.get(oid, tid)
        row = self._tx_transactions.get(tid)
        return tid if row is None else _rows.decode_transaction(row).data_tids.get(oid, tid)
