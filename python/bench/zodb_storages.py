"""Compares ZODB storages: adds, updates and cold reads, 500 objects a transaction, one thread.

    python bench/zodb_storages.py FOLDER [--rounds 7]

A number is the median milliseconds of a transaction, with the smallest and the greatest in
brackets. `FileStorage` syncs its file at each commit, like Plimsoll with durability "sync".
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import transaction
import ZODB
from persistent.mapping import PersistentMapping
from ZODB.FileStorage import FileStorage

from plimsoll.zodb import PlimsollStorage

OBJECTS = 500


def timed(times: list[float], work: Callable[[], object]) -> None:
    """Records the milliseconds that `work` takes."""
    begun = time.perf_counter()
    work()
    times.append((time.perf_counter() - begun) * 1000)


def measure(db: ZODB.DB, rounds: int) -> dict[str, list[float]]:
    """Times of each kind of transaction."""
    times: dict[str, list[float]] = {"add": [], "update": [], "cold": []}
    connection = db.open()
    for turn in range(rounds):
        connection.root()["all"] = box = PersistentMapping()
        for number in range(OBJECTS):
            box[number] = PersistentMapping(text=f"{turn} {number} " * 10)
        timed(times["add"], transaction.commit)
        for number in range(OBJECTS):
            box[number]["text"] = f"{number} {turn} " * 10
        timed(times["update"], transaction.commit)
        connection.cacheMinimize()
        timed(times["cold"], lambda: [box[number]["text"] for number in range(OBJECTS)])
    transaction.abort()
    connection.close()
    return times


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    storages = {
        "FileStorage": lambda: FileStorage(str(arguments.folder / "data.fs"), create=True),
        "Plimsoll": lambda: PlimsollStorage(arguments.folder / "history", create=True),
        "Plimsoll, no history": lambda: PlimsollStorage(arguments.folder / "free", keep_history=False, create=True),
    }
    for name, make in storages.items():
        db = ZODB.DB(make(), cache_size=10_000)
        found = measure(db, arguments.rounds)
        db.close()
        cells = [f"{what} {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})" for what, times in found.items()]
        print(f"{name}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
