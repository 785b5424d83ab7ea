"""Restarts RelStorage with and without its persistent cache: relstorage_restart.py FOLDER
HOT_OBJECTS TIMES [BACKEND ...].

Stores HOT_OBJECTS x TIMES objects of about 100 bytes in SQLite and in PostgreSQL (BACKEND: sqlite,
postgres; a separate server in FOLDER, reached by a socket there), reads HOT_OBJECTS of them until
the cache (`cache-local-mb`) holds them, and ends: it closes the store, or is killed. Another
process, with cold files and a restarted server, opens the store and reads 10,000 of them. Prints
one JSON line per configuration: milliseconds of 10,000 warm reads, of closing, of opening and the
first read, of the first 10,000 reads, and resident bytes afterwards. `pip install RelStorage ZODB
psycopg2-binary`.

A transaction stores the first object; the others are copies of its rows with other bytes, inserted
by SQL, which does not affect reads.
"""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

READS = 10_000
PREFETCH = 2_000
ROWS_AT_ONCE = 100_000
PLACE = b"0123456789abcdef" * 4


def open_store(folder, backend, persistent, megabytes):
    from relstorage.options import Options
    from relstorage.storage import RelStorage

    cache = {"cache_local_dir": os.path.join(folder, "cache"), "cache_prefix": "bench"} if persistent else {}
    options = Options(keep_history=False, cache_local_mb=megabytes, cache_local_object_max=1 << 20, **cache)
    if backend == "sqlite":
        from relstorage.adapters.sqlite.adapter import Sqlite3Adapter

        adapter = Sqlite3Adapter(data_dir=os.path.join(folder, "data"), pragmas={}, options=options)
    else:
        from relstorage.adapters.postgresql import PostgreSQLAdapter

        adapter = PostgreSQLAdapter(dsn=dsn(folder), options=options)
    return RelStorage(adapter, create=True, options=options)


def import_all(backend):
    """Bytes that a process read before it opened a store do not count against the store."""
    import relstorage.storage  # noqa: F401

    if backend == "sqlite":
        import relstorage.adapters.sqlite.adapter  # noqa: F401
    else:
        import psycopg2  # noqa: F401
        import relstorage.adapters.postgresql  # noqa: F401
        import relstorage.adapters.postgresql.drivers.psycopg2  # noqa: F401


def dsn(folder):
    return f"host={os.path.join(folder, 'socket')} dbname=bench user=postgres"


