"""Measures the combined rate of durable sets by several processes on one store.

    pip install ./python lmdb diskcache
    python bench/processes.py FOLDER [--seconds 3] [--processes 1,16] [--rounds 3] [--peer plimsoll,cache,diskcache,lmdb,sqlite3,cache-default,diskcache-default]

Each process sets random keys out of 10,000 to 100 bytes, one at a time, each durable before it returns. SQLite and diskcache use WAL with `synchronous=FULL`; diskcache's own default
does not sync a commit. A number is the median over the rounds, with the smallest and the greatest in brackets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = "20MiB"


def plimsoll_store(folder: str) -> Callable[[bytes, bytes], object]:
    """The store."""
    import plimsoll

    db = plimsoll.open(f"{folder}/store", memory=MEMORY, shared=True, retention="latest")
    return db.put


def plimsoll_cache(folder: str) -> Callable[[bytes, bytes], object]:
    """The cache, with the durability of the store."""
    import plimsoll

    cache = plimsoll.Cache(f"{folder}/cache", memory=MEMORY, durability="sync")
    return lambda key, value: cache.set(key, value, retry=True)


def plimsoll_cache_buffered(folder: str) -> Callable[[bytes, bytes], object]:
    """The cache with its defaults: a power cut may lose the last 200 ms."""
    import plimsoll

    cache = plimsoll.Cache(f"{folder}/cache", memory=MEMORY)
    return lambda key, value: cache.set(key, value, retry=True)


def diskcache_full(folder: str) -> Callable[[bytes, bytes], object]:
    """diskcache with synced commits."""
    import diskcache

    cache = diskcache.Cache(f"{folder}/diskcache", sqlite_synchronous=2)
    return lambda key, value: cache.set(key, value, retry=True)


def diskcache_default(folder: str) -> Callable[[bytes, bytes], object]:
    """diskcache with its defaults: a power cut may lose data since the last checkpoint."""
    import diskcache

    cache = diskcache.Cache(f"{folder}/diskcache")
    return lambda key, value: cache.set(key, value, retry=True)


def lmdb_store(folder: str) -> Callable[[bytes, bytes], object]:
    """LMDB with synced transactions."""
    import lmdb

    db = lmdb.open(f"{folder}/lmdb", map_size=4 << 30)

    def put(key: bytes, value: bytes) -> None:
        with db.begin(write=True) as tx:
            tx.put(key, value)

    return put


def sqlite(folder: str) -> Callable[[bytes, bytes], object]:
    """SQLite in WAL mode with synced commits."""
    db = sqlite3.connect(f"{folder}/sqlite", timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    return lambda key, value: db.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, value))


PEERS = {
    "plimsoll": plimsoll_store,
    "cache": plimsoll_cache,
    "diskcache": diskcache_full,
    "lmdb": lmdb_store,
    "sqlite3": sqlite,
    "cache-default": plimsoll_cache_buffered,
    "diskcache-default": diskcache_default,
}


def work(peer: str, folder: str, seconds: float, start: Any, results: Any) -> None:
    """Sets keys until the time is over."""
    put = PEERS[peer](folder)
    generator = random.Random(os.getpid())
    value = generator.randbytes(100)
    start.wait()
    end = time.perf_counter() + seconds
    count, longest = 0, 0.0
    while (begun := time.perf_counter()) < end:
        put(b"%016d" % generator.randrange(10_000), value)
        longest = max(longest, time.perf_counter() - begun)
        count += 1
    results.put((count, longest))


def measure(peer: str, folder: str, processes: int, seconds: float) -> tuple[float, float]:
    """Sets per second of all processes, and the longest one in milliseconds."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=work, args=(peer, folder, seconds, start, results)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60 + seconds) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(count for count, _ in found) / seconds, max(longest for _, longest in found) * 1000


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--processes", default="1,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default=",".join(PEERS))
    arguments = parser.parse_args()
    peers = arguments.peer.split(",") if arguments.peer != parser.get_default("peer") else list(PEERS)
    for processes in map(int, arguments.processes.split(",")):
        rates: dict[str, list[float]] = {peer: [] for peer in peers}
        waits: dict[str, list[float]] = {peer: [] for peer in peers}
        for turn in range(arguments.rounds):
            for peer in peers:
                folder = arguments.folder / f"{peer}-{processes}-{turn}"
                folder.mkdir(parents=True)
                rate, longest = measure(peer, str(folder), processes, arguments.seconds)
                rates[peer].append(rate)
                waits[peer].append(longest)
        for peer in peers:
            least, middle, most = min(rates[peer]), statistics.median(rates[peer]), max(rates[peer])
            print(f"{processes:3} processes  {peer:20} {middle:9,.0f} a second ({least:,.0f} to {most:,.0f}), longest {max(waits[peer]):,.0f} ms", flush=True)


if __name__ == "__main__":
    main()
