"""Draws the requests per second of five workers on one ZODB after a restart, for several storages.

    python bench/zodb_restart.py FOLDER PICTURE.svg [--storages plimsoll,sqlite,pg-cache] [--postgres DSN]

As in `zodb_fleet.py`, the database has 160,000 objects; five warm workers are killed, and five
workers start at once. A request loads 20 objects through the storage, half of them from the hot
tenth. Time starts when all workers have imported their modules and none has opened its storage. A
point is the number of requests of all five in 100 ms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

from zodb_fleet import WORKERS, fleet, make, open_db

BIN_SECONDS, SECONDS = 0.1, 10.0
BINS = round(SECONDS / BIN_SECONDS)
NAMES = {
    "plimsoll": "Plimsoll",
    "plimsoll-unwarmed": "Plimsoll, warm off",
    "sqlite": "RelStorage, SQLite",
    "pg": "RelStorage, PostgreSQL",
    "pg-cache": "RelStorage, PostgreSQL, cache-local-dir",
}
WIDTH, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 720, 130, 8, 500, 152
STYLE = """svg { --text: #1f2328; --faint: #d5d8dc; font: 12px system-ui, sans-serif; --c0: #0b5fa5; --c1: #c2571a; --c2: #6b7f1e; --c3: #8a3fa0 }
@media (prefers-color-scheme: dark) { svg { --text: #e3e6ea; --faint: #3a4048; --c0: #5db0f5; --c1: #f0965a; --c2: #b6cc5c; --c3: #cf8fe0 } }
text { fill: var(--text) } .grid { stroke: var(--faint) }
"""


def work(folder: str, storage: str, postgres: str, seed: int, start: Any, told: Any) -> None:
    """A worker: counts its requests by time."""
    oids = (Path(folder) / f"{storage}.oids").read_bytes()
    count = len(oids) // 8
    hot = random.Random(1).sample(range(count), count // 10)
    generator = random.Random(seed)
    bins = [0] * BINS
    start.wait()
    begun = time.perf_counter()
    db = open_db(Path(folder), storage, postgres)
    instance = db.storage.new_instance()
    instance.poll_invalidations()
    while True:
        for _ in range(20):
            number = generator.choice(hot) if generator.random() < 0.5 else generator.randrange(count)
            instance.load(oids[8 * number : 8 * number + 8])
        at = int((time.perf_counter() - begun) / BIN_SECONDS)
        if at >= BINS:
            break
        bins[at] += 1
    told.put(bins)
    instance.release()
    db.close()


def measure(folder: Path, storage: str, postgres: str) -> list[float]:
    """Requests per second of all workers in each bin, after the warm workers were killed."""
    if not (folder / f"{storage}.oids").exists():
        make(folder, storage, 160_000, postgres)
    # Stop once cleanly, because RelStorage writes its cache then, and once by SIGKILL.
    fleet(folder, storage, postgres, 40_000, kill=False)
    fleet(folder, storage, postgres, 40_000, kill=True)
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(WORKERS), context.Queue()
    workers = [context.Process(target=work, args=(str(folder), storage, postgres, os.getpid() + number, start, told)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    found = [told.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return [sum(bins) / BIN_SECONDS for bins in zip(*found, strict=True)]


def draw(rates: dict[str, list[float]]) -> str:
    """The picture."""
    most = max(max(values) for values in rates.values())
    height = TOP + PLOT_HEIGHT + 24 + 18 * len(rates)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="requests a second after a restart"><style>\n{STYLE}</style>']
    for part in (0, 1, 2):
        y, x = TOP + PLOT_HEIGHT * (1 - part / 2), LEFT + PLOT_WIDTH * part / 2
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + PLOT_WIDTH}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most * part / 2:,.0f}/s</text>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + PLOT_HEIGHT + 15}" text-anchor="middle">{SECONDS * part / 2:.1f} s</text>')
    for number, (storage, values) in enumerate(rates.items()):
        points = " ".join(
            f"{LEFT + PLOT_WIDTH * (at + 1) / BINS:.1f},{TOP + PLOT_HEIGHT * (1 - value / most):.1f}" for at, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="var(--c{number})" stroke-width="1.8"/>')
        y = TOP + PLOT_HEIGHT + 34 + 18 * number
        parts.append(f'<line x1="{LEFT}" y1="{y - 4}" x2="{LEFT + 24}" y2="{y - 4}" stroke="var(--c{number})" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 32}" y="{y}">{NAMES[storage]}</text>')
    return "".join(parts) + "</svg>\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--storages", default="plimsoll,sqlite,pg-cache")
    parser.add_argument("--postgres", default="dbname=shootout")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rates = {storage: measure(folder, storage, arguments.postgres) for storage in arguments.storages.split(",")}
    for storage, values in rates.items():
        first = next((at + 1 for at, value in enumerate(values) if value), BINS) * BIN_SECONDS
        print(f"{storage}: first request within {first:.2f} s, {sum(values) * BIN_SECONDS:,.0f} in {SECONDS:.0f} s, {values[-1]:,.0f} a second at the end")
    (folder / "restart.json").write_text(json.dumps(rates))
    arguments.picture.write_text(draw(rates))


if __name__ == "__main__":
    main()
