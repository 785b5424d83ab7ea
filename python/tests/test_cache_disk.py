"""A cache stores keys and values as its disk converts them, and keeps the files in step with the
rows."""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll.cache import UNKNOWN

LONG = b"0123456789" * 10_000


class Hashed(plimsoll.Disk):
    """A file is named after its key."""

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        name = f"{self.hash(key):08x}.bin"
        return name, os.path.join(self.directory, name)


class Flaky(plimsoll.StoreDisk):
    """Fails a given number of fetches."""

    failures = 0
    error: type[OSError] = FileNotFoundError

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if Flaky.failures:
            Flaky.failures -= 1
            raise Flaky.error("no such file")
        return super().fetch(mode, filename, value, read)


class Pairs(plimsoll.StoreDisk):
    """Converts keys to its own form: raw and not raw, of each type that is stored."""

    def put(self, key: Any) -> tuple[Any, bool]:
        return memoryview(repr(key).encode()) if key[0] == "bytes" else key[1], key[0] != "other"

    def get(self, key: Any, raw: bool) -> Any:
        return ("raw" if raw else "other", key)


def files(folder: str | Path) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*") if path.is_file() and "store" not in path.relative_to(folder).parts[:1])


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with plimsoll.Cache(tmp_path / "cache", disk=plimsoll.Disk, memory="16MiB") as made:
        yield made


@pytest.mark.parametrize("disk", [plimsoll.Disk, plimsoll.StoreDisk, plimsoll.JSONDisk])
def test_values_of_all_kinds_come_back(tmp_path: Path, disk: type[plimsoll.Disk]) -> None:
    with plimsoll.Cache(tmp_path, disk=disk, disk_min_file_size=1000, memory="16MiB") as cache:
        values = [None, 7, 2**70, 1.5, "text", "long" * 1000, {"a": [1, "b"]}, ["x"] * 1000, ["\ud83d\ude00"]]
        if disk is not plimsoll.JSONDisk:
            values += [b"bytes", LONG, (1, {2}), "\ud800" * 1000]
        for number, value in enumerate(values):
            assert cache.set(f"key {number}", value)
            assert cache.get(f"key {number}") == value
        assert list(cache) == [f"key {number}" for number in range(len(values))]
        assert sorted(cache.iterkeys()) == sorted(cache)
        assert cache.check() == []
        assert [cache.pop(f"key {number}") for number in range(len(values))] == values
        assert files(tmp_path) == []


def test_a_long_value_is_a_file_that_goes_with_its_row(cache: Any) -> None:
    cache["short"], cache["long"] = b"short", LONG
    (path,) = files(cache.directory)
    assert path.read_bytes() == LONG
    with cache.get("long", read=True) as file:
        assert file.name == str(path) and file.read() == LONG
    assert cache.volume() > len(LONG)
    cache["long"] = b"short"
    assert files(cache.directory) == []
    for remove in (lambda: cache.delete("long"), lambda: cache.pop("long"), cache.clear, lambda: cache.evict("tag")):
        cache.set("long", LONG, tag="tag")
        assert len(files(cache.directory)) == 1
        remove()
        assert files(cache.directory) == []
    cache.push(LONG)
    assert cache.pull()[1] == LONG
    assert files(cache.directory) == []


def test_the_limit_counts_files_and_evicts_them(cache: Any) -> None:
    cache.reset("size_limit", 5 * len(LONG))
    for key in range(20):
        assert cache.set(key, LONG)
        assert cache.volume() <= 5 * len(LONG)
        assert len(files(cache.directory)) == len(cache)
    assert not cache.set("too long", LONG * 6)
    assert len(files(cache.directory)) == len(cache) == 4


def test_files_follow_the_outcome_of_their_transaction(cache: Any) -> None:
    cache["kept"] = LONG
    (kept,) = files(cache.directory)
    with pytest.raises(RuntimeError), cache.transact():
        cache["new"] = LONG
        assert cache.pop("kept") == LONG
        assert kept.exists()
        raise RuntimeError
    assert files(cache.directory) == [kept]
    assert cache["kept"] == LONG
    with cache.transact():
        assert cache.pop("kept") == LONG
    assert files(cache.directory) == []


def test_an_add_that_finds_a_value_leaves_no_file(cache: Any) -> None:
    assert cache.add("key", LONG)
    assert not cache.add("key", LONG)
    assert len(files(cache.directory)) == 1


def test_a_value_whose_file_is_gone_is_missing(cache: Any) -> None:
    for key in ("a", "b", "c", "d"):
        cache[key] = LONG
    first = cache.push(LONG)
    for path in files(cache.directory):
        path.unlink()
    assert cache.get("a", 0) == 0
    with pytest.raises(KeyError):
        cache["a"]
    assert cache.pop("b", 0) == 0
    assert cache.incr("c") == 1
    assert cache.peek() == (None, None)
    assert first not in cache
    assert cache.peekitem() == ("c", 1)
    assert len(cache.check(fix=True)) > 0
    assert cache.check() == []
    assert list(cache) == ["c"]


