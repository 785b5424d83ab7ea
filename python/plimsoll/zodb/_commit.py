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
from typing import IO, TYPE_CHECKING, Any, Protocol

from persistent.mapping import PersistentMapping  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.blob import remove_committed  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.POSException import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ConflictError,
    POSKeyError,
    ReadConflictError,
    StorageTransactionError,
)
from ZODB.serialize import ObjectWriter  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.utils import newTid  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows
from ._undo import Undoing

STAGED_BYTES = 8 << 20
"""Bytes that a transaction stages in memory until it has the turn. More is staged in a file, in
parts of this size."""
STAGED_OVERHEAD_BYTES = 200

_EMPTY_ROOT: bytes = ObjectWriter().serialize(PersistentMapping())
"""The object that `ZODB.DB` stores as the root of an empty database."""

_STORE, _RESTORE, _DELETE, _CHECK, _UNDO = range(5)

if TYPE_CHECKING:
    from .._native import Hold, Transaction, WriteMapping
    from ._shared import SharedStore


class Owner(Protocol):
    """The operations of a storage that its commit calls. They are looked up at each call, because
    wrappers replace them."""

    def tryToResolveConflict(
        self, oid: bytes, committed: bytes, old: bytes, data: bytes, committedData: bytes = ...
    ) -> bytes: ...

    def is_blob_record(self, record: bytes) -> bool: ...

    def _blob_storeblob(self, oid: bytes, serial: bytes, blobfilename: str) -> None: ...

    def _copy_blob(self, oid: bytes, source_tid: bytes, tid: bytes) -> None: ...


