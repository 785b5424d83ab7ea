"""Opening, options, errors with their numbers, maintenance of a store."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import plimsoll


def test_written_rows_are_read_after_reopening(path: str) -> None:
    with plimsoll.open(path, memory="16MiB") as db:
        db[b"a"] = b"1"
        store = db.id
    with plimsoll.open(Path(path), memory=16 << 20) as db:
        assert (db[b"a"], db.id, db.path, db.read_only) == (b"1", store, path, False)
    assert repr(db) == f"<plimsoll store {path!r}>".replace("'", '"')


def test_the_package_imports_little_of_the_standard_library() -> None:
    # Workers that start together import it together; these two modules took four fifths of the time
    # to the first request.
    program = "import sys; old = set(sys.modules); import plimsoll; print(plimsoll.__version__, *sorted({'asyncio', 'importlib.metadata'} & set(sys.modules) - old))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert told == [importlib.metadata.version("plimsoll-db")]


def test_a_closed_store_says_so(path: str) -> None:
    db = plimsoll.open(path, memory="16MiB")
    db[b"a"] = b"1"
    space, snapshot, tx = db.keyspace("k"), db.snapshot(), db.transaction()
    db.close()
    db.close()
    uses = (lambda: db[b"a"], lambda: db.put(b"a", b"2"), lambda: list(space), lambda: snapshot[b"a"], lambda: tx[b"a"])
    for use in uses:
        with pytest.raises(plimsoll.Closed):
            use()


def test_a_reader_of_a_value_of_a_closed_store_says_so(path: str) -> None:
    with plimsoll.open(path, memory="16MiB") as db:
        db[b"large"] = bytes(3 << 20)
        file = db.open_value(b"large")
    with pytest.raises(plimsoll.Closed):
        file.read(1)


@pytest.mark.parametrize("given", [str, os.fsencode, Path])
def test_a_folder_is_text_bytes_or_a_path(path: str, tmp_path: Path, given: Callable[[str], Any]) -> None:
    with plimsoll.open(given(path), memory="16MiB") as db:
        db[b"a"] = b"1"
        assert db.path == path
        db.backup(given(str(tmp_path / "backup")))
    assert plimsoll.members(given(path)) == []
    assert plimsoll.verify(given(path), memory="16MiB").ok
    assert dict(plimsoll.open(given(str(tmp_path / "backup")), memory="16MiB")) == {b"a": b"1"}


def test_the_path_of_a_store_is_absolute_and_keeps_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = b"caf\xe9 \xff"
    with plimsoll.open(name, memory="16MiB") as db:
        assert os.fsencode(db.path) == os.fsencode(tmp_path) + b"/" + name
        monkeypatch.chdir("/")
        assert os.listdir(db.path) and db.put(b"a", b"1")
        db.flush()
    assert os.listdir(os.fsencode(tmp_path)) == [name]


def test_a_path_that_is_not_a_folder_is_refused() -> None:
    with pytest.raises(TypeError, match="expected str, bytes or os.PathLike object, not int"):
        plimsoll.open(7)  # type: ignore[arg-type]


def test_a_total_for_one_process_is_refused(path: str) -> None:
    with pytest.raises(plimsoll.InvalidInput, match="shared=True"):
        plimsoll.open(path, memory_total="64MiB")
    assert not os.path.exists(path)


def test_buffered_commits_are_durable_after_a_sync(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", durability="buffered") as db:
        with db.transaction() as tx:
            tx[b"a"] = b"1"
        assert db.sync() == db.newest == db.log.bounds.durable
    with pytest.raises(plimsoll.Closed):
        db.sync()


def test_an_unreferenced_store_is_closed(path: str) -> None:
    plimsoll.open(path, memory="16MiB")[b"a"] = b"1"
    gc.collect()
    with plimsoll.open(path, memory="16MiB") as db:
        assert db[b"a"] == b"1"


def test_objects_of_a_store_keep_it_open(path: str) -> None:
    space = plimsoll.open(path, memory="16MiB").keyspace("k")
    gc.collect()
    space[b"a"] = b"1"
    walk = space.items()
    del space
    gc.collect()
    assert list(walk) == [(b"a", b"1")]


def test_sizes_are_written_as_people_write_them(path: str) -> None:
    for text, size in (("16MiB", 16 << 20), ("20mb", 20_000_000), ("17 MiB", 17 << 20), ("16777216", 16 << 20), ("16m", 16 << 20)):
        with plimsoll.open(path, memory=text) as db:
            # In whole chunks of 64 KiB.
            assert size - (1 << 16) < db.stats()["memory"]["limit_bytes"] <= size
            db.set_memory("32MiB")
            assert db.stats()["memory"]["limit_bytes"] == 32 << 20
    for wrong in ("much", "", "-1", "1.5GB", "99999999999999TB"):
        with pytest.raises(plimsoll.InvalidInput, match="size"):
            plimsoll.open(path, memory=wrong)


def test_errors_carry_their_numbers(path: str) -> None:
    with pytest.raises(plimsoll.InvalidInput) as small:
        plimsoll.open(path, memory="1MiB")
    assert (small.value.bytes, small.value.limit_bytes) == (1 << 20, 16 << 20)
    assert isinstance(small.value, ValueError)
    with pytest.raises(plimsoll.NotAStore) as nothing:
        plimsoll.open(path, memory="16MiB", create=False)
    assert nothing.value.path == path
    with pytest.raises(plimsoll.InvalidInput, match="durability"):
        plimsoll.open(path, durability="maybe")  # type: ignore[arg-type]
    with pytest.raises(plimsoll.InvalidInput, match="retention"):
        plimsoll.open(path, retention=timedelta(days=-1))
    with plimsoll.open(path, memory="16MiB") as db:
        with pytest.raises(plimsoll.InvalidInput) as long:
            db[b"k" * 5_000] = b""
        assert (long.value.bytes, long.value.limit_bytes) == (5_000, 4_096)
        with pytest.raises(plimsoll.Locked) as locked:
            plimsoll.open(path, memory="16MiB")
        assert (locked.value.path, locked.value.pid) == (path, os.getpid())
    with pytest.raises(plimsoll.IoError) as failed:
        plimsoll.open("/proc/no/store", memory="16MiB")
    assert isinstance(failed.value, OSError) and failed.value.errno == 2


def test_read_only_opens_beside_a_writer_and_writes_nothing(path: str) -> None:
    with plimsoll.open(path, memory="16MiB") as db:
        db[b"a"] = b"1"
        with plimsoll.open(path, memory="16MiB", read_only=True) as reader:
            assert reader[b"a"] == b"1" and reader.read_only
            with pytest.raises(plimsoll.ReadOnly):
                reader[b"b"] = b"2"


def test_a_backup_is_a_store(db: plimsoll.Db, tmp_path: Path) -> None:
    db[b"a"] = b"1"
    report = db.backup(tmp_path / "copy")
    assert report.glsn == db.newest and report.files > 0
    with plimsoll.open(tmp_path / "copy", memory="16MiB") as copy:
        assert copy[b"a"] == b"1"
    assert db.backup(str(tmp_path / "whole"), copy=True).bytes_linked == 0


def test_a_store_in_memory_has_no_backup_and_says_what_to_do(tmp_path: Path) -> None:
    db = plimsoll.in_memory()
    db[b"a"] = b"1"
    with pytest.raises(plimsoll.InvalidInput, match="put_many"):
        db.backup(tmp_path / "backup")
    with plimsoll.open(tmp_path / "backup", memory="16MiB") as saved:
        saved.put_many(db)
        assert dict(saved) == {b"a": b"1"}


def test_damage_is_reported(path: str) -> None:
    with plimsoll.open(path, memory="16MiB") as db:
        db.put_many((b"%05d" % number, b"x" * 100) for number in range(5_000))
        db.flush()
        seen: list[tuple[int, int]] = []
        assert db.verify(lambda done, total: seen.append((done, total))).ok
        assert seen and all(done <= total for done, total in seen)
    run = max(Path(path).rglob("*.run"), key=lambda file: file.stat().st_size)
    bytes_of = bytearray(run.read_bytes())
    bytes_of[len(bytes_of) // 2] ^= 1
    run.write_bytes(bytes_of)
    report = plimsoll.verify(path, memory="16MiB")
    assert not report.ok and any(run.name in problem for problem in report.problems)
    with plimsoll.open(path, memory="16MiB") as db, pytest.raises(plimsoll.Corrupt) as caught:
        list(db.items())
    assert caught.value.file is not None and run.name in caught.value.file


def test_a_damaged_store_is_recovered_into_a_new_one(path: str) -> None:
    with plimsoll.open(path, memory="16MiB") as db:
        db.put_many((b"%05d" % number, b"x" * 100) for number in range(5_000))
        db.flush()
    run = max(Path(path).rglob("*.run"), key=lambda file: file.stat().st_size)
    bytes_of = bytearray(run.read_bytes())
    bytes_of[len(bytes_of) // 2] ^= 1
    run.write_bytes(bytes_of)
    dest = path + ".recovered"
    assert plimsoll.recover(path, dry_run=True, memory="16MiB").whole
    assert not Path(dest).exists()
    report = plimsoll.recover(path, dest, memory="16MiB")
    assert report.whole and report.index in ("log", "log and runs") and len(report.damage) == 1
    with plimsoll.open(dest, memory="16MiB") as db:
        assert len(db) == 5_000 and db.verify().ok
    with pytest.raises(TypeError):
        plimsoll.recover(path)
    assert not plimsoll.verify(path, memory="16MiB").ok


def test_a_progress_callback_may_end_a_verification(db: plimsoll.Db) -> None:
    db.put_many((b"%05d" % number, b"x" * 1000) for number in range(5_000))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        db.verify(stop)
    assert db.verify().ok


def test_process_memory_stays_below_its_limit(path: str) -> None:
    program = f"""
import plimsoll
def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
before = anonymous()
with plimsoll.open({path!r}, memory="32MiB", durability="buffered") as db:
    peak = 0
    for batch in range(100):
        db.put_many((b"%08d" % (n * 7919 % 1_000_003), b"x" * 100) for n in range(batch * 3000, batch * 3000 + 3000))
        peak = max(peak, anonymous())
    assert db.count() == 300_000
    peak = max(peak, anonymous())
# Python's own objects (a batch of rows) come on top.
assert peak - before < (32 << 20) + (8 << 20), peak - before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
