"""Runs Zope's own tests twice, as they are and with their storages swapped, and compares: `../run-tests --zope`.

Swapped means that each DemoStorage or FileStorage that a test creates is a PlimsollStorage. The
same tests must run and the same must fail; some of Zope's tests fail with any storage.

    python zope_swapped.py                       both, and the comparison
    python zope_swapped.py plain|swapped TALLY   one run; the tally, a file of JSON, has what ran, what failed, and what was asked of storages of ours
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ZODB.DemoStorage
import ZODB.FileStorage
from zope.testrunner import run_internal

from plimsoll.zodb import PlimsollStorage

PACKAGES = ("App", "OFS", "Products", "Shared", "Testing", "ZPublisher", "Zope2", "webdav")
"""The packages of the distribution Zope that have tests."""

CALLS = ("load", "loadBefore", "store", "tpc_finish", "history")
"""The calls counted on each PlimsollStorage, besides the number of storages."""

TESTS_MIN, STORAGES_MIN, COMMITS_MIN, LOADS_MIN = 1_600, 200, 400, 3_000
"""Zope 6.3 runs 1,622 tests; in them are 254 storages, 460 commits and 3,931 loads."""

tally: dict[str, Any] = {"ran": [], "failed": [], "calls": collections.Counter()}


class Counting(PlimsollStorage):  # type: ignore[misc, unused-ignore]
    """A PlimsollStorage in its own folder that counts Zope's calls."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(tempfile.mkdtemp(dir=folder), "store")
        super().__init__(path, memory="16MiB", warm=False, blob_dir=path + ".blobs")
        tally["calls"]["storages"] += 1


def counted(name: str) -> Any:
    """A method that counts its calls."""

    def call(self: Counting, *arguments: Any, **named: Any) -> Any:
        tally["calls"][name] += 1
        return getattr(super(Counting, self), name)(*arguments, **named)

    return call


for _name in CALLS:
    setattr(Counting, _name, counted(_name))


def swap(folder: str) -> None:
    """Replaces every new DemoStorage and FileStorage by a PlimsollStorage. A DemoStorage over
    another storage keeps its changes in a PlimsollStorage."""
    demo = ZODB.DemoStorage.DemoStorage

    def make_demo(name: str | None = None, base: Any = None, changes: Any = None, **options: Any) -> Any:
        if base is None and changes is None:
            return Counting(folder)
        return demo(name, base, changes or Counting(folder), **options)

    ZODB.DemoStorage.DemoStorage = make_demo  # type: ignore[misc, assignment, unused-ignore]
    ZODB.FileStorage.FileStorage = lambda *_, **__: Counting(folder)  # type: ignore[misc, assignment, unused-ignore]


def note_results() -> None:
    """Notes each test that runs, and whether it passed."""
    result = unittest.TestResult

    def noting(name: str, kind: str) -> None:
        method = getattr(result, name)

        def noted(self: Any, test: Any, *arguments: Any) -> None:
            tally[kind].append(str(test))
            method(self, test, *arguments)

        setattr(result, name, noted)

    noting("startTest", "ran")
    noting("addError", "failed")
    noting("addFailure", "failed")


def run(way: str, output: str, options: list[str]) -> None:
    """Runs the tests once, and writes the tally."""
    folder = tempfile.mkdtemp(prefix="zope-")
    try:
        if way == "swapped":
            swap(folder)
        note_results()
        packages = [word for package in PACKAGES for word in ("-s", package)]
        site = str(Path(ZODB.__file__).parent.parent)
        run_internal(["--test-path", site, *packages, *options], ["zope-testrunner"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    Path(output).write_text(json.dumps(tally))


def compare() -> None:
    """Runs the tests both ways and compares the results."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("plain", "swapped"):
            output = os.path.join(folder, way)
            done = subprocess.run([sys.executable, __file__, way, output], capture_output=True, text=True, cwd=folder, check=False)
            assert os.path.exists(output), done.stdout[-2000:] + done.stderr[-2000:]
            found[way] = json.loads(Path(output).read_text())
    plain, swapped = found["plain"], found["swapped"]
    calls = swapped["calls"]
    print(f"{len(swapped['ran'])} tests of Zope, {len(swapped['failed'])} fail with its own storages, too; with ours: {calls}")
    assert sorted(swapped["ran"]) == sorted(plain["ran"])
    assert sorted(swapped["failed"]) == sorted(plain["failed"]), sorted(set(swapped["failed"]) ^ set(plain["failed"]))
    assert len(swapped["ran"]) >= TESTS_MIN and len(swapped["failed"]) <= 5
    assert calls["storages"] >= STORAGES_MIN and calls["tpc_finish"] >= COMMITS_MIN
    assert calls["load"] + calls["loadBefore"] >= LOADS_MIN
    assert not plain["calls"]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        compare()
