"""Queues in a cache: rows whose keys are numbers, or a prefix and a number of 15 digits, ordered by
number.

Invariant: the keys of a queue have numbers from 1 to `_LAST_NUMBER`. A key of any other form does
not belong to the queue, although it may sort between its keys: the queue skips it, and never
overwrites or takes it. (Examples are a `float` between two integers, and for the prefix "job" every
key of a queue with the prefix "job-7".)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ._cache_codec import Serializer
from ._cache_files import read_first
from ._cache_rows import NewRow, Row, now, with_details

if TYPE_CHECKING:
    from ._native import WriteMapping

_FIRST_NUMBER = 500_000_000_000_000
_LAST_NUMBER = 999_999_999_999_998
_DIGITS = 15


class Queues:
    """The queue operations of `Cache`."""

    _serializer: Serializer
    _open: Any
    _transact: Any
    _store: Any
    _fetch: Any
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
        """Puts a value at the end of a queue, and returns its key: a number, or text that begins with `prefix`.

        Raises `ValueError` for a value larger than `size_limit`.

        >>> cache = plimsoll.Cache()
        >>> cache.push("wash"), cache.push("dry")
        (500000000000000, 500000000000001)
        >>> cache.push("iron", prefix="jobs")
        'jobs-500000000000000'
        """
        if read:
            with read_first(value, self._open().store.path) as copy:
                return self._push(copy, prefix, side, expire, True, tag, retry)
        return self._push(value, prefix, side, expire, False, tag, retry)

    def _push(
        self, value: Any, prefix: str | None, side: str, expire: float | None, read: bool, tag: Any, retry: bool
    ) -> Any:
        with self._transact(retry) as (_, rows):
            end, _, _ = self._end(rows, prefix, side)
            number = _FIRST_NUMBER
            if end is not None:
                number = (end if prefix is None else int(end[-_DIGITS:])) + (1 if side == "back" else -1)
            if not 1 <= number <= _LAST_NUMBER:
                raise OverflowError(f"the key {end!r} is the last that a queue can have at its {side}: push at the other side, or take another prefix")
            key = _key(prefix, number)
            # Keys of queues are stored unchanged and in order, regardless of how the disk stores
            # others.
            full = self._serializer.dump_key(key)
            if not self._store(NewRow(key, value, expire, read, tag, retry, full=full)):
                raise ValueError("the value is larger than size_limit, so the queue cannot hold it")
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
        """Takes the key and value at the front of a queue, or `default` from an empty one.

        >>> cache = plimsoll.Cache()
        >>> keys = cache.push("wash"), cache.push("dry")
        >>> cache.pull(), cache.pull()
        ((500000000000000, 'wash'), (500000000000001, 'dry'))
        >>> cache.pull()
        (None, None)
        """
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
        """The key and value at the front of a queue; they stay there.

        >>> cache = plimsoll.Cache()
        >>> keys = cache.push("wash"), cache.push("dry")
        >>> cache.peek(), cache.peek(side="back")
        ((500000000000000, 'wash'), (500000000000001, 'dry'))
        >>> len(cache)
        2
        """
        return self._take(prefix, default, side, expire_time, tag, retry, remove=False)

    def _end(self, rows: WriteMapping, prefix: str | None, side: str) -> tuple[Any, bytes, Row | None]:
        """The key at an end of a queue, with its row."""
        if side not in ("front", "back"):
            raise ValueError(f'side is "front" or "back", not {side!r}')
        low, high = 1, _LAST_NUMBER
        while low <= high:
            start, stop = (b"r" + self._serializer.dump_key(_key(prefix, number)) for number in (low, high))
            if len(stop) > 1000:
                raise ValueError("the prefix of a queue has up to 900 bytes")
            found = rows.scan(start, stop + b"\0", reverse=side == "back", limit=1)
            if not found:
                break
            stored, data = found[0]
            key = self._serializer.load_key(stored[1:])
            if _is_of_queue(key, prefix):
                return key, stored[1:], Row.load(data)
            below = math.floor(key) if prefix is None else foreign_rank(key[len(prefix) + 1 :])
            low, high = (below + 1, high) if side == "front" else (low, below)
        return None, b"", None

    def _take(
        self, prefix: str | None, default: Any, side: str, expire_time: bool, tag: bool, retry: bool, *, remove: bool
    ) -> Any:
        tries = 0
        while True:
            with self._transact(retry) as (table, rows):
                key, short, row = self._end(rows, prefix, side)
                if row is None:
                    return with_details(default, None, None, expire_time, tag)
                if row.expires <= now():
                    table.delete(rows, short, row)
                    continue
                data = table.value(rows, row)
                if remove:
                    # Decode first, because a refused value, such as a pickle, must stay.
                    try:
                        found = self._detailed((key, self._fetch(data)), row, expire_time, tag)
                    except OSError:
                        table.delete(rows, short, row)
                        continue
                    table.delete(rows, short, row)
                    return found
            try:
                return self._detailed((key, self._fetch(data)), row, expire_time, tag)
            except OSError as error:
                tries += 1
                self._give_up(short, row, error, tries)


def _key(prefix: str | None, number: int) -> int | str:
    return number if prefix is None else f"{prefix}-{number:0{_DIGITS}d}"


def _is_of_queue(key: Any, prefix: str | None) -> bool:
    return type(key) is int if prefix is None else len(key) == len(prefix) + 1 + _DIGITS and _leading_digits(key[-_DIGITS:]) == _DIGITS


def foreign_rank(tail: str) -> int:
    """The largest number whose digits sort below `tail`, which is not the digits of a number."""
    count = min(_leading_digits(tail), _DIGITS)
    digits, following = tail[:count], tail[count : count + 1]
    if count == _DIGITS or following > "9":
        return int(digits.ljust(_DIGITS, "9"))
    return int(digits.ljust(_DIGITS, "0")) - 1


def _leading_digits(text: str) -> int:
    return len(text) - len(text.lstrip("0123456789"))
