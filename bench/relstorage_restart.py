"""Restarts RelStorage over SQLite, with its persistent cache and without: relstorage_restart.py FOLDER HOT_OBJECTS TIMES.

Stores HOT_OBJECTS x TIMES objects of some 100 bytes, reads HOT_OBJECTS of them, without order, until its cache (`cache-local-mb`) has
them, and ends: it closes the store, or is killed. Another process, with the files out of the page cache, opens it and reads 10,000 of
them. Prints one JSON line for each way: milliseconds of 10,000 reads when warm, of closing, of opening and the first read, of the first
10,000 reads, and resident bytes afterwards. `pip install RelStorage ZODB`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

READS = 10_000
BATCH = 20_000


def open_store(folder, persistent, megabytes):
    from relstorage.adapters.sqlite.adapter import Sqlite3Adapter
    from relstorage.options import Options
    from relstorage.storage import RelStorage

    cache = {"cache_local_dir": os.path.join(folder, "cache"), "cache_prefix": "bench"} if persistent else {}
    options = Options(keep_history=False, cache_local_mb=megabytes, cache_local_object_max=1 << 20, **cache)
    adapter = Sqlite3Adapter(data_dir=os.path.join(folder, "data"), pragmas={}, options=options)
    return RelStorage(adapter, create=True, options=options)


def make(folder, objects):
    import transaction
    import ZODB
    from persistent.mapping import PersistentMapping

    database = ZODB.DB(open_store(folder, False, 16), cache_size=1000)
    connection = database.open()
    root = connection.root()
    for first in range(0, objects, BATCH):
        batch = root[first] = PersistentMapping()
        for number in range(first, min(objects, first + BATCH)):
            batch[number] = PersistentMapping(value=os.urandom(16).hex())
        transaction.commit()
        connection.cacheMinimize()
    database.close()


def object_ids(folder, hot, times):
    """Every TIMES-th object, so that hot ones stand among cold ones."""
    import sqlite3

    connection = sqlite3.connect(os.path.join(folder, "data", "main.sqlite3"))
    rows = connection.execute("SELECT zoid FROM object_state ORDER BY zoid").fetchall()
    connection.close()
    return [row[0].to_bytes(8, "big") for row in rows[::times]][:hot]


def read(storage, chosen):
    start = time.perf_counter()
    for oid in chosen:
        storage.load(oid)
    return (time.perf_counter() - start) * 1e3


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def live(folder, persistent, megabytes, kills, hot, times):
    """Becomes warm, and ends."""
    ids = object_ids(folder, hot, times)
    main = open_store(folder, persistent, megabytes)
    storage = main.new_instance()
    storage.poll_invalidations()
    order = random.Random(1)
    read(storage, ids)
    report = {"warm_10k_ms": read(storage, order.choices(ids, k=READS))}
    if kills:
        print(json.dumps(report), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.perf_counter()
    storage.release()
    main.close()
    report["close_ms"] = (time.perf_counter() - start) * 1e3
    print(json.dumps(report))


def reopen(folder, persistent, megabytes, hot, times):
    """Opens it again, and reads."""
    ids = object_ids(folder, hot, times)
    drop_from_page_cache(folder)
    chosen = random.Random(2).choices(ids, k=READS)
    start = time.perf_counter()
    main = open_store(folder, persistent, megabytes)
    storage = main.new_instance()
    storage.poll_invalidations()
    storage.load(chosen[0])
    report = {"open_and_first_request_ms": (time.perf_counter() - start) * 1e3}
    report["first_10k_ms"] = read(storage, chosen)
    report["resident_bytes"] = resident()
    print(json.dumps(report), flush=True)
    # What it learned is not to be kept.
    os._exit(0)


def drop_from_page_cache(folder):
    for where, _, names in os.walk(folder):
        for name in names:
            file = os.open(os.path.join(where, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def child(act, *arguments):
    command = [sys.executable, __file__, "--child", act, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"{act} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1]) if act != "make" else {}


def main(folder, hot, times):
    # Twice what the values take: its own account adds to each.
    megabytes = max(16, hot * 400 >> 20)
    child("make", folder, hot * times)
    for end in ("close", "kill"):
        for persistent in (True, False):
            report = {"peer": "relstorage-sqlite", "end": end, "persistent_cache": persistent, "hot": hot}
            report |= child("live", folder, persistent, megabytes, end == "kill", hot, times)
            report |= child("reopen", folder, persistent, megabytes, hot, times)
            print(json.dumps(report), flush=True)
            for where, _, names in os.walk(os.path.join(folder, "cache")):
                for name in names:
                    os.remove(os.path.join(where, name))


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        act, folder, *rest = sys.argv[2:]
        rest = [word == "True" if word in ("True", "False") else int(word) for word in rest]
        {"make": make, "live": live, "reopen": reopen}[act](folder, *rest)
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
