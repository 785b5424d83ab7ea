"""Queues in a cache: rows whose keys are numbers, or a prefix and a number, in the order of the numbers."""

from __future__ import annotations

from typing import Any

from ._cache_codec import Serializer
from ._cache_rows import Row, Table, now, with_details

_FIRST_NUMBER = 500_000_000_000_000


class Queues:
    """What `Cache` does with queues."""

    _serializer: Serializer
    _open: Any
    _transact: Any
    _store: Any
    _fetch: Any
    _taken: Any
    _give_up: Any
    _detailed: Any

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: str = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Puts a value at the end of a queue, and returns its key: a number, or text that begins with `prefix`."""
        with self._transact(retry):
            key, _, _ = self._end(prefix, side)
            number = _FIRST_NUMBER
            if key is not None:
                number = int(key.rpartition("-")[2]) if prefix is not None else key
                number += 1 if side == "back" else -1
            key = number if prefix is None else f"{prefix}-{number:015d}"
            # Keys of queues are stored as they are, in their order, whatever the disk does with others.
            full = self._serializer.dump_key(key)
            self._store(key, value, expire, read, tag, retry, only_new=False, full=full)
            return key

    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Takes the key and value at the front of a queue, or `default` from an empty one."""
        return self._take(prefix, default, side, expire_time, tag, retry, remove=True)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The key and value at the front of a queue; they stay there."""
        return self._take(prefix, default, side, expire_time, tag, retry, remove=False)

    def _end(self, prefix: str | None, side: str) -> tuple[Any, bytes, Row | None]:
        """The key at an end of a queue, with its row."""
        if side not in ("front", "back"):
            raise ValueError(f'side is "front" or "back", not {side!r}')
        if prefix is None:
            low, high = 1, 999_999_999_999_999
        else:
            low, high = f"{prefix}-000000000000001", f"{prefix}-999999999999999"  # type: ignore[assignment]
        start, stop = (b"r" + self._serializer.dump_key(key) for key in (low, high))
        if len(stop) > 1000:
            raise ValueError("the prefix of a queue has up to 900 bytes")
        for stored, data in self._open().rows().scan(start, stop, reverse=side == "back", limit=1):
            return self._serializer.load_key(stored[1:]), stored[1:], Row.load(data)
        return None, b"", None

    def _take(
        self, prefix: str | None, default: Any, side: str, expire_time: bool, tag: bool, retry: bool, *, remove: bool
    ) -> Any:
        table: Table = self._open()
        tries = 0
        while True:
            with self._transact(retry) as rows:
                key, short, row = self._end(prefix, side)
                if row is None:
                    return with_details(default, None, None, expire_time, tag)
                if row.expires <= now():
                    table.delete(rows, short, row)
                    continue
                data = table.value(rows, row)
                if remove:
                    table.delete(rows, short, row, keep_file=True)
            try:
                value = self._taken(table, row, data) if remove else self._fetch(data)
                return self._detailed((key, value), row, expire_time, tag)
            except OSError as error:
                tries += 1
                if not remove:
                    self._give_up(short, row, error, tries)