def test_an_error_of_fetch_is_a_miss_and_a_queue_tries_again(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=Flaky, memory="16MiB") as cache:
        cache.stats(enable=True)
        cache["key"] = 1
        Flaky.failures = 1
        assert cache.get("key") is None
        assert cache.get("key") == 1
        assert cache.stats() == (1, 1)
        Flaky.failures = 1
        assert cache.peekitem() == ("key", 1)
        cache.clear()
        cache.push("value")
        Flaky.failures = 1
        assert cache.peek()[1] == "value"
        Flaky.error, Flaky.failures = PermissionError, 3
        with pytest.raises(PermissionError):
            cache.peek()
        Flaky.error, Flaky.failures = FileNotFoundError, 1
        cache.push("second")
        assert cache.pull()[1] == "second"


def test_check_finds_and_removes_what_a_killed_process_left(cache: Any) -> None:
    cache["key"] = LONG
    stray, recent = Path(cache.directory, "stray.val"), Path(cache.directory, "ab", "recent.val")
    recent.parent.mkdir()
    for path in (stray, recent):
        path.write_bytes(b"")
    os.utime(stray, (time.time() - 3600,) * 2)
    assert cache.check(fix=True) == [f"the file {stray} has no row"]
    assert not stray.exists()
    assert recent.exists(), "a write may be about to name it"
    assert cache["key"] == LONG


def test_a_check_keeps_the_rows_of_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    with plimsoll.Cache(os.fsencode(folder), disk=plimsoll.Disk, memory="16MiB") as cache:
        cache["key"] = LONG
        assert cache.directory == folder and cache.check(fix=True) == [] and cache["key"] == LONG


def test_a_check_keeps_a_row_whose_file_cannot_be_checked(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["key"] = LONG
    getsize = os.path.getsize

    def refuse(path: str) -> int:
        raise PermissionError(13, "permission denied", path)

    monkeypatch.setattr(os.path, "getsize", refuse)
    (problem,) = cache.check(fix=True)
    assert "cannot be checked" in problem and "permission denied" in problem
    monkeypatch.setattr(os.path, "getsize", getsize)
    assert cache["key"] == LONG and cache.check() == []


@pytest.mark.parametrize("disk", [plimsoll.StoreDisk, plimsoll.Disk])
def test_a_relative_folder_stays_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: type[plimsoll.Disk]) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    cache = plimsoll.Cache("cache", disk=disk, memory="16MiB")
    parts = plimsoll.FanoutCache(b"parts", shards=2, disk=disk, memory="16MiB")
    deque, index = plimsoll.Deque("ab", "deque", memory="16MiB"), plimsoll.Index("index", a=1)
    pickled = pickle.dumps((cache, parts, deque, index))
    cache["a"] = parts["a"] = LONG
    monkeypatch.chdir(tmp_path / "away")
    cache["b"] = parts["b"] = LONG
    for again in (cache, parts, pickle.loads(pickled)[0], pickle.loads(pickled)[1]):
        assert again["a"] == again["b"] == LONG and again.check(fix=True) == []
        assert again.directory == str(tmp_path / "home" / os.path.basename(again.directory))
        again.close()
    cache.close(), parts.close()
    assert cache["a"] == parts["a"] == LONG
    _, _, deque, index = pickle.loads(pickled)
    assert list(deque) == ["a", "b"] and dict(index) == {"a": 1}
    assert plimsoll.Disk("files").directory == str(tmp_path / "away" / "files")
    assert os.listdir(".") == []


def test_a_name_from_the_store_reads_and_removes_nothing_elsewhere(tmp_path: Path, cache: Any) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"of another program")
    os.symlink(tmp_path, os.path.join(cache.directory, "link"))
    for name in ("../outside", str(outside), "link/outside"):
        with pytest.raises(PermissionError):
            cache.disk.fetch(2, name, None, False)
        cache.disk.remove(name)
    assert outside.exists()


def test_settings_of_a_disk_are_kept_and_changed(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=plimsoll.JSONDisk, disk_compress_level=6, memory="16MiB") as cache:
        assert (cache.disk_compress_level, cache.disk.compress_level) == (6, 6)  # type: ignore[attr-defined]
        assert cache.reset("disk_compress_level", 9) == 9
        assert cache.disk.compress_level == 9  # type: ignore[attr-defined]
        cache["key"] = "value"
    again = pickle.loads(pickle.dumps(cache))
    assert again["key"] == "value"
    assert again.disk.compress_level == 9
    again.close()
    with plimsoll.Cache(tmp_path, memory="16MiB") as looked_into:
        assert looked_into.volume() > 0
        with pytest.raises(AttributeError):
            looked_into.disk_other
    with pytest.raises(ValueError, match=r"subclass of plimsoll\.Disk"):
        plimsoll.Cache(tmp_path, disk=plimsoll.Disk("x"))  # type: ignore[arg-type]


