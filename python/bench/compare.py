#!/usr/bin/env python3
"""Compares plimsoll-db with other stores for Python in one run. The stores take turns, and every
result is checked.

    pip install ./python lmdb diskcache rocksdict
    python python/bench/compare.py [--rows 100000] [--rounds 5] [--peer plimsoll,lmdb,...] [--dir FOLDER]

Keys have 16 bytes and values 100 random bytes. One process with one thread; each store with a
memory setting gets 64 MB. A "durable" operation survives a power cut once it returns; a "relaxed"
one may not. A number is the median over the rounds, in operations per second. The number in
brackets is Plimsoll's rate divided by it. A dash means "not supported".
"""

from __future__ import annotations

import argparse
import dbm
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version

MEMORY = 64_000_000
Pairs = Iterable[tuple[bytes, bytes]]


class Plimsoll:
    """The store itself."""

    def __init__(self, folder: str, durable: bool) -> None:
        import plimsoll

        self.name = f"plimsoll {version('plimsoll-db')}"
        durability = "sync" if durable else "buffered"
        self.db = plimsoll.open(f"{folder}/plimsoll", memory=MEMORY, durability=durability, retention="latest")
        self.get, self.put, self.put_many = self.db.get, self.db.put, self.db.put_many

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self.db.get_many(keys)

    def scan(self) -> Pairs:
        return self.db.items()

    def close(self) -> None:
        self.db.close()


