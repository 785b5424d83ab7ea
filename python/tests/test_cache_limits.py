"""A cache stays within its limits: bytes of rows after every commit, files on disk, memory."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plimsoll import Cache, Corrupt, Disk, FanoutCache, IoError, Poisoned, StoreDisk
from plimsoll.cache import _rows, _store

POLICIES = ["least-recently-stored", "least-recently-used", "least-frequently-used"]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_commit_leaves_more_rows_than_the_limit(tmp_path: Path, policy: str) -> None:
    chosen = random.Random(7)
    with Cache(tmp_path, memory="16MiB", size_limit=500_000, eviction_policy=policy) as cache:
        for _ in range(600):
            key = chosen.randrange(100)
            if chosen.random() < 0.5:
                size = chosen.choice((10, 1000, 40_000, 200_000))
                assert cache.set(key, bytes(size), expire=chosen.choice((None, 1000)))
                assert key in cache
            else:
                cache.get(key)
            assert cache.volume() <= 500_000
        assert cache.check() == []


@pytest.mark.parametrize("disk", [StoreDisk, Disk])
def test_a_value_larger_than_the_limit_is_reported_and_changes_nothing(tmp_path: Path, disk: type[Disk]) -> None:
    with Cache(tmp_path, memory="16MiB", size_limit=100_000, disk=disk) as cache:
        cache["other"] = 1
        cache["key"] = b"old" * 20_000
        assert not cache.set("key", bytes(200_000)) and not cache.add("new", bytes(200_000))
        with pytest.raises(ValueError, match="100000"):
            cache["key"] = bytes(200_000)
        assert cache["key"] == b"old" * 20_000 and cache["other"] == 1 and "new" not in cache
        assert cache.check() == []
    with FanoutCache(tmp_path / "parts", memory="16MiB", size_limit=200_000, shards=2) as parts:
        with pytest.raises(ValueError, match="100000"):
            parts["key"] = bytes(150_000)


def test_used_rows_stay_after_a_restart(tmp_path: Path) -> None:
    options = {"memory": "16MiB", "size_limit": 100_000, "eviction_policy": "least-recently-used", "cull_limit": 1}
    with Cache(tmp_path, **options) as cache:
        for number in range(9):
            cache[number] = bytes(10_000)
        assert cache[0] is not None
    with Cache(tmp_path, **options) as cache:
        cache[9] = bytes(50_000)
        assert {0, 9} <= set(cache)
        assert 1 not in cache


def test_a_cache_without_eviction_grows_until_it_is_culled(tmp_path: Path) -> None:
    with Cache(tmp_path, memory="16MiB", size_limit=100_000, cull_limit=0) as cache:
        for number in range(20):
            cache[number] = bytes(10_000)
        assert cache.volume() > 200_000
        assert cache.cull() == 11
        assert cache.volume() <= 100_000
        cache.reset("eviction_policy", "none")
        cache.reset("size_limit", 0)
        assert cache.cull() == 0
        assert len(cache) == 9


@pytest.mark.parametrize("name", ["size_limit", "cull_limit", "disk_min_file_size", "statistics"])
def test_a_setting_that_no_commit_could_use_is_refused(tmp_path: Path, name: str) -> None:
    with Cache(tmp_path, memory="16MiB") as cache:
        before = getattr(cache, name)
        with pytest.raises(ValueError, match=name):
            cache.reset(name, "1MB")
        assert getattr(cache, name) == before and cache.set("a", 1)


def test_a_new_policy_ranks_existing_rows(tmp_path: Path) -> None:
    with Cache(tmp_path, memory="16MiB", size_limit=100_000, eviction_policy="none", cull_limit=1) as cache:
        for number in range(9):
            cache[number] = bytes(10_000)
        cache.reset("eviction_policy", "least-frequently-used")
        for number in range(5):
            cache.get(number)
        assert cache.check() == []
        cache[9] = bytes(20_000)
        assert set(cache) >= {0, 1, 2, 3, 4, 9}
        with pytest.raises(ValueError, match="least-recently-used"):
            cache.reset("eviction_policy", "random")


def files_bytes(folder: Path) -> int:
    """Bytes that the files in a folder occupy on disk, as `du` counts them."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


