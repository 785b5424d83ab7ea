"""Maintenance of a whole cache: removing by expiry, tag or size, and checking.

Invariant: rows are removed in several commits, so that others can write in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ._disk import StoreDisk
from ._files import stray_files
from ._handle import Handle
from ._rows import Table
from ._store import Timeout

if TYPE_CHECKING:
    from .._native import WriteMapping

_BATCH = 100


class Upkeep:
    """The maintenance of one cache. Removals return the number of rows."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def expire(self, moment: float, retry: bool) -> int:
        """Removes rows that expired before a time."""
        return self._remove(lambda table, rows: table.remove_expired(rows, moment, _BATCH), retry)

    def evict(self, tag: bytes, retry: bool) -> int:
        """Removes rows with a tag."""
        return self._remove(lambda table, rows: table.remove_tagged(rows, tag, _BATCH), retry)

    def cull(self, retry: bool) -> int:
        """Removes expired rows, and evicts until the cache is within its limit."""
        count = self.expire(time.time(), False)
        try:
            return count + self._remove(lambda table, rows: table.cull(rows, _BATCH), retry)
        except Timeout as timeout:
            raise Timeout(count + timeout.args[0]) from None

    def check(self, fix: bool, retry: bool) -> list[str]:
        """The problems of rows, indexes, counters and files; repaired if `fix` is true."""
        with self._handle.transact(retry) as (table, rows):
            found = table.problems()
            if fix and found:
                table.repair(rows)
            strays = [] if isinstance(self._handle.disk, StoreDisk) else stray_files(table, rows)
        found += [f"the file {path} has no row" for path in strays]
        if fix:
            for path in strays:
                with suppress(OSError):
                    os.remove(path)
        damage = self._handle.read(lambda table: table.store.db.verify().problems)
        return found + damage

    def _remove(self, batch: Callable[[Table, WriteMapping], int], retry: bool) -> int:
        """Removes in several commits, so that others can write in between. A `Timeout` carries the
        count so far."""
        total = 0
        while True:
            try:
                with self._handle.transact(retry) as (table, rows):
                    count = batch(table, rows)
            except Timeout:
                raise Timeout(total) from None
            total += count
            if not count:
                return total
