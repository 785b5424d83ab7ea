"""The rows of one cache in a store, and the indexes that find them by age, use, expiry and tag.

One keyspace holds all rows and indexes; the first byte of a key is its kind:

    _   counters, settings, and whether rows may have files
    r   <key>                       the row: a head, and the value if it is short
    v   <value id><piece>           a piece of a long value
    o   <row id>                    the key, in the order of insertion
    e   <time><row id>              a row that expires then
    p   <rank><row id>              a row in the order of eviction: by a time or the number of uses
    t   <hash of the tag><row id>   a row with this tag

Invariant: every change of a row changes its indexes and the counters in the same transaction.

Under the policy "least-recently-stored", an overwritten row keeps its rank, stored in `accessed`,
which saves two of three index changes. Eviction re-ranks such a row when it reaches the front. A
rank is never later than the time of storing, so the row evicted is the one stored first.

Rows do not use the store's own expiry. A row that vanished by itself would leave its index keys,
its counters and its file behind, and `expire` takes any time.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ._codec import DISK, dump_json, file_of
from ._disk import Disk
from ._store import DISK_ERRORS, CacheStore, Timeout, opening

if TYPE_CHECKING:
    from .._native import ReadMapping, Snapshot, Transaction, WriteMapping

DEFAULT_SETTINGS: dict[str, Any] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "size_limit": 2**30,
    "cull_limit": 10,
    "disk_min_file_size": 2**15,
    "disk_pickle_protocol": pickle.HIGHEST_PROTOCOL,
}
"""Settings for opening and `Cache.reset`; a custom `Disk` adds its own with the prefix `disk_`.
They are kept in the store."""

EVICTION_POLICIES = ("none", "least-recently-stored", "least-recently-used", "least-frequently-used")

PIECE_BYTES = 64 << 10
ROW_OVERHEAD_BYTES = 160
"""The size charged for the indexes of a row."""
RANKED_MAX = 1_000
"""Maximum number of rows that one eviction re-ranks. Beyond them, it evicts the rows with the
oldest rank."""
TOUCHED_MAX = 10_000
"""Number of uses buffered in memory before they are written to the rows."""
TOUCHED_SECONDS = 1.0
"""How long uses are buffered if other processes evict too."""

_HEAD = struct.Struct(">QdddQQQQII")
_AFTER_1970 = struct.Struct(">BdQ")
_BEFORE_1970 = struct.Struct(">BQQ")
"""A time and a row id. Encoded times compare as numbers: 1 and the bits of the number, or for a
negative number 0 and the inverted bits."""
_RANK = struct.Struct(">QQ")
_ID = struct.Struct(">Q")
_BITS = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_ALL_BITS = (1 << 64) - 1
_PIECE = struct.Struct(">QI")
_COUNTERS = struct.Struct(">QQQQQ")
_COUNTERS_KEY, _SETTINGS_KEY, _FILES_KEY = b"_counters", b"_settings", b"_files"


class Row(NamedTuple):
    """The head of a row, its tag, its key if stored under its hash, and the value if stored with
    the row."""

    id: int
    stored: float
    expires: float
    accessed: float
    uses: int
    size: int
    value_id: int
    value_bytes: int
    tag: bytes
    long_key: bytes
    value: bytes

    @classmethod
    def load(cls, data: bytes) -> Row:
        *numbers, tag_bytes, key_bytes = _HEAD.unpack_from(data)
        tag_end = _HEAD.size + tag_bytes
        key_end = tag_end + key_bytes
        return cls._make((*numbers, data[_HEAD.size : tag_end], data[tag_end:key_end], data[key_end:]))

    @property
    def file(self) -> tuple[str, int] | None:
        """Name and size of the value's file, if a `Disk` wrote one."""
        return file_of(self.value)

    def dump(self) -> bytes:
        head = _HEAD.pack(*self[:8], len(self.tag), len(self.long_key))
        return b"".join((head, self.tag, self.long_key, self.value))


class NewRow(NamedTuple):
    """The arguments of `set`, `add` and `push`."""

    key: Any
    value: Any
    expire: float | None
    read: bool
    tag: Any
    retry: bool
    only_new: bool = False
    full: bytes | None = None
    """The stored form of the key, if the disk does not provide it."""


