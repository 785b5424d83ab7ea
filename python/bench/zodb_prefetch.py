"""Prefetches and loads 500 objects, by one thread and by four threads at once, on one storage;
measures the milliseconds of a batch.

    python bench/zodb_prefetch.py FOLDER [--rounds 5] [--storages plimsoll,file,sqlite]

Every storage has its objects in memory. A prefetch fills RelStorage's cache, which already has
them, and does nothing in a FileStorage. A batch of loads does the same as a connection with 500
ghosts. Four threads compete for the GIL; a thread that releases it gets it back after 5 ms for each
of the others. A number is the median of the batches of all threads, with the 99th percentile in
brackets.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ZODB
from persistent.mapping import PersistentMapping
from ZODB import config
from zodb_shootout import section

OBJECTS, BATCHES = 500, 40


def open_db(folder: Path, storage: str) -> ZODB.DB:
    """The database."""
    return config.databaseFromString(section(storage, folder, "c1", "").replace(f"<zodb {storage}>", "<zodb>").replace("<zodb plimsoll>", "<zodb>"))


def make(db: ZODB.DB) -> list[bytes]:
    """Returns the oids of the objects, which it creates if necessary."""
    with db.transaction() as connection:
        root = connection.root()
        if "box" not in root:
            root["box"] = PersistentMapping({number: PersistentMapping(text=f"{number} " + "x" * 250) for number in range(OBJECTS)})
    with db.transaction() as connection:
        return [value._p_oid for value in connection.root()["box"].values()]


def run(db: ZODB.DB, threads: int, batch: Callable[[Any], object]) -> list[float]:
    """Milliseconds of each batch of each thread."""
    taken: list[float] = []
    ready = threading.Barrier(threads)

    def work() -> None:
        instance = db._mvcc_storage.new_instance()
        instance.poll_invalidations()
        batch(instance)
        ready.wait()
        own = []
        for _ in range(BATCHES):
            begun = time.perf_counter()
            batch(instance)
            own.append((time.perf_counter() - begun) * 1_000)
        taken.extend(own)
        instance.release()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return taken


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storages", default="plimsoll,file,sqlite")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    storages = arguments.storages.split(",")
    found: dict[tuple[str, str, int], list[float]] = {}
    dbs = {storage: open_db(folder, storage) for storage in storages}
    for _ in range(arguments.rounds):
        for storage, db in dbs.items():
            oids = make(db)
            ways: dict[str, Callable[[Any], object]] = {
                "prefetch": lambda instance, oids=oids: instance.prefetch(oids),
                "load": lambda instance, oids=oids: [instance.load(oid) for oid in oids],
            }
            for way, batch in ways.items():
                if hasattr(db._mvcc_storage.new_instance(), way):
                    for threads in (1, 4):
                        found.setdefault((storage, way, threads), []).extend(run(db, threads, batch))
    print("| | " + " | ".join(storages) + " |\n|---|" + "--:|" * len(storages))
    for way in ("prefetch", "load"):
        for threads in (1, 4):
            cells = []
            for storage in storages:
                taken = sorted(found.get((storage, way, threads), []))
                cells.append(f"{statistics.median(taken):.3g} ({taken[len(taken) * 99 // 100]:.3g})" if taken else "–")
            print(f"| {way}, {threads} thread{'s' * (threads > 1)} | " + " | ".join(cells) + " |")
    for db in dbs.values():
        db.close()


if __name__ == "__main__":
    main()
