"""Maintenance of a whole cache: removing, counting, checking.

Invariant: rows are removed in several commits, so that others can write in between; only `clear` is
a single commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._cache_codec import Serializer
from ._cache_files import stray_files
from ._cache_rows import Table
from ._cache_rows import now as _now
from ._cache_store import Timeout
from .disk import Disk, StoreDisk

if TYPE_CHECKING:
    from ._native import WriteMapping

BATCH = 100
TAGS = Serializer("json")


class Upkeep:
    """The maintenance operations of `Cache`."""

    reset: Any
    _disk: Disk
    _read: Any
    _transact: Any

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Removes expired rows; returns their number.

        >>> import time
        >>> cache = plimsoll.Cache()
        >>> stored = cache.set("key", "value", expire=60)
        >>> cache.expire(), cache.expire(now=time.time() + 61)
        (0, 1)
        """
        moment = _now() if now is None else now
        return self._remove(lambda table, rows: table.remove_expired(rows, moment, BATCH), retry)

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Removes all rows with a tag; returns their number.

        >>> cache = plimsoll.Cache()
        >>> for page in ("home", "about"):
        ...     stored = cache.set(page, "<p>", tag="pages")
        >>> cache.evict("pages")
        2
        """
        dumped = TAGS.dump(tag, is_key=True)
        return self._remove(lambda table, rows: table.remove_tagged(rows, dumped, BATCH), retry)

    def cull(self, retry: bool = False) -> int:
        """Removes expired rows, and evicts until the cache is within its limit; returns the number
        of rows.

        >>> cache = plimsoll.Cache()
        >>> for number in range(100):
        ...     cache[number] = b"x" * 1000
        >>> limit = cache.reset("size_limit", 50_000)
        >>> cache.cull() > 50, cache.volume() <= limit
        (True, True)
        """
        count = self.expire(_now())
        try:
            return count + self._remove(lambda table, rows: table.cull(rows, BATCH), retry)
        except Timeout as timeout:
            raise Timeout(count + timeout.args[0]) from None

    def clear(self, retry: bool = False) -> int:
        """Removes all rows in one commit; returns their number.

        >>> cache = plimsoll.Cache()
        >>> cache["a"] = 1
        >>> cache["b"] = 2
        >>> cache.clear()
        2
        """
        with self._transact(retry) as (table, rows):
            count: int = table.clear(rows)
            return count

    def create_tag_index(self) -> None:
        """Tags are always indexed; for programs written for diskcache.

        >>> cache = plimsoll.Cache()
        >>> cache.create_tag_index()
        >>> cache.tag_index
        1
        """
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """Tags are always indexed; for programs written for diskcache.

        >>> cache = plimsoll.Cache()
        >>> cache.drop_tag_index()
        >>> cache.tag_index
        0
        """
        self.reset("tag_index", 0)

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Hits and misses while counting was enabled.

        >>> cache = plimsoll.Cache()
        >>> counted = cache.stats(enable=True)
        >>> cache["a"] = 1
        >>> cache.get("a"), cache.get("b")
        (1, None)
        >>> cache.stats()
        (1, 1)
        """
        with self._transact(True) as (table, _):
            counted: tuple[int, int] = table.hits, table.misses
            if reset:
                table.hits = table.misses = 0
            self.reset("statistics", int(enable))
        return counted

    def volume(self) -> int:
        """Bytes of the rows: keys, values, and the charge for the indexes of a row. `size_limit`
        bounds these.

        >>> cache = plimsoll.Cache()
        >>> cache["film"] = b"x" * 1_000_000
        >>> 1_000_000 < cache.volume() < 1_001_000
        True
        """
        size: int = self._read(Table.totals)[1]
        return size

    def disk_bytes(self) -> int:
        """Bytes of the store's files, including overwritten data not yet reclaimed; for all caches
        in the folder.

        >>> cache = plimsoll.Cache()
        >>> for version in range(2):
        ...     cache["film"] = b"x" * 1_000_000
        >>> cache.volume() < 1_001_000, cache.disk_bytes() > 2_000_000
        (True, True)
        """
        size: int = self._read(lambda table: table.store.db.stats()["disk_bytes"])
        return size

    def check(self, fix: bool = False, retry: bool = False) -> list[str]:
        """Compares rows, indexes, counters and the files of a `Disk`, and verifies the store's
        files; returns the problems.

        With `fix`, the indexes are rebuilt, and rows without their file and files older than ten
        minutes without a row are removed.

        >>> cache = plimsoll.Cache()
        >>> cache["key"] = 1
        >>> cache.check()
        []
        """
        with self._transact(retry) as (table, rows):
            found: list[str] = table.problems()
            if fix and found:
                table.repair(rows)
            strays = [] if isinstance(self._disk, StoreDisk) else stray_files(table, rows)
        found += [f"the file {path} has no row" for path in strays]
        if fix:
            for path in strays:
                with suppress(OSError):
                    os.remove(path)
        damage: list[str] = self._read(lambda table: table.store.db.verify().problems)
        return found + damage

    def _remove(self, batch: Callable[[Table, WriteMapping], int], retry: bool) -> int:
        """Removes in several commits, so that others can write in between. A `Timeout` carries the
        count so far."""
        total = 0
        while True:
            try:
                with self._transact(retry) as (table, rows):
                    count = batch(table, rows)
            except Timeout:
                raise Timeout(total) from None
            total += count
            if not count:
                return total