class Table:
    """The rows, counters and settings of one cache. Methods with a parameter `rows` run in a
    transaction of the store."""

    def __init__(self, store: CacheStore, name: str) -> None:
        self.store = store
        self.name = name
        self.committed = store.db.keyspace("cache:" + name, retention="latest")
        self.touched: dict[bytes, tuple[float, int]] = {}
        self.count = self.size = self._next_id = self.hits = self.misses = 0
        self._saved = self._saving = self._counters()
        self._settings_row: bytes | None = b""
        self._next_expiry = 0.0
        self._flushed = time.monotonic()
        self.disk: Disk | None = None
        """The disk of the cache that is writing: it removes the files of rows."""
        self.refresh(self.committed)
        self.is_unread = True
        """No transaction of this process has read the counters yet, so others may have changed them
        while the table was created."""

    # Transactions.

    def rows(self) -> ReadMapping:
        """The view of this thread: its transaction, or the committed state."""
        transaction = self.store.transaction
        return self.committed if transaction is None else transaction.keyspace(self.committed)

    def refresh(self, rows: ReadMapping) -> None:
        """Refreshes the counters and settings from the store, because another process may have
        changed them. Keeps the hits and misses of this process."""
        counters, settings = rows.get_many([_COUNTERS_KEY, _SETTINGS_KEY])
        stored: tuple[int, int, int, int, int] = _COUNTERS.unpack(counters or bytes(_COUNTERS.size))
        self.hits += stored[3] - self._saved[3]
        self.misses += stored[4] - self._saved[4]
        self.count, self.size, self._next_id = stored[:3]
        self._saved = self._saving = stored
        self.is_unread = False
        self._next_expiry = 0.0
        if settings != self._settings_row:
            self._settings_row = settings
            self.settings = {**DEFAULT_SETTINGS, **json.loads(settings or b"{}")}

    def before_commit(self, transaction: Transaction) -> None:
        """Writes the counters if they have changed."""
        if self.is_unread:
            return
        self._saving = self._counters()
        if self._saving != self._saved:
            transaction.keyspace(self.committed).put(_COUNTERS_KEY, _COUNTERS.pack(*self._saving))

    def after_commit(self) -> None:
        """Makes the written state the one that an abort restores."""
        self._saved = self._saving

    def after_abort(self) -> None:
        """Reverts the transaction's changes in memory."""
        self.count, self.size, self._next_id = self._saved[:3]
        self._next_expiry = 0.0
        self._settings_row = self.committed.get(_SETTINGS_KEY)
        self.settings = {**DEFAULT_SETTINGS, **json.loads(self._settings_row or b"{}")}

    @property
    def has_news(self) -> bool:
        """Whether there are uses, hits or misses that are not stored yet."""
        return bool(self.touched) or self._counters() != self._saved

    def _counters(self) -> tuple[int, int, int, int, int]:
        return self.count, self.size, self._next_id, self.hits, self.misses

    @property
    def size_max(self) -> int:
        """Maximum bytes of the rows: their current size, or the limit if it is enforced."""
        return max(self.size, int(self.settings["size_limit"])) if self._is_hard() else self.size

    def totals(self) -> tuple[int, int]:
        """Number and bytes of rows, as this thread sees them."""
        return self._stored_counters()[:2]

    def _stored_counters(self) -> tuple[int, int, int, int, int]:
        if self.store.transaction is not None:
            return self._counters()
        if self.store.shared:
            stored: tuple[int, int, int, int, int]
            stored = _COUNTERS.unpack(self.committed.get(_COUNTERS_KEY, bytes(_COUNTERS.size)))
            return stored
        return self._saved

    def stored_settings(self) -> dict[str, Any]:
        """The current settings, even if another process has changed them."""
        if self.store.shared and self.store.transaction is None:
            self._settings_row = self.committed.get(_SETTINGS_KEY)
            self.settings = {**DEFAULT_SETTINGS, **json.loads(self._settings_row or b"{}")}
        return self.settings

    # Settings.

    def set_setting(self, rows: WriteMapping, name: str, value: Any) -> None:
        """Stores a setting. A new policy re-ranks all rows."""
        if name == "eviction_policy" and value not in EVICTION_POLICIES:
            raise ValueError(f"eviction_policy is one of {', '.join(EVICTION_POLICIES)}, not {value!r}")
        if name in DEFAULT_SETTINGS and name != "eviction_policy" and not isinstance(value, (int, float)):
            raise ValueError(f"{name} is a number, not {value!r}")
        changed = self.settings.get(name) != value
        self.settings[name] = value
        if not changed:
            return
        self._settings_row = dump_json(self.settings)
        rows.put(_SETTINGS_KEY, self._settings_row)
        if name == "eviction_policy":
            rows.delete_range(prefix=b"p")
            for key, data in rows.items(prefix=b"r"):
                self._rank(rows, key[1:], Row.load(data))

    # Rows.

    def get(self, rows: ReadMapping, key: bytes) -> Row | None:
        """The row of a short key, expired or not."""
        data = rows.get(b"r" + key)
        return None if data is None else Row.load(data)

    def value(self, rows: ReadMapping, row: Row) -> bytes | None:
        """The value of a row; None if another thread has removed its pieces since the row was
        read."""
        if not row.value_id:
            return row.value
        pieces = rows.get_many([b"v" + _PIECE.pack(row.value_id, number) for number in range(_piece_count(row))])
        return None if None in pieces else b"".join(pieces)  # type: ignore[arg-type]

    def put(
        self,
        rows: WriteMapping,
        key: bytes,
        long_key: bytes,
        value: bytes | Iterable[bytes],
        expires: float,
        tag: bytes,
        now: float,
        old: Row | None,
    ) -> Row | None:
        """Stores a row in place of `old`. Returns None and keeps `old` if the row exceeds the size
        limit of the cache."""
        file = file_of(value) if isinstance(value, bytes) else None
        row_id = old.id if old is not None else self._take_id()
        value_id, value_bytes, inline = 0, 0, b""
        # A value with a file name stays in the row, where `delete` finds it.
        if isinstance(value, bytes) and (file or len(value) < max(1, self.settings["disk_min_file_size"])):
            inline, value_bytes = value, len(value)
        else:
            value_id = self._take_id()
            value_bytes = self._put_pieces(rows, value_id, value)
        size = 2 * len(key) + len(long_key) + len(tag) + value_bytes + ROW_OVERHEAD_BYTES
        size += file[1] if file else 0
        ranked = now
        if old is not None and self.settings["eviction_policy"] == "least-recently-stored":
            ranked = min(old.stored, old.accessed)
        row = Row(row_id, now, expires, ranked, 0, size, value_id, value_bytes, tag, long_key, inline)
        if size > self.settings["size_limit"] and self._is_hard():
            rows.delete_many(_pieces(row))
            return None
        after = self._indexes(row)
        pairs = [(b"r" + key, row.dump())]
        if old is None:
            pairs.append((b"o" + _ID.pack(row_id), long_key or key))
            pairs += [(index, key) for index in after]
            self.count += 1
        else:
            before = self._indexes(old)
            gone = [index for index in before if index not in after]
            if old.value_id:
                gone += _pieces(old)
            if gone:
                rows.delete_many(gone)
            pairs += [(index, key) for index in after if index not in before]
            self.size -= old.size
            if file is None or old.file is None or file[0] != old.file[0]:
                self._drop_file(key, old)
        if file and rows.get(_FILES_KEY) is None:
            pairs.append((_FILES_KEY, b""))
        rows.put_many(pairs)
        self.size += size
        self._next_expiry = min(self._next_expiry, expires)
        self.store.wrote(size)
        return row

    def replace(self, rows: WriteMapping, key: bytes, old: Row, new: Row) -> None:
        """Changes the head, or the value in the row; the size stays."""
        before, after = self._indexes(old), self._indexes(new)
        rows.delete_many([index for index in before if index not in after])
        rows.put_many([(b"r" + key, new.dump())] + [(index, key) for index in after if index not in before])
        self._next_expiry = min(self._next_expiry, new.expires)

    def delete(self, rows: WriteMapping, key: bytes, row: Row) -> None:
        """Removes a row with its indexes and pieces, and its file: at the commit, or now if the row
        has expired."""
        rows.delete_many([b"r" + key, *self._indexes(row), *_pieces(row), b"o" + _ID.pack(row.id)])
        self.count -= 1
        self.size -= row.size
        self._drop_file(key, row)

    def clear(self, rows: WriteMapping) -> int:
        """Removes all rows; returns their number."""
        self.store.cleared(self.size)
        count, self.count, self.size = self.count, 0, 0
        for name in self.files(rows):
            if self.disk is not None:
                self.store.drop_file(self.disk, name)
        rows.delete_range(b"a")
        self.touched.clear()
        self._next_expiry = math.inf
        return count

    # Order.

    def keys_by_id(self, first: int, stop: int, *, reverse: bool, limit: int) -> list[tuple[int, bytes]]:
        """Row ids from `first` to before `stop`, with their keys."""
        found = self.rows().scan(b"o" + _ID.pack(first), b"o" + _ID.pack(stop), reverse=reverse, limit=limit)
        return [(_ID.unpack_from(key, 1)[0], full) for key, full in found]

    @property
    def next_id(self) -> int:
        """An upper bound of all row ids."""
        return self._stored_counters()[2] + 1

    # Removal.

    def remove_expired(self, rows: WriteMapping, now: float, limit: int) -> int:
        """Removes rows that expired before `now`, oldest first."""
        if self._next_expiry >= now:
            return 0
        removed = self._remove_indexed(rows, rows.scan(b"e", b"e" + _dump_time(now, 0), limit=limit))
        self._next_expiry = self._first_expiry(rows)
        return removed

    def remove_tagged(self, rows: WriteMapping, tag: bytes, limit: int) -> int:
        """Removes rows with a tag."""
        return self._remove_indexed(rows, rows.scan(prefix=b"t" + _tag_hash(tag), limit=limit))

    def make_room(self, rows: WriteMapping, now: float, keep: int) -> None:
        """Removes expired rows, and evicts by the policy while the cache is too large; keeps the
        row with the id `keep`."""
        limit = self.settings["cull_limit"]
        if limit == 0:
            return
        left = max(1, limit - self.remove_expired(rows, now, limit))
        while self._is_hard() and self.size > self.settings["size_limit"]:
            if not self.evict(rows, left, keep):
                return

    def cull(self, rows: WriteMapping, limit: int) -> int:
        """Removes up to `limit` rows, and stops once the cache is within its size."""
        removed = 0
        while removed < limit and self.size > self.settings["size_limit"] and self.evict(rows, 1):
            removed += 1
        return removed

    def evict(self, rows: WriteMapping, limit: int, keep: int = 0) -> int:
        """Removes rows in the order of the policy; returns their number."""
        self.flush_touched()
        lazy = self.settings["eviction_policy"] == "least-recently-stored"
        removed = ranked = 0
        while removed < limit:
            found = rows.scan(prefix=b"p", limit=limit - removed + 1)
            entries = [entry for entry in found if _ID.unpack_from(entry[0], len(entry[0]) - _ID.size)[0] != keep][: limit - removed]
            first = math.inf
            for index, key in entries:
                row = self.get(rows, key)
                rank = _load_time(index) if lazy else 0.0
                if rank > first:
                    # A re-ranked row precedes this one.
                    break
                if row is None:
                    rows.delete(index)
                elif lazy and row.stored > rank and ranked < RANKED_MAX:
                    self.replace(rows, key, row, row._replace(accessed=row.stored))
                    first = min(first, row.stored)
                    ranked += 1
                else:
                    self.delete(rows, key, row)
                    removed += 1
            if not entries:
                break
        return removed

    def _remove_indexed(self, rows: WriteMapping, entries: Iterable[tuple[bytes, bytes]]) -> int:
        count = 0
        for _, key in entries:
            row = self.get(rows, key)
            if row is not None:
                self.delete(rows, key, row)
                count += 1
        return count

    # Use.

    def touch(self, key: bytes, now: float) -> None:
        """Records that a row was used; the policy sees it before it evicts."""
        touched = self.touched
        touched[key] = now, touched.get(key, (now, 0))[1] + 1
        if len(touched) > TOUCHED_MAX or (self.store.shared and time.monotonic() - self._flushed > TOUCHED_SECONDS):
            # A get must not wait for a writer: while one is busy, uses are buffered up to a bound.
            # Nor must it fail on a full disk.
            self._flushed = time.monotonic()
            with suppress(Timeout, *DISK_ERRORS), self.store.write(0) as transaction:
                if transaction is not None:
                    self.flush_touched()
            if len(touched) > 2 * TOUCHED_MAX and touched is self.touched:
                self.touched = {}

    def flush_touched(self) -> None:
        """Writes the buffered uses to the rows, in the open transaction."""
        touched, self.touched = self.touched, {}
        self._flushed = time.monotonic()
        transaction = self.store.transaction
        if not touched or transaction is None:
            return
        rows = transaction.keyspace(self.committed)
        for key, (used, uses) in list(touched.items()):
            row = self.get(rows, key)
            if row is not None:
                self.replace(rows, key, row, row._replace(accessed=max(used, row.accessed), uses=row.uses + uses))

    @property
    def counts_uses(self) -> bool:
        """Whether the policy depends on the use of rows."""
        return self.settings["eviction_policy"] in ("least-recently-used", "least-frequently-used")

    # Checks.

    @property
    def folder(self) -> str:
        """The folder of the files of a `Disk`."""
        top = os.path.dirname(self.store.path)
        return os.path.join(top, *self.name.split("/")) if self.name else top

    def files(self, rows: ReadMapping) -> set[str]:
        """The file names in rows."""
        if rows.get(_FILES_KEY) is not None:
            return {row.file[0] for row in (Row.load(data) for _, data in rows.items(prefix=b"r")) if row.file}
        return set()

    def _lacks(self, rows: ReadMapping, row: Row) -> str:
        """The lost parts of a row's value; empty if it is complete. Raises `OSError` if its file
        cannot be checked."""
        if self.value(rows, row) is None:
            return "a piece of its value"
        if row.file is not None and row.expires > now():
            name, size = row.file
            with suppress(FileNotFoundError, NotADirectoryError):
                if os.path.getsize(os.path.join(self.folder, name)) == size:
                    return ""
            return f"its file {name} of {size} bytes"
        return ""

    def problems(self) -> list[str]:
        """Inconsistencies between counters, rows and indexes."""
        rows = self.rows()
        count = size = 0
        indexes: set[bytes] = set()
        found = []
        for key, data in rows.items(prefix=b"r"):
            row = Row.load(data)
            count, size = count + 1, size + row.size
            indexes.update(self._indexes(row), (b"o" + _ID.pack(row.id),))
            try:
                lacking = self._lacks(rows, row)
            except OSError as error:
                found.append(f"the file of the row {key[1:]!r} cannot be checked: {error}")
            else:
                if lacking:
                    found.append(f"the row {key[1:]!r} lacks {lacking}")
        if (count, size) != (self.count, self.size):
            totals = f"the totals say {self.count} rows of {self.size} bytes"
            found.append(f"there are {count} rows of {size} bytes, but {totals}")
        noted = {key for kind in (b"e", b"o", b"p", b"t") for key in rows.keys(prefix=kind)}
        found += [f"the index entry {key!r} is missing" for key in indexes - noted]
        found += [f"the index entry {key!r} has no row" for key in noted - indexes]
        return found

    def repair(self, rows: WriteMapping) -> None:
        """Rebuilds the indexes and the counters from the rows."""
        kept = [(key[1:], Row.load(data)) for key, data in rows.items(prefix=b"r")]
        for kind in (b"e", b"o", b"p", b"t"):
            rows.delete_range(prefix=kind)
        self.count = self.size = 0
        for key, row in kept:
            lacking = ""
            # A file that cannot be checked may be intact, so its row stays.
            with suppress(OSError):
                lacking = self._lacks(rows, row)
            if lacking:
                rows.delete_many([b"r" + key, *_pieces(row)])
                self._drop_file(key, row)
                continue
            rows.put_many([(b"o" + _ID.pack(row.id), row.long_key or key), *((index, key) for index in self._indexes(row))])
            self.count += 1
            self.size += row.size

    # Helpers.

    def _is_hard(self) -> bool:
        return bool(self.settings["cull_limit"]) and self.settings["eviction_policy"] != "none"

    def _drop_file(self, key: bytes, row: Row) -> None:
        if not row.value or row.value[0] != DISK or row.file is None or self.disk is None:
            return
        if row.expires <= now() and self._has_expired(key, row):
            # The next value may need its name.
            self.disk.remove(row.file[0])
        else:
            self.store.drop_file(self.disk, row.file[0])

    def _has_expired(self, key: bytes, row: Row) -> bool:
        """Whether the committed row has expired too, so that nothing reads its file again, even if
        the transaction is aborted."""
        data = self.committed.get(b"r" + key)
        if data is None:
            return False
        committed = Row.load(data)
        return committed.file == row.file and committed.expires <= now()

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _put_pieces(self, rows: WriteMapping, value_id: int, value: bytes | Iterable[bytes]) -> int:
        size = number = 0
        try:
            for number, piece in enumerate(_cut(value)):
                rows.put(b"v" + _PIECE.pack(value_id, number), piece)
                size += len(piece)
        except BaseException:
            # The transaction may continue without this value.
            rows.delete_many([b"v" + _PIECE.pack(value_id, done) for done in range(number + 1)])
            raise
        return size

    def _rank(self, rows: WriteMapping, key: bytes, row: Row) -> None:
        rows.put_many([(index, key) for index in self._indexes(row) if index[:1] == b"p"])

    def _indexes(self, row: Row) -> list[bytes]:
        keys = []
        policy = self.settings["eviction_policy"]
        if policy == "least-recently-stored":
            keys.append(b"p" + _dump_time(min(row.stored, row.accessed), row.id))
        elif policy == "least-recently-used":
            keys.append(b"p" + _dump_time(max(row.stored, row.accessed), row.id))
        elif policy == "least-frequently-used":
            keys.append(b"p" + _RANK.pack(row.uses, row.id))
        if row.expires != math.inf:
            keys.append(b"e" + _dump_time(row.expires, row.id))
        if row.tag:
            keys.append(b"t" + _tag_hash(row.tag) + _ID.pack(row.id))
        return keys

    def _first_expiry(self, rows: ReadMapping) -> float:
        for key in rows.keys(prefix=b"e", limit=1):
            return _load_time(key)
        return math.inf


