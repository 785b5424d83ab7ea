"""The reads of an instance: its snapshot, loads, invalidations.

A polled instance reads the state of its last poll until the next one. An instance that was never
polled (the storage given to a `DB`) reads the newest commit.

ZODB polls when a transaction begins, and also when one ends, because the next one may begin without
a call. After a poll of the second kind, an instance with history holds no snapshot: it reads
current objects, and for those changed since, the revision in the history (`_AsOf`). A snapshot
would retain everything it can read, so an idle connection would keep a pack from reclaiming disk
space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ZODB.POSException import POSKeyError, ReadConflictError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.utils import maxtid  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _rows
from ._iteration import describe

if TYPE_CHECKING:
    from .._native import ReadMapping, Snapshot
    from ._shared import SharedStore


Filter = Callable[[dict[str, Any]], bool]
"""Whether to list a transaction, by its description."""


class _AsOf:
    """The objects as of an earlier transaction, read from the current ones and the history."""

    def __init__(self, shared: SharedStore, tid: bytes) -> None:
        self._shared, self._tid = shared, tid

    def get(self, oid: bytes) -> bytes | None:
        """The row of an object. Raises `ReadConflictError` if a pack may have removed it."""
        row = self._shared.objects.get(oid)
        if row is not None and row[:8] <= self._tid:
            return row
        # If the row was replaced before or since the read above, it is in the history.
        found = self._shared.history.scan(oid, oid + _rows.after(self._tid), reverse=True, limit=1)
        if found:
            key, data = found[0]
            return key[8:] + data
        # A pack records its upper bound before it removes anything.
        if self._shared.meta.get(_rows.META_PACKED, _rows.ZERO) > self._tid:
            raise ReadConflictError("a pack may have removed the state that this connection reads; retry in a new transaction", oid=oid)
        return None

    def get_many(self, oids: Iterable[bytes]) -> list[bytes | None]:
        """Loads current rows into memory."""
        return self._shared.objects.get_many(oids)


class Announcement:
    """A commit whose callback has not returned yet."""

    def __init__(self, tid: bytes) -> None:
        self.tid = tid
        self._thread = threading.get_ident()
        self._made = threading.Event()

    def end(self) -> None:
        """The callback has returned, or the commit has failed."""
        self._made.set()

    def wait(self) -> bool:
        """Whether the callback has returned within ten seconds; the callback never waits for
        itself."""
        return self._thread != threading.get_ident() and self._made.wait(10)


class View:
    """The state that one instance reads: that of its last poll, or the newest commit if it was
    never polled."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared
        self.objects: ReadMapping | _AsOf = shared.objects
        """The objects of the last poll's state, or in the store if there is none."""
        self.seen: bytes | None = None
        """The tid of the newest transaction in the state of the last poll."""
        self.own_tids: set[bytes] = set()
        """The transactions since then whose objects the connection has in its state already."""
        self.begins = True
        """Whether the next poll is for a transaction that begins."""
        self._snapshot: Snapshot | None = None
        self._polled_at = -1
        """The GLSN of the last poll, if its state is still to be read."""

    def poll(self) -> list[bytes] | None:
        """Moves to the newest commit. Returns the oids changed since the last poll; `None` if they
        are no longer known."""
        db = self._shared.db
        begins, self.begins = self.begins, True
        pins = begins or not self._shared.keep_history
        if self._polled_at == db.newest and pins == (self._snapshot is not None):
            return []
        snapshot = db.snapshot()
        transactions = snapshot.keyspace(_rows.TRANSACTIONS)
        last = transactions.last()
        newest = last[0] if last else _rows.ZERO
        seen, own = self.seen, self.own_tids
        changed: list[bytes] | None = []
        if seen is not None and newest != seen:
            packed = snapshot.keyspace(_rows.META).get(_rows.META_PACKED, _rows.ZERO)
            if packed > seen or newest < seen:
                changed = None
            else:
                oids: set[bytes] = set()
                for tid, row in transactions.items(_rows.after(seen)):
                    if tid not in own:
                        oids.update(_rows.decode_oids(row))
                changed = list(oids)
        self.leave()
        self.seen, self.own_tids, self._polled_at = newest, set(), snapshot.glsn
        if pins:
            self._snapshot, self.objects = snapshot, snapshot.keyspace(_rows.OBJECTS)
        else:
            snapshot.close()
            self.objects = _AsOf(self._shared, newest)
        return changed

    def leave(self) -> None:
        """Releases the snapshot."""
        self._polled_at = -1
        self.objects = self._shared.objects
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            snapshot.close()

    def load(self, oid: bytes) -> tuple[bytes, bytes]:
        """The data of an object and its tid."""
        row = self.objects.get(oid)
        if row is None or len(row) == 8:
            raise POSKeyError(oid)
        return row[8:], row[:8]

    def load_serial(self, oid: bytes, serial: bytes) -> bytes:
        """The data of one revision."""
        live = self._shared.objects
        for objects in (live,) if self._snapshot is None else (self.objects, live):
            row = objects.get(oid)
            if row is not None and row[:8] == serial:
                if len(row) == 8:
                    break
                return row[8:]
        data = self._shared.history.get(oid + serial)
        if not data:
            raise POSKeyError(oid, serial)
        return data


def load_before(shared: SharedStore, oid: bytes, tid: bytes) -> tuple[bytes, bytes, bytes | None] | None:
    """The revision before `tid`: its data, its tid, and the tid of the next one."""
    row = shared.objects.get(oid)
    if row is None:
        raise POSKeyError(oid)
    if row[:8] < tid:
        if len(row) == 8:
            raise POSKeyError(oid)
        return row[8:], row[:8], None
    # A revision is in the history from the commit that replaced it, so a row that was current
    # above is found there now.
    history = shared.history
    found = history.scan(oid, oid + tid, reverse=True, limit=1)
    if not found:
        return None
    key, data = found[0]
    if not data:
        raise POSKeyError(oid)
    following = history.scan(_rows.after(key), oid + maxtid, limit=1)
    return data, key[8:], following[0][0][8:] if following else row[:8]


def history_of(shared: SharedStore, oid: bytes, size: int, filter: Filter | None) -> list[dict[str, Any]]:
    """The newest revisions of an object, newest first."""
    snapshot = shared.db.snapshot()
    row = snapshot.keyspace(_rows.OBJECTS).get(oid)
    if row is None:
        raise POSKeyError(oid)
    transactions = snapshot.keyspace(_rows.TRANSACTIONS)
    entries: list[dict[str, Any]] = []

    def add(tid: bytes, length: int) -> bool:
        found = transactions.get(tid)
        if found is not None:
            entry = describe(tid, _rows.decode_transaction(found))
            entry.update(tid=tid, size=length)
            if filter is None or filter(entry):
                entries.append(entry)
        return len(entries) < size

    if size > 0 and add(row[:8], len(row) - 8):
        for key, data in snapshot.keyspace(_rows.HISTORY).items(oid, oid + maxtid, reverse=True):
            if not add(key[8:], len(data)):
                break
    return entries