class Server:
    """PostgreSQL in its own folder, started and stopped by the folder's owner, because it refuses
    to run as root."""

    def __init__(self, folder):
        self.data, self.socket = os.path.join(folder, "postgres"), os.path.join(folder, "socket")
        where = [os.environ.get("PGBIN", "")]
        if os.path.isdir("/usr/lib/postgresql"):
            where += [f"/usr/lib/postgresql/{version}/bin" for version in sorted(os.listdir("/usr/lib/postgresql"))]
        self.bin = next((path for path in where if os.path.exists(os.path.join(path, "pg_ctl"))), None)
        if not self.bin:
            sys.exit("no PostgreSQL here: install it, or say where its programs are (PGBIN)")

    def command(self, name, *arguments):
        as_other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*as_other, os.path.join(self.bin, name), *arguments]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")

    def make(self):
        for path in (self.data, self.socket):
            os.makedirs(path, exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(path, "postgres")
        self.command("initdb", "-D", self.data, "-U", "postgres", "--auth=trust")
        self.start()
        self.command("createdb", "-h", self.socket, "-U", "postgres", "bench")

    def start(self):
        options = f"-c listen_addresses='' -c unix_socket_directories={self.socket} -c max_wal_size=4GB"
        self.command("pg_ctl", "-D", self.data, "-o", options, "-l", os.path.join(self.data, "log"), "-w", "start")

    def stop(self):
        self.command("pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop")


def make(folder, backend, objects):
    import transaction
    import ZODB
    from persistent.mapping import PersistentMapping

    database = ZODB.DB(open_store(folder, backend, False, 16), cache_size=1000)
    connection = database.open()
    first = connection.root()["first"] = PersistentMapping(value=PLACE.decode())
    transaction.commit()
    oid = first._p_oid
    state, tid = connection._storage.load(oid)
    database.close()
    oid, tid = (int.from_bytes(number, "big") for number in (oid, tid))
    assert state.count(PLACE) == 1
    before, after = state.split(PLACE)
    rows = ((oid + number, tid, before + os.urandom(len(PLACE) // 2).hex().encode() + after) for number in range(1, objects))
    (fill_sqlite if backend == "sqlite" else fill_postgres)(folder, rows)


def fill_sqlite(folder, rows):
    import sqlite3

    connection = sqlite3.connect(os.path.join(folder, "data", "main.sqlite3"))
    insert = "INSERT INTO object_state (zoid, tid, state_size, state) VALUES (?, ?, ?, ?)"
    connection.executemany(insert, ((oid, tid, len(state), state) for oid, tid, state in rows))
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def fill_postgres(folder, rows):
    import psycopg2

    connection = psycopg2.connect(dsn(folder))
    cursor = connection.cursor()
    while True:
        text = io.StringIO()
        for _, (oid, tid, state) in zip(range(ROWS_AT_ONCE), rows):
            text.write(f"{oid}\t{tid}\t{len(state)}\t\\\\x{state.hex()}\n")
        if not text.tell():
            break
        text.seek(0)
        cursor.copy_from(text, "object_state", columns=("zoid", "tid", "state_size", "state"))
    connection.commit()
    connection.autocommit = True
    cursor.execute("VACUUM ANALYZE object_state")
    cursor.execute("CHECKPOINT")
    connection.close()


def object_ids(hot, times):
    """Every TIMES-th object, so that hot objects are among cold ones."""
    return [(1 + times * number).to_bytes(8, "big") for number in range(hot)]


def read(storage, chosen):
    start = time.perf_counter()
    for oid in chosen:
        storage.load(oid)
    return (time.perf_counter() - start) * 1e3


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def live(folder, backend, megabytes, kills, hot, times):
    """Warms up and ends."""
    ids = object_ids(hot, times)
    main = open_store(folder, backend, True, megabytes)
    storage = main.new_instance()
    storage.poll_invalidations()
    for first in range(0, hot, PREFETCH):
        storage.prefetch(ids[first : first + PREFETCH])
    order = random.Random(1)
    read(storage, order.choices(ids, k=READS))
    report = {"warm_10k_ms": read(storage, order.choices(ids, k=READS)), "warm_resident_bytes": resident()}
    if kills:
        print(json.dumps(report), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.perf_counter()
    storage.release()
    main.close()
    report["close_ms"] = (time.perf_counter() - start) * 1e3
    print(json.dumps(report))


def reopen(folder, backend, persistent, megabytes, hot, times):
    """Reopens the store and reads."""
    chosen = random.Random(2).choices(object_ids(hot, times), k=READS)
    import_all(backend)
    start = time.perf_counter()
    main = open_store(folder, backend, persistent, megabytes)
    storage = main.new_instance()
    storage.poll_invalidations()
    storage.load(chosen[0])
    report = {"open_and_first_request_ms": (time.perf_counter() - start) * 1e3}
    report["first_10k_ms"] = read(storage, chosen)
    report["resident_bytes"] = resident()
    print(json.dumps(report), flush=True)
    # Its cache must not be saved.
    os._exit(0)


def drop_from_page_cache(folder):
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path):
                file = os.open(path, os.O_RDONLY)
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def child(act, *arguments):
    command = [sys.executable, __file__, "--child", act, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"{act} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1]) if act != "make" else {}


def restarts(folder, backend, server, hot, times):
    # Twice the size of the values, because its accounting adds to each.
    megabytes = max(16, hot * 400 >> 20)
    start = time.perf_counter()
    child("make", folder, backend, hot * times)
    print(f"{backend}: made in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    for end, persistent in (("close", True), ("kill", True), ("close", False)):
        shutil.rmtree(os.path.join(folder, "cache"), ignore_errors=True)
        report = {"peer": f"relstorage-{backend}", "end": end, "persistent_cache": persistent, "hot": hot, "times": times}
        if persistent:
            report |= child("live", folder, backend, megabytes, end == "kill", hot, times)
        if server:
            server.stop()
        drop_from_page_cache(folder)
        if server:
            server.start()
        report |= child("reopen", folder, backend, persistent, megabytes, hot, times)
        print(json.dumps(report), flush=True)


def main(folder, hot, times, backends):
    for backend in backends:
        place = os.path.join(os.path.abspath(folder), backend)
        os.makedirs(place)
        server = Server(place) if backend == "postgres" else None
        if server:
            server.make()
        try:
            restarts(place, backend, server, hot, times)
        finally:
            if server:
                server.stop()
        shutil.rmtree(place)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        act, folder, backend, *rest = sys.argv[2:]
        rest = [word == "True" if word in ("True", "False") else int(word) for word in rest]
        {"make": make, "live": live, "reopen": reopen}[act](folder, backend, *rest)
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or ["sqlite", "postgres"])