def test_a_disk_pickles_only_if_asked_by_name(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=plimsoll.Disk, serializer="pickle", disk_pickle_protocol=0, disk_min_file_size=1, memory="16MiB") as trusting:
        trusting["key"] = {1: object}
        assert trusting["key"] == {1: object}
        (path,) = files(tmp_path)
        assert b"\x80" not in path.read_bytes(), "protocol 0 has no header"
    with plimsoll.Cache(tmp_path, disk=plimsoll.Disk, memory="16MiB") as wary:
        with pytest.raises(ValueError, match="pickled"):
            wary["key"]
        with pytest.raises(TypeError, match="cannot be stored as JSON"):
            wary["other"] = object()


def test_values_stored_without_a_disk_are_read_with_one(tmp_path: Path) -> None:
    values = {"text": "a", b"bytes": b"b", (1, 2): {"c": (3,)}, 2**70: 4.5, "long": LONG}
    with plimsoll.Cache(tmp_path, memory="16MiB") as cache:
        for key, value in values.items():
            cache[key] = value
    with plimsoll.Cache(tmp_path, disk=plimsoll.Disk, memory="16MiB") as cache:
        assert {key: cache[key] for key in cache} == values
        cache["file"] = LONG
    with plimsoll.Cache(tmp_path, memory="16MiB") as cache:
        assert cache["file"] == LONG
        del cache["file"]
        assert files(tmp_path) == []


def test_keys_of_a_disk_are_distinct_by_type_and_rawness(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=Pairs, memory="16MiB") as cache:
        keys = [("raw", "a"), ("raw", b"a"), ("raw", 1), ("raw", 1.5), ("other", "a"), ("other", b"a"), ("other", 1)]
        for key in keys:
            cache[key] = repr(key)
        assert list(cache) == keys
        assert [cache[key] for key in keys] == [repr(key) for key in keys]
        cache["bytes", 0] = "from a memoryview"
        assert cache.peekitem() == (("raw", b"('bytes', 0)"), "from a memoryview")
        with pytest.raises(TypeError, match="put of a Disk returns"):
            cache["raw", []] = 1


def expired(folder: Path, key: str) -> plimsoll.Cache:
    """A cache with a row that has expired, whose file is named after its key."""
    cache = plimsoll.Cache(folder, disk=Hashed, disk_min_file_size=0, cull_limit=0, memory="16MiB")
    cache.set(key, b"old", expire=0.01)
    time.sleep(0.02)
    assert len(files(folder)) == 1
    return cache


@pytest.mark.parametrize("method", ["set", "add"])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_expired_row_makes_room_for_a_file_of_the_same_name(tmp_path: Path, method: str, is_deleted: bool, inside: bool) -> None:
    with expired(tmp_path, "key") as cache, cache.transact() if inside else nullcontext():
        if is_deleted:
            assert not cache.delete("key")
            assert files(tmp_path) == []
        assert getattr(cache, method)("key", b"new")
        assert cache["key"] == b"new"
    (path,) = files(tmp_path)
    assert path.read_bytes() == b"new"
    assert cache.check() == [] and len(cache) == 1
    cache.close()


def test_an_expired_row_that_lost_its_file_in_a_transaction_that_was_aborted_is_only_expired(tmp_path: Path) -> None:
    with expired(tmp_path, "key") as cache:
        with pytest.raises(RuntimeError), cache.transact():
            cache["key"] = b"new"
            raise RuntimeError
        assert files(tmp_path) == [] and cache.check() == []
        assert cache.get("key") is None
        assert cache.expire() == 1


def test_a_live_value_keeps_its_file_of_the_same_name(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=Hashed, disk_min_file_size=0, memory="16MiB") as cache:
        cache["key"] = b"old"
        assert not cache.add("key", b"new")
        with pytest.raises(FileExistsError):
            cache["key"] = b"new"
        with pytest.raises(FileExistsError), cache.transact():
            cache.delete("key")
            cache["key"] = b"new"
        assert cache["key"] == b"old" and cache.check() == []
        assert cache.delete("key")
        cache["key"] = b"new"
        assert cache["key"] == b"new"


