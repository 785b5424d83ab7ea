"""Queues in a cache: rows whose keys are numbers, or a prefix and a number of 15 digits, ordered by
number.

Invariant: the keys of a queue have numbers from 1 to `_LAST_NUMBER`. A key of any other form does
not belong to the queue, although it may sort between the queue's keys. The queue skips such a key,
and never overwrites or takes it. (Examples are a `float` between two integers, and for the prefix
"job" every key of a queue with the prefix "job-7".)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ._entries import Entries, detailed
from ._files import read_first
from ._handle import Handle
from ._rows import NewRow, Row, now, with_details

if TYPE_CHECKING:
    from .._native import WriteMapping

_FIRST_NUMBER = 500_000_000_000_000
_LAST_NUMBER = 999_999_999_999_998
_DIGITS = 15


class Queues:
    """The queues in one cache."""

    def __init__(self, handle: Handle, entries: Entries) -> None:
        self._handle, self._entries = handle, entries

    def push(
        self, value: Any, prefix: str | None, side: str, expire: float | None, read: bool, tag: Any, retry: bool
    ) -> int | str:
        """Puts a value at an end of a queue; returns its key."""
        if read:
            with read_first(value, self._handle.open().store.path) as copy:
                return self._push(copy, prefix, side, expire, True, tag, retry)
        return self._push(value, prefix, side, expire, False, tag, retry)

    def _push(
        self, value: Any, prefix: str | None, side: str, expire: float | None, read: bool, tag: Any, retry: bool
    ) -> int | str:
        with self._handle.transact(retry) as (_, rows):
            end, _, _ = self._end(rows, prefix, side)
            number = _FIRST_NUMBER
            if end is not None:
                number = (end if prefix is None else int(end[-_DIGITS:])) + (1 if side == "back" else -1)
            if not 1 <= number <= _LAST_NUMBER:
                raise OverflowError(f"the queue has no key left at its {side} after {end!r}; push at the other side, or use another prefix")
            key = _key(prefix, number)
            # Keys of queues are stored unchanged and in order, regardless of how the disk stores
            # others.
            full = self._handle.serializer.dump_key(key)
            if not self._entries.store(NewRow(key, value, expire, read, tag, retry, full=full)):
                raise ValueError("the value is larger than size_limit, so the queue cannot hold it")
            return key

    def _end(self, rows: WriteMapping, prefix: str | None, side: str) -> tuple[Any, bytes, Row | None]:
        """The key at an end of a queue, with its row."""
        if side not in ("front", "back"):
            raise ValueError(f'side is "front" or "back", not {side!r}')
        low, high = 1, _LAST_NUMBER
        while low <= high:
            start, stop = (b"r" + self._handle.serializer.dump_key(_key(prefix, number)) for number in (low, high))
            if len(stop) > 1000:
                raise ValueError("the prefix of a queue has at most 900 bytes")
            found = rows.scan(start, stop + b"\0", reverse=side == "back", limit=1)
            if not found:
                break
            stored, data = found[0]
            key = self._handle.serializer.load_key(stored[1:])
            if _is_of_queue(key, prefix):
                return key, stored[1:], Row.load(data)
            below = math.floor(key) if prefix is None else foreign_rank(key[len(prefix) + 1 :])
            low, high = (below + 1, high) if side == "front" else (low, below)
        return None, b"", None

    def take(
        self, prefix: str | None, default: Any, side: str, expire_time: bool, tag: bool, retry: bool, *, remove: bool
    ) -> Any:
        """The key and value at an end of a queue, removed if `remove` is true; `default` from an
        empty queue."""
        tries = 0
        while True:
            with self._handle.transact(retry) as (table, rows):
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
                        found = detailed((key, self._handle.fetch(data)), row, expire_time, tag)
                    except OSError:
                        table.delete(rows, short, row)
                        continue
                    table.delete(rows, short, row)
                    return found
            try:
                return detailed((key, self._handle.fetch(data)), row, expire_time, tag)
            except OSError as error:
                tries += 1
                self._entries.give_up(short, row, error, tries)


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
