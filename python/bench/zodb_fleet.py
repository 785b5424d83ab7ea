"""Restarts five workers on one ZODB; measures the time to the first request, the first 1,000 loads,
and memory.

    python bench/zodb_fleet.py FOLDER STORAGE [--objects 160000] [--postgres DSN] [--loads 40000]

STORAGE: plimsoll, pg-cache (RelStorage with cache-local-dir), pg, sqlite. The benchmark creates a
database of that many objects of about 300 bytes. Five workers load objects until they are warm;
half of the loads go to a tenth of the objects. The workers are stopped, once cleanly and once by
SIGKILL. Then five workers start at once. A request loads 20 objects through the storage, bypassing
ZODB's own cache. A hit is a load within 10 microseconds; no storage reads from a file or a server
in that time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import transaction
import ZODB
from persistent.mapping import PersistentMapping
from ZODB import config
from zodb_shootout import section

WORKERS = 5
HIT_SECONDS = 10e-6


def open_db(folder: Path, storage: str, postgres: str) -> ZODB.DB:
    """The database as a worker opens it."""
    text = section(storage, folder, "p5", postgres)
    return config.databaseFromString(text.replace(f"<zodb {storage}>", "<zodb>").replace("<zodb plimsoll>", "<zodb>"))


def make(folder: Path, storage: str, objects: int, postgres: str) -> None:
    """Makes the objects."""
    db = open_db(folder, storage, postgres)
    connection = db.open()
    oids = []
    for first in range(0, objects, 5_000):
        box = connection.root()[f"{first}"] = PersistentMapping()
        for number in range(first, first + 5_000):
            box[number] = PersistentMapping(text=f"{number} " + "x" * 200)
        transaction.commit()
        oids += [box[number]._p_oid for number in range(first, first + 5_000)]
        connection.cacheMinimize()
    connection.close()
    db.close()
    (folder / f"{storage}.oids").write_bytes(b"".join(oids))


def work(folder: str, storage: str, postgres: str, loads: int, seed: int, start: Any, told: Any, stop: Any) -> None:
    """A worker: reports its first request and its first 1,000 loads, then continues until it is
    stopped."""
    oids = (Path(folder) / f"{storage}.oids").read_bytes()
    count = len(oids) // 8
    hot = random.Random(1).sample(range(count), count // 10)
    generator = random.Random(seed)

    def some() -> bytes:
        number = generator.choice(hot) if generator.random() < 0.5 else generator.randrange(count)
        return oids[8 * number : 8 * number + 8]

    start.wait()
    begun = time.perf_counter()
    db = open_db(Path(folder), storage, postgres)
    opened = time.perf_counter() - begun
    instance = db.storage.new_instance()
    instance.poll_invalidations()
    hits = 0
    first = 0.0
    for number in range(1_000):
        oid, asked = some(), time.perf_counter()
        instance.load(oid)
        hits += time.perf_counter() - asked < HIT_SECONDS
        if number == 19:
            first = time.perf_counter() - begun
    thousand = time.perf_counter() - begun
    for _ in range(loads):
        instance.load(some())
    told.put((opened, first, thousand, hits / 1_000, memory()))
    stop.wait()
    instance.release()
    db.close()


def memory() -> int:
    """Bytes of this process, counting its share of shared memory (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def fleet(folder: Path, storage: str, postgres: str, loads: int, kill: bool) -> list[tuple[float, ...]]:
    """Starts the workers, and stops them once all have reported."""
    context = multiprocessing.get_context("spawn")
    start, told, stop = context.Barrier(WORKERS), context.Queue(), context.Event()
    workers = [
        context.Process(target=work, args=(str(folder), storage, postgres, loads, os.getpid() + number, start, told, stop))
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    found = [told.get(timeout=300) for _ in workers]
    if kill:
        for worker in workers:
            worker.kill()
    else:
        stop.set()
    for worker in workers:
        worker.join()
    return found


def show(title: str, found: list[tuple[float, ...]]) -> None:
    """One line."""
    opened, first, thousand, hits, used = (list(column) for column in zip(*found, strict=True))
    print(
        f"{title}: opened {statistics.median(opened):.3f} s, first request {statistics.median(first):.3f} s (slowest {max(first):.3f}), 1,000 loads "
        f"{statistics.median(thousand):.3f} s (slowest {max(thousand):.3f}), hits {100 * min(hits):.0f} to {100 * max(hits):.0f} %, memory of all {sum(used) / 1e6:.0f} MB",
        flush=True,
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("storage")
    parser.add_argument("--objects", type=int, default=160_000)
    parser.add_argument("--loads", type=int, default=40_000)
    parser.add_argument("--postgres", default="dbname=shootout")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"{arguments.storage}.oids").exists():
        make(folder, arguments.storage, arguments.objects, arguments.postgres)
    run = (folder, arguments.storage, arguments.postgres, arguments.loads)
    show(f"{arguments.storage}, first start", fleet(*run, kill=False))
    show(f"{arguments.storage}, after a clean stop", fleet(*run, kill=True))
    show(f"{arguments.storage}, after SIGKILL", fleet(*run, kill=False))


if __name__ == "__main__":
    main()