class Commit:
    """One transaction of a storage, from `tpc_begin` to its end."""

    def __init__(
        self, owner: Owner, shared: SharedStore, transaction: Any, begun: Hold, tid: bytes | None, status: bytes
    ) -> None:
        self._owner, self._shared = owner, shared
        self.transaction = transaction
        """The transaction of ZODB's transaction manager."""
        self.begun = begun
        """Held until the end: an instance commits one transaction at a time."""
        self._given_tid, self.status = tid, status
        self.tid = _rows.ZERO
        """Assigned with the turn."""
        self.tx: Transaction | None = None
        """The transaction of the store, while this one has the turn."""
        self.hold: Hold | None = None
        """The hold of the turn."""
        self._staged: list[tuple[int, bytes, bytes, bytes]] = []
        """The staged operations: kind, oid, tid, data."""
        self._staged_bytes = 0
        self._staged_file: IO[bytes] | None = None
        """The earlier parts of the staged operations."""
        self.staged_blobs: list[tuple[bytes, str]] = []
        self._written: dict[bytes, bytes] = {}
        """The objects that this transaction has written, with the tids of the replaced revisions;
        `_rows.ZERO` for a new object."""
        self._data_tids: dict[bytes, bytes] = {}
        self.resolved: list[bytes] = []
        """The objects whose conflicts were resolved."""
        self.undone = False
        """Whether it writes objects in a state that its connection does not have."""
        self.met_conflict = False
        """Whether the comparison with newer commits has found a conflict."""
        self.bytes = 0

    # Staged until the turn.

    def store(self, oid: bytes, serial: bytes, data: bytes) -> None:
        """Stages a new revision of an object that was read as `serial`."""
        self._stage(_STORE, oid, serial, data)

    def restore(self, oid: bytes, prev_txn: bytes, data: bytes) -> None:
        """Stages a revision without conflict detection."""
        self._stage(_RESTORE, oid, prev_txn, data)

    def delete(self, oid: bytes, serial: bytes) -> None:
        """Stages a deletion. Raises a conflict that is known now; the vote checks again."""
        row = self._shared.objects.get(oid) or _rows.ZERO
        _check_deletion(oid, serial, row[:8], row[8:])
        self.undone = True
        self._stage(_DELETE, oid, serial, b"")

    def check(self, oid: bytes, serial: bytes) -> None:
        """Stages the condition that an object has not changed."""
        self._stage(_CHECK, oid, serial, b"")

    def undo(self, tid: bytes) -> None:
        """Stages the undo of a transaction, after the operations staged before."""
        self.undone = True
        self._stage(_UNDO, _rows.ZERO, tid, b"")

    def raise_conflict(self, oid: bytes, serial: bytes, data: bytes) -> None:
        """Raises a conflict of a `store` that is known now and cannot be resolved."""
        row = self._shared.objects.get(oid) or _rows.ZERO
        self._resolved_data(oid, serial, data, row[:8], row[8:])
        self.resolved.clear()

    def _stage(self, kind: int, oid: bytes, tid: bytes, data: bytes) -> None:
        if self.tx is not None:
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

    def take_turn(self) -> None:
        """Takes the turn: no other transaction commits until this one has ended."""
        if self.tx is not None:
            return
        self._shared.check_no_turn()
        hold = self._shared.turn.hold()
        with hold:
            # Earlier transactions may not be durable yet; this one becomes durable only after them.
            tx = self._shared.db.transaction(ordered=True)
            self._objects = tx.keyspace(self._shared.objects)
            self._history = tx.keyspace(self._shared.history)
            self._transactions = tx.keyspace(self._shared.transactions)
            found = self._transactions.last()
            last = found[0] if found else _rows.ZERO
            if self._given_tid is not None:
                check_tid(self._given_tid, last)
            self.tid = self._given_tid or newTid(last)
            # From here on `tpc_finish` or `tpc_abort` releases the turn.
            self.hold, self.tx = hold, tx
            hold.keep()
        self._write_staged()
        self._name_blobs()

    def _name_blobs(self) -> None:
        # Unnamed files are removed at the end.
        named = 0
        try:
            for oid, path in self.staged_blobs:
                self._owner._blob_storeblob(oid, self.tid, path)
                named += 1
        finally:
            del self.staged_blobs[:named]

    def _write_staged(self) -> None:
        """Compares the staged operations with the revisions they replace, and writes them."""
        self.met_conflict = True
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
        self.met_conflict = False

    def _write_part(self, staged: list[tuple[int, bytes, bytes, bytes]]) -> None:
        begin = 0
        if self.undone:
            for at, (kind, _, tid, _) in enumerate(staged):
                if kind == _UNDO:
                    self._compare_and_write(staged[begin:at])
                    self._undo(tid)
                    begin = at + 1
        self._compare_and_write(staged[begin:])

    def _undo(self, tid: bytes) -> None:
        """Writes the revisions that undo a transaction. Raises `UndoError` if that is not
        possible."""
        owner = self._owner
        undoing = Undoing(
            self._objects, self._history, self._transactions, self.tid, self._data_tids, owner.tryToResolveConflict
        )
        for oid, (current, data, data_tid) in undoing.restored(self._shared, tid).items():
            self._write(oid, current, data)
            if data_tid is not None:
                # The origin may have been packed; the file is that of the previous revision.
                self._data_tids[oid] = undoing.origin(oid, data_tid)
                if owner.is_blob_record(data):
                    owner._copy_blob(oid, data_tid, self.tid)

    def _compare_and_write(self, staged: list[tuple[int, bytes, bytes, bytes]]) -> None:
        oids = list(dict.fromkeys(entry[1] for entry in staged))
        rows: dict[bytes, bytes | None] = dict(zip(oids, self._objects.get_many(oids), strict=True))
        objects: dict[bytes, bytes] = {}
        history: dict[bytes, bytes] = {}
        keeps, tid, written = self._shared.keep_history, self.tid, self._written
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
                    _check_serial(oid, serial, committed, replaced)
                    continue
                if current is None:
                    self._shared.saw_oid(oid)
                if kind == _STORE:
                    data = self._resolved_data(oid, serial, data, committed, replaced)
                elif kind == _DELETE:
                    _check_deletion(oid, serial, committed, replaced)
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
            self._objects.put_many(objects)
        if history:
            self._history.put_many(history)
        self.bytes += sum(map(len, objects.values())) + sum(map(len, history.values()))

    def _replaced(self, oid: bytes, current: bytes | None, history: dict[bytes, bytes]) -> tuple[bytes, bytes | None]:
        """Tid and data of the committed revision that this transaction replaces. The data is
        missing if that revision deletes the object, and `None` if it is no longer kept. The tid is
        `_rows.ZERO` for a new object."""
        if current is None:
            return _rows.ZERO, b""
        if current[:8] != self.tid:
            return current[:8], current[8:]
        # Exclude this transaction's own earlier writes, which others do not know.
        committed = self._written[oid]
        key = oid + committed
        return committed, history[key] if key in history else self._history.get(key)

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
                data = self._owner.tryToResolveConflict(oid, committed, serial, data, committedData=replaced)
            except ConflictError as error:
                # Read by a ZEO server.
                error.data = data
                raise
        self.resolved.append(oid)
        return data

    def _write(self, oid: bytes, current: bytes, data: bytes) -> None:
        """Makes `data` the newest revision and moves `current` to the history. For an undo."""
        if current[:8] != self.tid:
            self._written[oid] = current[:8]
            self._history.put(oid + current[:8], current[8:])
            self.bytes += len(current)
        self._objects.put(oid, self.tid + data)
        self.bytes += len(data)
        self._data_tids.pop(oid, None)

    # The end.

    def vote(self, user: bytes, description: bytes, extension: bytes) -> list[bytes]:
        """Takes the turn and writes everything, so that nothing but the commit is left. Returns the
        oids whose conflicts were resolved."""
        self.take_turn()
        oids = tuple(self._written)
        row = _rows.TransactionRow(self.status, user, description, extension, oids, self._data_tids)
        self._transactions.put(self.tid, row.encode())
        return self.resolved

    def end(self) -> None:
        """Releases its memory and files; not the turn, and not the instance."""
        if self.tx is not None:
            self.tx = self.hold = None
            del self._objects, self._history, self._transactions
        blobs, self.staged_blobs = self.staged_blobs, []
        for _, path in blobs:
            # A file that could not be named may have been moved.
            with suppress(OSError):
                remove_committed(path)
        if self._staged_file is not None:
            self._staged_file.close()
            self._staged_file = None


def check_tid(tid: bytes, last: bytes) -> None:
    """Raises `StorageTransactionError` unless a given tid is above the last one."""
    if tid <= last:
        raise StorageTransactionError(f"tid {tid.hex()} is not above the last one, {last.hex()}")


def _check_deletion(oid: bytes, serial: bytes, committed: bytes, replaced: bytes | None) -> None:
    if committed == _rows.ZERO or replaced == b"":
        raise POSKeyError(oid)
    if committed != serial:
        raise ConflictError(oid=oid, serials=(committed, serial))


def _check_serial(oid: bytes, serial: bytes, committed: bytes, replaced: bytes | None) -> None:
    if committed == _rows.ZERO or replaced == b"":
        raise POSKeyError(oid)
    if committed != serial:
        raise ReadConflictError(oid=oid, serials=(committed, serial))
