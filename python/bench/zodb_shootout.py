"""Runs zodbshootout for one storage and one kind of concurrency, and prints tables of the results.

    pip install './python[zodb]' zodbshootout 'pyperf==2.3.0' ZEO RelStorage psycopg2-binary
    python bench/zodb_shootout.py run FOLDER c1 plimsoll [--postgres DSN] [--benchmarks add,cold]
    python bench/zodb_shootout.py table FOLDER

Kinds: c1 (one client), p5 (five processes), t5 (five threads on one database). Storages: plimsoll (with history), plimsoll-unwarmed (with history, warm off), plimsoll-free (without), file, zeo, sqlite,
pg, pg-cache (with cache-local-dir, in its second start). RelStorage is history-free, as in its own tables; FileStorage and ZEO keep history.

A transaction has 500 objects of 300 bytes. Every storage except RelStorage on SQLite syncs its
commits. A cell is the median milliseconds of a transaction, with the smallest in brackets; of five
clients the slowest counts. `cold` empties the caches in the process that a storage allows to be
emptied (RelStorage's, ZEO's). Files stay in the system's page cache, and a Plimsoll store keeps its
memory, because it is the store.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

PARTS = [["add", "store", "update", "cold", "prefetch_cold", "warm", "hot", "conflicts", "new_oid"], ["steamin", "tpc"]]
"""One run of zodbshootout; the first run begins with an empty database."""
BENCHMARKS = [name for part in PARTS for name in part]
STORAGES = ["plimsoll", "plimsoll-unwarmed", "plimsoll-free", "file", "zeo", "sqlite", "pg", "pg-cache"]
KINDS = {"c1": ["-c", "1"], "p5": ["-c", "5"], "t5": ["-c", "5", "--threads", "shared"]}
FAILED_SECONDS = 60
"""zodbshootout reports 66.6 or 666 seconds if a benchmark failed."""


def section(storage: str, folder: Path, kind: str, postgres: str) -> str:
    """The storage in ZConfig."""
    if storage.startswith("plimsoll"):
        history = "off" if storage.endswith("free") else "on"
        memory = "shared on\n memory-total 700MB" if kind == "p5" else "memory 256MB"
        warm = "off" if storage.endswith("unwarmed") else "on"
        options = f"path {folder}/{storage}\n keep-history {history}\n warm {warm}\n {memory}"
        return f"%import plimsoll.zodb\n<zodb plimsoll>\n<plimsoll>\n {options}\n</plimsoll>\n</zodb>"
    if storage == "file":
        return f"<zodb file>\n<filestorage>\n path {folder}/data.fs\n</filestorage>\n</zodb>"
    if storage == "zeo":
        return f"%import ZEO\n<zodb zeo>\n<zeoclient>\n server {folder}/zeo.sock\n wait true\n cache-size 100MB\n</zeoclient>\n</zodb>"
    options = "keep-history false\n cache-local-mb 100"
    if storage == "pg-cache":
        options += f"\n cache-local-dir {folder}/pg-cache"
    if storage == "sqlite":
        database = f"<sqlite3>\n data-dir {folder}/sqlite\n</sqlite3>"
    else:
        database = f"<postgresql>\n dsn {postgres}\n</postgresql>"
    return f"%import relstorage\n<zodb {storage}>\n<relstorage>\n {options}\n {database}\n</relstorage>\n</zodb>"


def serve_zeo(folder: Path) -> subprocess.Popen[bytes]:
    """A ZEO server over a FileStorage."""
    config = folder / "zeo.conf"
    config.write_text(f"<zeo>\n address {folder}/zeo.sock\n</zeo>\n<filestorage 1>\n path {folder}/zeo.fs\n</filestorage>\n")
    server = subprocess.Popen([sys.executable, "-m", "ZEO.runzeo", "-C", str(config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (folder / "zeo.sock").exists():
        if time.monotonic() > deadline:
            raise SystemExit("the ZEO server does not start")
        time.sleep(0.1)
    return server


def run(folder: Path, kind: str, storage: str, benchmarks: list[str], postgres: str, values: int) -> None:
    """Runs the benchmarks of a storage, and stores pyperf's results."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    config = folder / f"{storage}-{kind}.conf"
    config.write_text(section(storage, folder, kind, postgres) + "\n")
    server = serve_zeo(folder) if storage == "zeo" else None
    try:
        for number, part in enumerate(PARTS):
            wanted = [name for name in part if name in benchmarks]
            if not wanted:
                continue
            zaps = "add" in wanted
            command = [sys.executable, "-m", "zodbshootout", "--object-counts", "500", *KINDS[kind], "--include-mapping", "false"]
            command += ["--log", "ERROR", "-p", "1", "-n", str(values), "-w", "1", *(["--zap", "force", "-l", "1"] if zaps else [])]
            output = folder / "results" / f"{storage}.{kind}.{number}.json"
            output.unlink(missing_ok=True)
            command += ["-o", str(output), str(config), *wanted]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{storage} {kind} {wanted} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}", file=sys.stderr)
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait()


def results(folder: Path, storage: str, kind: str) -> dict[str, list[float]]:
    """Milliseconds by benchmark, without failed ones."""
    found = {}
    for file in (folder / "results").glob(f"{storage}.{kind}.*.d/*.json"):
        for benchmark in json.loads(file.read_text())["benchmarks"]:
            name = benchmark.get("metadata", {}).get("name") or json.loads(file.read_text())["metadata"]["name"]
            values = [value * 1000 for of_run in benchmark["runs"] for value in of_run.get("values", [])]
            if values and max(values) < FAILED_SECONDS * 1000:
                found[name] = values
    return found


def table(folder: Path) -> None:
    """Prints a table for each kind."""
    for kind in KINDS:
        rows = {storage: found for storage in STORAGES if (found := results(folder, storage, kind))}
        if not rows:
            continue
        print(f"\n| {kind} | " + " | ".join(BENCHMARKS) + " |")
        print("|---|" + "--:|" * len(BENCHMARKS))
        for storage, found in rows.items():
            cells = [f"{statistics.median(found[name]):.3g} ({min(found[name]):.3g})" if name in found else "–" for name in BENCHMARKS]
            print(f"| {storage} | " + " | ".join(cells) + " |")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_run = commands.add_parser("run")
    of_run.add_argument("folder", type=Path)
    of_run.add_argument("kind", choices=KINDS)
    of_run.add_argument("storage", choices=STORAGES)
    of_run.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    of_run.add_argument("--postgres", default="dbname=shootout", help="how to reach a database of PostgreSQL")
    of_run.add_argument("--values", type=int, default=4)
    commands.add_parser("table").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.command == "table":
        table(folder)
    else:
        os.environ["PYTHONHASHSEED"] = "0"
        run(folder, arguments.kind, arguments.storage, arguments.benchmarks.split(","), arguments.postgres, arguments.values)


if __name__ == "__main__":
    main()