class Lmdb:
    """One transaction per call, as in a single read or write."""

    def __init__(self, folder: str, durable: bool) -> None:
        import lmdb

        self.name = f"lmdb {version('lmdb')}"
        self.db = lmdb.open(f"{folder}/lmdb", map_size=16 << 30, sync=durable, metasync=durable)

    def get(self, key: bytes) -> bytes | None:
        with self.db.begin(buffers=False) as tx:
            return tx.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        with self.db.begin() as tx, tx.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return [found.get(key) for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        with self.db.begin(write=True) as tx:
            tx.put(key, value)

    def put_many(self, pairs: Pairs) -> None:
        with self.db.begin(write=True) as tx, tx.cursor() as cursor:
            cursor.putmulti(pairs)

    def scan(self) -> Pairs:
        with self.db.begin() as tx:
            yield from tx.cursor()

    def close(self) -> None:
        self.db.close()


class Sqlite:
    """One table, write-ahead log."""

    def __init__(self, folder: str, durable: bool) -> None:
        self.name = f"sqlite3 {sqlite3.sqlite_version}"
        self.db = sqlite3.connect(f"{folder}/sqlite.db", isolation_level=None)
        self.db.execute("pragma journal_mode = wal")
        self.db.execute(f"pragma synchronous = {'full' if durable else 'off'}")
        self.db.execute(f"pragma cache_size = -{MEMORY // 1024}")
        self.db.execute("create table pairs (key blob primary key, value blob) without rowid")

    def get(self, key: bytes) -> bytes | None:
        row = self.db.execute("select value from pairs where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), 500):
            some = keys[start : start + 500]
            marks = ",".join("?" * len(some))
            found.update(self.db.execute(f"select key, value from pairs where key in ({marks})", some))
        return [found.get(key) for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        self.db.execute("insert or replace into pairs values (?, ?)", (key, value))

    def put_many(self, pairs: Pairs) -> None:
        self.db.execute("begin")
        self.db.executemany("insert or replace into pairs values (?, ?)", pairs)
        self.db.execute("commit")

    def scan(self) -> Pairs:
        return self.db.execute("select key, value from pairs order by key")

    def close(self) -> None:
        self.db.close()


class DiskCache:
    """Its defaults, except for durability and eviction. It keeps values, not order."""

    def __init__(self, folder: str, durable: bool) -> None:
        import diskcache

        self.name = f"diskcache {version('diskcache')}"
        self.db = diskcache.Cache(
            f"{folder}/diskcache", sqlite_synchronous=2 if durable else 0, eviction_policy="none", size_limit=1 << 40
        )
        self.get, self.put = self.db.get, self.db.set

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.db.get(key) for key in keys]

    def put_many(self, pairs: Pairs) -> None:
        with self.db.transact():
            for key, value in pairs:
                self.db.set(key, value)

    def scan(self) -> Pairs:
        return ((key, self.db[key]) for key in self.db.iterkeys())

    def close(self) -> None:
        self.db.close()


class RocksDict:
    """RocksDB by rocksdict, raw bytes."""

    def __init__(self, folder: str, durable: bool) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

        self.name = f"rocksdict {version('rocksdict')}"
        options = Options(raw_mode=True)
        table = BlockBasedOptions()
        table.set_block_cache(Cache(MEMORY // 2))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        self.db = Rdict(f"{folder}/rocksdict", options)
        write = WriteOptions()
        write.sync = durable
        self.db.set_write_options(write)
        self.batch = WriteBatch
        self.get, self.put = self.db.get, self.db.__setitem__

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self.db.get(keys)

    def put_many(self, pairs: Pairs) -> None:
        batch = self.batch(raw_mode=True)
        for key, value in pairs:
            batch.put(key, value)
        self.db.write(batch)

    def scan(self) -> Pairs:
        return self.db.items()

    def close(self) -> None:
        self.db.close()


class Dbm:
    """The best `dbm` on the machine: no order, no transactions, no durability."""

    def __init__(self, folder: str, durable: bool) -> None:
        if durable:
            raise NotImplementedError
        self.db = dbm.open(f"{folder}/dbm", "c")
        self.name = dbm.whichdb(f"{folder}/dbm") or "dbm.dumb"
        self.get = self.db.get

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.db.get(key) for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        self.db[key] = value

    def put_many(self, pairs: Pairs) -> None:
        for key, value in pairs:
            self.db[key] = value

    def scan(self) -> Pairs:
        return ((key, self.db[key]) for key in self.db.keys())

    def close(self) -> None:
        self.db.close()


PEERS = {"plimsoll": Plimsoll, "lmdb": Lmdb, "sqlite3": Sqlite, "diskcache": DiskCache, "rocksdict": RocksDict, "dbm": Dbm}


def rate(count: int, work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def play(store: object, rows: int, random: random.Random) -> dict[str, float]:
    """One turn of a store in its relaxed mode; returns the rates of its rows."""
    keys = [b"%016d" % number for number in range(rows)]
    values = {key: random.randbytes(100) for key in keys}
    found: dict[str, float] = {}
    batches = [keys[start : start + 1000] for start in range(0, rows, 1000)]
    random.shuffle(batches)

    def fill() -> None:
        for batch in batches:
            store.put_many([(key, values[key]) for key in batch])

    found["put, batches of 1,000, relaxed"] = rate(rows, fill)
    some = random.sample(keys, min(20_000, rows))

    def change() -> None:
        for key in some:
            store.put(key, values[key])

    found["put, one at a time, relaxed"] = rate(len(some), change)
    hot = random.sample(keys, 1_000)
    asked = random.choices(hot, k=50_000)
    for key in hot:
        assert store.get(key) == values[key]

    def get(wanted: list[bytes]) -> Callable[[], None]:
        def work() -> None:
            get = store.get
            for key in wanted:
                get(key)

        return work

    found["get, hot"] = rate(len(asked), get(asked))
    anywhere = random.choices(keys, k=50_000)
    found["get, any key"] = rate(len(anywhere), get(anywhere))
    found["get_many, 1,000 at a time"] = rate(
        50_000, lambda: [store.get_many(anywhere[start : start + 1000]) for start in range(0, 50_000, 1000)] and None
    )
    assert store.get_many(anywhere[:500]) == [values[key] for key in anywhere[:500]]
    count = 0

    def scan() -> None:
        nonlocal count
        for _ in store.scan():
            count += 1

    found["scan"] = rate(rows, scan)
    assert count == rows, (count, rows)
    return found


def commit(store: object, random: random.Random, count: int) -> dict[str, float]:
    """Single puts into a durable store."""
    pairs = [(b"%016d" % number, random.randbytes(100)) for number in range(count)]
    random.shuffle(pairs)

    def work() -> None:
        for key, value in pairs:
            store.put(key, value)

    found = {"put, one at a time, durable": rate(count, work)}
    assert store.get(pairs[7][0]) == pairs[7][1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--durable", type=int, default=500, help="durable puts in a turn")
    parser.add_argument("--peer", default=",".join(PEERS))
    parser.add_argument("--dir", default=None, help="a folder on the disk that is to be measured")
    asked = parser.parse_args()
    names: dict[str, str] = {}
    found: dict[str, dict[str, list[float]]] = {}
    for round in range(asked.rounds):
        for peer in asked.peer.split(","):
            for durable in (False, True):
                folder = tempfile.mkdtemp(dir=asked.dir)
                os.sync()
                chance = random.Random(round)
                try:
                    store = PEERS[peer](folder, durable)
                except NotImplementedError:
                    continue
                names[peer] = store.name
                rates = commit(store, chance, asked.durable) if durable else play(store, asked.rows, chance)
                store.close()
                shutil.rmtree(folder)
                for row, rate_of in rates.items():
                    found.setdefault(row, {}).setdefault(peer, []).append(rate_of)
    print("| row | " + " | ".join(names.values()) + " |")
    print("|---" + "|--:" * len(names) + "|")
    for row, rates_of in found.items():
        ours = statistics.median(rates_of.get("plimsoll", [float("nan")]))
        cells = []
        for peer in names:
            if peer not in rates_of:
                cells.append("–")
                continue
            median = statistics.median(rates_of[peer])
            ratio = "" if peer == "plimsoll" else f" ({ours / median:.2f})"
            cells.append(f"{median:,.0f}{ratio}")
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