@pytest.mark.parametrize("size", [200, 3_000, 50_000, 400_000, "mixed"])
@pytest.mark.parametrize("is_overwritten", [False, True])
def test_the_disk_space_stays_bounded_while_much_is_written(tmp_path: Path, size: int | str, is_overwritten: bool) -> None:
    limit, chosen = 10_000_000, random.Random(7)
    mean = 60_000 if size == "mixed" else int(size)
    # Below the limit, so that rows are overwritten in any order and none is evicted.
    keys = limit * 3 // 4 // (mean + 400)
    most = written = number = 0
    with Cache(tmp_path, memory="16MiB", size_limit=limit) as cache:
        while written < (15_000_000 if mean == 200 else 80_000_000):
            value = chosen.randbytes(int(10 ** chosen.uniform(1.5, 5.5)) if size == "mixed" else mean)
            cache[chosen.randrange(keys) if is_overwritten else number] = value
            written, number = written + len(value), number + 1
            if number % max(1, 400_000 // mean) == 0:
                most = max(most, files_bytes(tmp_path))
        assert most <= limit * 3 // 2 + (16 << 20), f"{most} bytes of files for rows of {limit}"
        assert cache.check() == []
        memory = cache._handle.use.store.db.stats()["memory"]  # type: ignore[union-attr]
        assert memory["peak_bytes"] <= 16 << 20


@pytest.mark.parametrize("ranked_max", [1_000, 2])
def test_the_row_stored_first_is_evicted_first_despite_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranked_max: int
) -> None:
    monkeypatch.setattr(_rows, "RANKED_MAX", ranked_max)
    chosen = random.Random(7)
    stored: dict[int, None] = {}
    with Cache(tmp_path, size_limit=25_000, memory="16MiB") as cache:
        for _ in range(600):
            key = chosen.randrange(40)
            stored.pop(key, None)
            stored[key] = None
            assert cache.set(key, bytes(chosen.randrange(1_200)))
            assert key in cache
            assert cache.volume() <= 25_000
            if ranked_max == 1_000:
                assert set(cache) == set(list(stored)[-len(cache) :])
        assert len(cache) < len(stored)
        assert cache.check() == []
        # One policy's ranks are meaningless to another.
        for policy in ("least-recently-used", "least-recently-stored", "least-frequently-used", "least-recently-stored"):
            cache.reset("eviction_policy", policy)
            assert cache.check() == []


def test_upkeep_compacts_during_writes_and_only_if_worthwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: Any
) -> None:
    for name in ("UPKEEP_BYTES", "UPKEEP_LEAST_BYTES", "GARBAGE_BYTES", "SPARE_BYTES", "REGAINED_BYTES"):
        monkeypatch.setattr(_store, name, 100_000)
    with Cache(tmp_path, memory="16MiB", size_limit=100_000, eviction_policy="none") as cache:
        store = cache._handle.use.store
        store._upkeep_bytes = 100_000
        db, compacted = store.db, []

        def compact() -> None:
            assert store._turn._lock.acquire(blocking=False), "others cannot write meanwhile"
            store._turn._lock.release()
            compacted.append(db.stats()["disk_bytes"])
            db.compact()

        store.db = around(db, compact=compact)
        for number in range(100):
            cache[number] = random.Random(number).randbytes(50_000)
        store.db = db
        # 50 rounds of upkeep in a cache that only grows, beyond its limit.
        assert 2 <= len(compacted) <= 25


@pytest.mark.parametrize("error", [IoError(errno.ENOSPC, "no space left on device"), OSError(errno.EROFS, "read-only"), Poisoned("a sync failed")])
def test_a_committed_write_succeeds_even_if_upkeep_fails(
    tmp_path: Path, around: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(_store, "GARBAGE_BYTES", -(1 << 40))
    rounds: list[int] = []

    def fail(glsn: int) -> None:
        raise error

    with Cache(tmp_path, memory="16MiB") as cache:
        store = cache._handle.use.store
        db = store.db

        def trim_with(trim: Callable[[int], Any]) -> None:
            store.db = around(db, log=around(db.log, trim=trim))
            store._upkeep_bytes = 0

        trim_with(fail)
        assert cache.set("key", 1)
        assert str(error) in caplog.text and str(tmp_path) in caplog.text
        trim_with(rounds.append)
        assert cache.set("other", 2)
        assert len(rounds) == 1, "a later round makes up for it"
        store.db = db
        assert (cache["key"], cache["other"]) == (1, 2)


def test_damage_found_by_upkeep_is_reported(
    tmp_path: Path, around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "GARBAGE_BYTES", -(1 << 40))
    def fail(glsn: int) -> None:
        raise Corrupt("a page is not what was written")

    with Cache(tmp_path, memory="16MiB") as cache:
        store = cache._handle.use.store
        db, store.db = store.db, around(store.db, log=around(store.db.log, trim=fail))
        store._upkeep_bytes = 0
        with pytest.raises(Corrupt):
            cache["key"] = 1
        store.db = db
        assert cache["key"] == 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [2_000, 100_000])
def test_clear_reclaims_disk_space_at_once(tmp_path: Path, shared: bool, size: int) -> None:
    with Cache(tmp_path, memory="16MiB", shared=shared) as cache:
        with cache.transact():
            for number in range(50_000_000 // size):
                cache[number] = bytes([number % 256]) * size
        before = cache.disk_bytes()
        assert cache.clear() == 50_000_000 // size
        assert cache.disk_bytes() < before // 2
        assert cache.check() == []


def test_get_and_close_succeed_if_a_full_disk_rejects_usage_updates(
    tmp_path: Path, around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: Any) -> Any:
        raise IoError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(_rows, "TOUCHED_MAX", 0)
    with Cache(tmp_path, memory="16MiB", eviction_policy="least-recently-used") as cache:
        cache["key"] = 1
        store = cache._handle.use.store
        store.db = around(store.db, transaction=fail)
        assert cache["key"] == 1
        with pytest.raises(IoError):
            cache["key"] = 2
        monkeypatch.undo()
        assert cache["key"] == 1
        assert store.tables[""].has_news, "the close has a use to write"
    with Cache(tmp_path, memory="16MiB") as cache:
        assert cache["key"] == 1 and cache.check() == []