def test_a_class_names_the_files_of_each_part_of_a_fanout(tmp_path: Path) -> None:
    with plimsoll.FanoutCache(tmp_path, shards=4, disk=Hashed, memory="16MiB") as cache:
        for number in range(20):
            cache[f"key {number}"] = LONG
        disk = Hashed(str(tmp_path))
        for number in range(20):
            key = f"key {number}"
            assert (tmp_path / f"{disk.hash(key) % 4:03d}" / disk.filename(key)[0]).read_bytes() == LONG
        inside = cache.cache("inside")
        inside["key"] = LONG
        assert (tmp_path / "cache" / "inside" / disk.filename("key")[0]).exists()
        assert cache.check() == []
        cache.deque("queue").append("a")
        assert list(cache.deque("queue")) == ["a"]


@pytest.mark.parametrize("durability", ["buffered", "sync"])
def test_a_file_that_is_read_is_stored_as_a_file(tmp_path: Path, durability: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(LONG * 50)
    with plimsoll.Cache(tmp_path / "cache", disk=plimsoll.Disk, memory="16MiB", durability=durability) as cache:
        with source.open("rb") as file:
            assert cache.set("key", file, read=True)
        assert cache["key"] == LONG * 50
        (path,) = files(cache.directory)
        assert path.stat().st_size == 50 * len(LONG)


@pytest.mark.parametrize("shared", [True, False])
def test_a_commit_that_a_signal_follows_at_once_keeps_its_files_and_ids(
    tmp_path: Path, around: Any, interrupted: Callable[[Any], Any], shared: bool
) -> None:
    with plimsoll.Cache(tmp_path, disk=plimsoll.Disk, shared=shared, memory="16MiB") as cache:
        cache["replaced"] = LONG
        store = cache._handle.use.store
        db, store.db = store.db, around(store.db, transaction=lambda **options: interrupted(db.transaction(**options)))
        for key, value in {"new": LONG, "replaced": b"short"}.items():
            with pytest.raises(KeyboardInterrupt):
                cache[key] = value
        store.db = db
        assert (cache["new"], cache["replaced"]) == (LONG, b"short")
        assert len(files(tmp_path)) == 1, "the file of the value that was replaced is gone"
        cache["other"] = 1
        assert list(cache) == ["replaced", "new", "other"] and len(cache) == 3
        assert cache.check() == []


def age(folder: str) -> None:
    for path in Path(folder).rglob("*"):
        os.utime(path, (1, 1))


def test_a_check_leaves_the_files_of_caches_below_it(tmp_path: Path) -> None:
    with plimsoll.FanoutCache(tmp_path, shards=1, disk=plimsoll.Disk, memory="16MiB") as caches:
        above, below = caches.cache("shop"), caches.cache("shop/pages/old")
        stray = Path(above.directory, "pages", "stray.val")
        below["key"] = LONG
        stray.write_bytes(b"")
        age(caches.directory)
        assert above.check(fix=True) == [f"the file {stray} has no row"]
        assert below["key"] == LONG and below.check() == []


def test_a_check_leaves_caches_of_their_own_in_folders_below_it(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=plimsoll.Disk, memory="16MiB") as above:
        with plimsoll.Cache(tmp_path / "below", disk=plimsoll.Disk, memory="16MiB") as below:
            below["key"] = LONG
        age(str(tmp_path))
        assert above.check(fix=True) == []
        assert below["key"] == LONG and below.check() == []
        below.close()


def test_a_row_that_was_touched_in_a_transaction_that_was_aborted_keeps_its_file(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, disk=Hashed, disk_min_file_size=0, memory="16MiB") as cache:
        cache["key"] = b"value"
        for remove in (lambda: cache.delete("key"), cache.expire):
            with pytest.raises(RuntimeError), cache.transact():
                cache.touch("key", expire=-5)
                remove()
                raise RuntimeError
            assert cache["key"] == b"value" and cache.check() == []


def test_a_stream_is_stored_whole_where_an_expired_row_has_the_name_of_its_file(tmp_path: Path) -> None:
    class Reads(Hashed):
        def store(self, value: Any, read: bool, key: Any = None) -> Any:
            return super().store(io.BytesIO(value.read()) if read else value, read, key)

    with plimsoll.Cache(tmp_path, disk=Reads, disk_min_file_size=0, memory="16MiB") as cache:
        cache.set("key", io.BytesIO(b"old"), read=True, expire=0.01)
        time.sleep(0.05)
        cache.set("key", io.BytesIO(b"new"), read=True)
        assert cache["key"] == b"new"


def test_a_source_needs_only_a_read_method(tmp_path: Path) -> None:
    class Source:
        def __init__(self) -> None:
            self.left = [b"va", b"lue", b""]

        def read(self, size: int = -1) -> bytes:
            return self.left.pop(0)

    for disk in (plimsoll.StoreDisk, Hashed):
        with plimsoll.Cache(tmp_path / disk.__name__, disk=disk, memory="16MiB") as cache:
            cache.set("key", Source(), read=True)
            assert cache["key"] == b"value"
