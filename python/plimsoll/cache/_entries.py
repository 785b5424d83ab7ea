"""The operations on one row of a cache that take more than one step: storing, loading, adding to a
number, and the row at an end of the insertion order."""

from __future__ import annotations

import io
import math
from contextlib import suppress
from typing import IO, Any

from ._codec import RAW, Serializer, short_key
from ._disk import ENOVAL, StoreDisk
from ._files import read_first
from ._handle import Handle
from ._rows import PIECE_BYTES, NewRow, PieceReader, Row, Table, now, with_details

TAGS = Serializer("json")
_TRIES = 3
"""Number of attempts to read a value whose file is unreadable, before it counts as lost."""


class Entries:
    """The rows of one cache, by key."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def store(self, new: NewRow) -> bool:
        """Stores a row; returns whether it was stored."""
        store = self._handle.open().store
        full = self._handle.key(new.key) if new.full is None else new.full
        if new.read and type(self._handle.disk) is StoreDisk and store.transaction is None:
            with read_first(new.value, store.path) as copy:
                return self._store_row(full, new._replace(value=copy))
        return self._store_row(full, new)

    def _store_row(self, full: bytes, new: NewRow) -> bool:
        handle = self._handle
        short = short_key(full)
        can_seek = new.read and hasattr(new.value, "seekable") and new.value.seekable()
        start = new.value.tell() if can_seek else None
        try:
            dumped, filename = handle.dump(new.key, new.value, new.read)
        except FileExistsError:
            if new.read and start is None:
                # The disk may have consumed part of the file.
                raise
            # The disk derives names from keys, so the file may belong to an expired row.
            with handle.transact(new.retry) as (table, rows):
                row = table.get(rows, short)
                if row is not None and row.expires > now():
                    if new.only_new:
                        return False
                    raise
                if row is not None:
                    table.delete(rows, short, row)
            if start is not None:
                new.value.seek(start)
            dumped, filename = handle.dump(new.key, new.value, new.read)
        stored = None
        try:
            with handle.transact(new.retry) as (table, rows):
                if filename is not None:
                    table.store.file_written(handle.disk, filename)
                moment = now()
                row = table.get(rows, short)
                if new.only_new and row is not None and row.expires > moment:
                    return False
                tag = b"" if new.tag is None else TAGS.dump(new.tag, is_key=True)
                stored = table.put(rows, short, _long(full, short), dumped, expiry(new.expire), tag, moment, row)
                if stored is not None:
                    table.make_room(rows, moment, stored.id)
                return stored is not None
        finally:
            if filename is not None and stored is None:
                handle.disk.remove(filename)

    def load(self, table: Table, short: bytes, read: bool) -> tuple[Row | None, bytes | IO[bytes] | None]:
        """An unexpired row and its value; as a file if requested and stored in pieces."""
        if read and table.store.transaction is None:
            reader = PieceReader(table, short)
            if reader.row is not None and reader.kind == RAW and reader.row.expires > now():
                return reader.row, io.BufferedReader(reader, PIECE_BYTES)
            reader.close()
        while True:
            rows = table.rows()
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return None, None
            data = table.value(rows, row)
            if data is not None:
                return row, data

    def add_to(self, key: Any, delta: float, default: float | None, retry: bool) -> int | float:
        """Adds to a number; the default stands for a missing one."""
        handle = self._handle
        handle.open()
        full = handle.key(key)
        short = short_key(full)
        with handle.transact(retry) as (table, rows):
            row = table.get(rows, short)
            moment = now()
            total: Any = ENOVAL
            if row is not None and row.expires > moment:
                with suppress(OSError):
                    total = handle.fetch(table.value(rows, row) or b"\0")
            if row is None or total is ENOVAL:
                if default is None:
                    raise KeyError(key)
                total = default + delta
                expires, tag = math.inf, b""
            else:
                if not isinstance(total, (int, float)):
                    raise TypeError(f"incr needs a number, and the value of {key!r} is a {type(total).__name__}")
                total += delta
                expires, tag = row.expires, row.tag
            dumped, _ = handle.dump(key, total, False)
            stored = table.put(rows, short, _long(full, short), dumped, expires, tag, moment, row)
            if stored is not None:
                if row is not None:
                    table.replace(rows, short, stored, stored._replace(uses=row.uses + 1))
                table.make_room(rows, moment, stored.id)
            return total  # type: ignore[no-any-return]

    def peek(self, *, last: bool, expire_time: bool, tag: bool, retry: bool) -> Any:
        """The key and value that were inserted last, or first."""
        handle = self._handle
        tries = 0
        while True:
            with handle.transact(retry) as (table, rows):
                found = table.keys_by_id(0, table.next_id, reverse=last, limit=1)
                if not found:
                    raise KeyError("the cache is empty")
                full = found[0][1]
                row = table.get(rows, short_key(full))
                assert row is not None, "each entry of the order has its row"
                if row.expires <= now():
                    table.delete(rows, short_key(full), row)
                    continue
                data = table.value(rows, row)
            try:
                return detailed((handle.python_key(full), handle.fetch(data)), row, expire_time, tag)
            except OSError as error:
                tries += 1
                self.give_up(short_key(full), row, error, tries)

    def give_up(self, short: bytes, row: Row, error: OSError, tries: int) -> None:
        """Removes a row whose file is lost, after several attempts. Raises any other read error."""
        if tries < _TRIES:
            return
        if not isinstance(error, FileNotFoundError):
            raise error
        with self._handle.transact(True) as (table, rows):
            if table.get(rows, short) == row:
                table.delete(rows, short, row)


def detailed(value: Any, row: Row, expire_time: bool, tag: bool) -> Any:
    """A value of a row as requested: alone, or with the row's expiry and tag."""
    expires = None if row.expires == math.inf else row.expires
    return with_details(value, expires, TAGS.load(row.tag) if row.tag and tag else None, expire_time, tag)


def expiry(expire: float | None) -> float:
    """The time at which a row expires that lives for `expire` seconds."""
    return math.inf if expire is None else now() + expire


def _long(full: bytes, short: bytes) -> bytes:
    return full if full is not short else b""
