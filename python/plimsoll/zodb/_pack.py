"""Pack: removes revisions older than a moment, and unreferenced objects.

1. Mark, in a snapshot, beside writers: the objects reachable from the root, as of the moment and in
   every revision since.
2. Sweep, holding the commit turn: first mark from the commits made meanwhile, then remove rows in
   batches. Each batch is a commit that leaves a consistent database: revisions are removed before
   the transactions that list them.
3. Compact, beside writers: until the removals are merged, the index refers to the removed rows, and
   the log cannot free them.

Blob files are removed last: each file that existed before the sweep and belongs to no revision,
including leftovers of a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ZODB.TimeStamp import TimeStamp  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .._errors import Behind, Closed, NotKeeper, OutOfBudget, Poisoned, Stalled
from . import _rows
from ._iteration import glsn_of

if TYPE_CHECKING:
    from .._native import ReadMapping, Snapshot
    from ._shared import SharedStore

BATCH = 5_000
"""Number of rows removed per commit."""

_TRIED_LATER = (Behind, Closed, NotKeeper, OSError, OutOfBudget, Poisoned, Stalled)
"""Errors of reclaiming space that do not harm the pack. Damage is reported."""

References = Callable[..., Any]


def pack(
    store: SharedStore,
    until: bytes,
    references: References,
    collect: bool,
    blob_files: Callable[[], list[tuple[bytes, bytes]]],
    remove_blob: Callable[[bytes, bytes], None],
) -> None:
    """Packs the database up to `until`; collects garbage if `collect` is true."""
    with store.pack_turn.hold():
        snapshot = store.db.snapshot()
        last = snapshot.keyspace(_rows.TRANSACTIONS).last()
        if last is None:
            return
        newest = last[0]
        until = min(until, newest)
        live: set[bytes] | None = None
        if collect:
            live = set()
            mark(snapshot, _roots(snapshot, until, _rows.ZERO), references, until, live)
        files = blob_files()
        with store.turn.hold():
            # Every listed file belongs to a transaction that has ended by now, and a snapshot
            # includes that transaction once it is durable.
            store.wait_until_durable()
            now = store.db.snapshot()
            if live is not None and now.glsn != snapshot.glsn:
                mark(now, _roots(now, until, newest), references, until, live)
            snapshot.close()
            _Sweep(store, now, until, live).run()
            now.close()
            for oid, tid in files:
                if not _has_revision(store, oid, tid):
                    remove_blob(oid, tid)
        # The removals are committed, whether or not this process, or the one that compacts for all,
        # reclaims the space now.
        with suppress(*_TRIED_LATER):
            store.db.compact()
            # Include the newest commit; otherwise its segment cannot be freed.
            store.db.log.trim(store.db.newest + 1)


def pack_tid(t: float) -> bytes:
    """The greatest tid of a time in seconds since 1970."""
    import time

    seconds = t % 60
    tid: bytes = TimeStamp(*time.gmtime(t)[:5], seconds).raw()
    return tid


def _roots(snapshot: Snapshot, until: bytes, since: bytes) -> list[bytes]:
    """The root, and the objects written after the moment and after `since`."""
    roots = [_rows.ZERO]
    for _, row in snapshot.keyspace(_rows.TRANSACTIONS).items(_rows.after(max(until, since))):
        roots.extend(_rows.decode_oids(row))
    return roots


def mark(snapshot: Snapshot, roots: list[bytes], references: References, until: bytes, live: set[bytes]) -> None:
    """Adds the objects reachable from `roots` to `live`: as of `until` and in every revision
    since."""
    objects = snapshot.keyspace(_rows.OBJECTS)
    history = snapshot.keyspace(_rows.HISTORY)
    # Visit objects written since the first mark again, because their new revisions may refer to
    # more objects.
    again = set(roots)
    todo = list(again)
    live.update(again)
    while todo:
        oid = todo.pop()
        found: list[bytes] = []
        for data in _kept(objects, history, oid, until):
            references(data, found)
        for other in found:
            if other not in live:
                live.add(other)
                todo.append(other)


def _kept(objects: ReadMapping, history: ReadMapping, oid: bytes, until: bytes) -> Iterator[bytes]:
    """The data of the revisions that a pack keeps: the one at the moment, and all later ones."""
    row = objects.get(oid)
    if row is None:
        return
    if len(row) > 8:
        yield row[8:]
    if row[:8] <= until:
        return
    for key, data in history.items(oid, oid + b"\xff" * 8, reverse=True):
        if data:
            yield data
        if key[8:] <= until:
            return


def _has_revision(store: SharedStore, oid: bytes, tid: bytes) -> bool:
    row = store.objects.get(oid)
    return (row is not None and row[:8] == tid) or oid + tid in store.history


class _Sweep:
    """Removes unmarked objects in batches. The caller holds the turn."""

    def __init__(self, store: SharedStore, snapshot: Snapshot, until: bytes, live: set[bytes] | None) -> None:
        self.store, self.snapshot, self.until, self.live = store, snapshot, until, live
        self.objects: list[bytes] = []
        self.history: list[bytes] = []

    def run(self) -> None:
        """Removes revisions, then their entries in transactions."""
        # First, because an instance that has not seen the removal must not ask which transactions
        # existed.
        packed = max(self.store.meta.get(_rows.META_PACKED, _rows.ZERO), self.until)
        self.store.meta.put(_rows.META_PACKED, packed)
        older = _Peek(self.snapshot.keyspace(_rows.HISTORY).items())
        for oid, row in self.snapshot.keyspace(_rows.OBJECTS).items():
            revisions = [(key[8:], data) for key, data in older.group(oid)]
            self._object(oid, row, revisions)
            if len(self.objects) + len(self.history) >= BATCH:
                self._flush()
        self._flush()
        self._transactions()

    def _object(self, oid: bytes, row: bytes, revisions: list[tuple[bytes, bytes]]) -> None:
        current, deleted = row[:8], len(row) == 8
        if current <= self.until:
            at_moment = current
            unreachable = self.live is not None and oid not in self.live and oid != _rows.ZERO
            if deleted or unreachable:
                self.objects.append(oid)
                at_moment = b"\xff" * 8
        else:
            at_moment = max((tid for tid, _ in revisions if tid <= self.until), default=_rows.ZERO)
        for tid, data in revisions:
            if tid < at_moment or (tid == at_moment and not data):
                self.history.append(oid + tid)

    def _flush(self) -> None:
        if self.objects or self.history:
            with self.store.db.transaction() as tx:
                tx.keyspace(self.store.objects).delete_many(self.objects)
                tx.keyspace(self.store.history).delete_many(self.history)
        self.objects, self.history = [], []

    def _transactions(self) -> None:
        """Removes the records from transactions up to the moment; a transaction without records is
        removed, unless it is the newest."""
        objects, history, transactions = self.store.objects, self.store.history, self.store.transactions
        newest = self.store.last_tid()
        changed: dict[bytes, bytes] = {}
        gone: list[bytes] = []
        for tid, row in self.snapshot.keyspace(_rows.TRANSACTIONS).items(None, _rows.after(self.until)):
            found = _rows.decode_transaction(row)
            rows = objects.get_many(found.oids)
            older = history.get_many([oid + tid for oid in found.oids])
            oids = tuple(
                oid
                for oid, current, past in zip(found.oids, rows, older, strict=True)
                if past is not None or (current is not None and current[:8] == tid)
            )
            if not oids and tid != newest:
                gone.append(tid)
                continue
            left = set(oids)
            repeats = {oid: data_tid for oid, data_tid in found.data_tids.items() if oid in left}
            packed = found._replace(status=b"p", oids=oids, data_tids=repeats)
            if packed == found:
                continue
            # The row written now belongs to another commit.
            glsn = found.glsn or glsn_of(transactions, tid) or 0
            changed[tid] = packed._replace(glsn=glsn).encode()
            if len(changed) >= BATCH:
                transactions.put_many(changed)
                changed = {}
        transactions.put_many(changed)
        transactions.delete_many(gone)


class _Peek:
    """Reads the rows of the history in order, object by object."""

    def __init__(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def group(self, oid: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows of one object. Objects must be requested in order."""
        while self._next is not None and self._next[0][:8] <= oid:
            row = self._next
            self._next = next(self._rows, None)
            if row[0][:8] == oid:
                yield row