def table_of(store: CacheStore, name: str) -> Table:
    """The rows of the cache with this name in a store."""
    with opening():
        table = store.tables.get(name)
        if table is None:
            table = store.tables[name] = Table(store, name)
        assert isinstance(table, Table), "the tables of a store are made here"
        return table


class PieceReader(io.RawIOBase):
    """Reads a value stored in pieces, as of the reader's creation. If the value is missing, `kind`
    is -1."""

    def __init__(self, table: Table, key: bytes) -> None:
        super().__init__()
        self._snapshot: Snapshot | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""
        self._snapshot = table.store.db.snapshot()
        rows = self._snapshot.keyspace(table.committed.name)
        self.row = table.get(rows, key)
        self.kind = -1
        if self.row is not None and self.row.value_id:
            self._pieces = (rows[piece] for piece in _pieces(self.row))
            # The first byte is the encoding.
            first = next(self._pieces)
            self.kind, self._rest = first[0], first[1:]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = next(self._pieces, b"")
        count = min(len(view), len(self._rest))
        view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        if not self.closed and self._snapshot is not None:
            self._snapshot.close()
        super().close()


def now() -> float:
    """The clock for expiry."""
    return time.time()


def with_details(value: Any, expires: float | None, tag: Any, with_expiry: bool, with_tag: bool) -> Any:
    """A value as requested: alone, or in a tuple with attributes of its row."""
    if with_expiry and with_tag:
        return value, expires, tag
    if with_expiry:
        return value, expires
    if with_tag:
        return value, tag
    return value


def _dump_time(time: float, row_id: int) -> bytes:
    """A time and a row id in the key of an index."""
    if time >= 0:
        return _AFTER_1970.pack(1, time + 0.0, row_id)
    return _BEFORE_1970.pack(0, _BITS.unpack(_DOUBLE.pack(time))[0] ^ _ALL_BITS, row_id)


def _load_time(index: bytes) -> float:
    """The time in the key of an index."""
    if index[1]:
        return float(_AFTER_1970.unpack_from(index, 1)[1])
    return float(_DOUBLE.unpack(_BITS.pack(_BEFORE_1970.unpack_from(index, 1)[1] ^ _ALL_BITS))[0])


def _piece_count(row: Row) -> int:
    return -(-row.value_bytes // PIECE_BYTES)


def _pieces(row: Row) -> list[bytes]:
    if not row.value_id:
        return []
    return [b"v" + _PIECE.pack(row.value_id, number) for number in range(_piece_count(row))]


def _cut(value: bytes | Iterable[bytes]) -> Iterator[bytes]:
    """The value in pieces of equal size; the last may be shorter."""
    if isinstance(value, bytes):
        yield from (value[start : start + PIECE_BYTES] for start in range(0, len(value), PIECE_BYTES))
        return
    held = bytearray()
    for chunk in value:
        held += chunk
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)


def _tag_hash(tag: bytes) -> bytes:
    return blake2b(tag, digest_size=16).digest()
