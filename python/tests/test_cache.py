"""The cache: the behaviour of diskcache, and the guarantees that it adds."""

from __future__ import annotations

import io
import os
import pickle
import time
from pathlib import Path

import pytest

import plimsoll
from plimsoll import Cache, Deque, FanoutCache, Index, Timeout


def test_a_value_comes_back_after_the_cache_was_opened_again(tmp_path: Path) -> None:
    with Cache(tmp_path, memory="16MiB") as cache:
        begun = time.time()
        cache.set("key", {"a": (1, b"2")}, expire=60, tag="blue")
        ended = time.time()
        cache["large"] = b"x" * 300_000
    with Cache(tmp_path, memory="16MiB") as cache:
        value, expires, tag = cache.get("key", expire_time=True, tag=True)
        assert (value, tag) == ({"a": (1, b"2")}, "blue")
        assert begun <= expires - 60 <= ended
        assert cache["large"] == b"x" * 300_000
        assert len(cache) == 2


def test_a_missing_key_is_a_default_or_an_error(cache: Cache) -> None:
    assert cache.get("no") is None
    assert cache.get("no", 1) == 1
    assert cache.get("no", expire_time=True, tag=True) == (None, None, None)
    assert cache.pop("no", 2) == 2
    assert not cache.delete("no")
    for fails in (lambda: cache["no"], lambda: cache.__delitem__("no"), lambda: cache.incr("no", default=None)):
        with pytest.raises(KeyError):
            fails()


def test_an_expired_row_is_not_there(cache: Cache) -> None:
    cache.set("key", 1, expire=0.01)
    time.sleep(0.02)
    assert "key" not in cache
    assert cache.get("key") is None
    assert not cache.touch("key")
    assert len(cache) == 1
    assert cache.add("key", 2)
    assert cache["key"] == 2


def test_a_set_removes_what_has_expired(cache: Cache) -> None:
    for number in range(5):
        cache.set(number, number, expire=0.01)
    time.sleep(0.02)
    cache["new"] = 1
    assert list(cache) == ["new"]


def test_rows_are_evicted_by_tag(cache: Cache) -> None:
    for number in range(250):
        cache.set(number, number, tag=("even", "odd")[number % 2])
    cache.set("ev", 1, tag="ev")
    assert cache.evict("even") == 125
    assert len(cache) == 126
    assert cache.evict("none") == 0


def test_a_file_is_stored_and_read_piece_by_piece(cache: Cache) -> None:
    content = os.urandom(1_000_000)
    cache.set("key", io.BytesIO(content), read=True)
    cache.set("short", io.BytesIO(b"abc"), read=True)
    with cache.read("key") as file:
        assert file.read(10) == content[:10]
        cache["key"] = 1
        assert file.read() == content[10:], "it reads what was there when it was opened"
    assert cache.read("short").read() == b"abc"
    assert cache.get("key", read=True) == 1


def test_keys_iterate_in_insertion_order_and_in_sorted_order(cache: Cache) -> None:
    keys = ["b", 3, ("x", 1), -2.5, b"w", 10**30, "a", 0, "l" * 5000]
    for key in keys:
        cache[key] = 1
    cache["b"] = 2
    assert list(cache) == keys
    assert list(reversed(cache)) == keys[::-1]
    assert list(cache.iterkeys())[:6] == [-2.5, 0, 3, "a", "b", b"w"], "a long key is ordered by its hash, at the end"
    assert sorted(map(repr, cache.iterkeys())) == sorted(map(repr, keys))
    assert list(cache.iterkeys(reverse=True)) == list(cache.iterkeys())[::-1]


def test_rows_expire_and_are_evicted_in_order_also_by_a_clock_before_1970(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [-1e9]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for number in range(4):
        cache.set(number, bytes(1000), expire=(4 - number) * 100 if number else None)
        clock[0] += 1
    clock[0] = -1e9 + 250
    assert sorted(cache.check()) == [] and cache.expire() == 2 and sorted(cache) == [0, 1]
    clock[0] = -50.0
    cache.set("later", 1, expire=100)
    clock[0] = 49.0
    assert sorted(map(str, cache)) == ["0", "later"], "the set has removed what had expired"
    clock[0] = 51.0
    assert cache.expire() == 1 and list(cache) == [0]
    for moment in (-1e9 + 5, -1.0, 0.0, 1.0):
        clock[0] = moment
        cache.set(str(moment), bytes(1000))
    cache.reset("size_limit", 3 * 1300)
    cache.cull()
    assert list(cache) == ["-1.0", "0.0", "1.0"] and cache.check() == []


def test_check_finds_and_repairs_a_lost_index(cache: Cache) -> None:
    for number in range(10):
        cache.set(number, b"x" * 100_000, tag="t", expire=1000)
    with cache._handle.transact(True) as (_, rows):
        rows.delete_range(prefix=b"t")
        rows.delete_range(prefix=b"o")
    assert len(cache.check()) == 20
    assert len(cache.check(fix=True)) == 20
    assert cache.check() == []
    assert cache.evict("t") == 10


def test_the_parts_of_a_fanout_cache_are_one_store(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=4, memory="16MiB") as cache:
        for number in range(100):
            cache.set(number, number, tag=number % 2)
        assert sorted(cache) == list(range(100))
        assert len(list((tmp_path).iterdir())) == 1
        with pytest.raises(ZeroDivisionError), cache.transact():
            for number in range(100):
                del cache[number]
            raise ZeroDivisionError
        assert len(cache) == 100
        assert cache.evict(1) == 50
        cache.index("settings")["a"] = 1
        cache.deque("jobs").append("first")
        cache.cache("pages")["/"] = "<html>"
        assert len(cache) == 50
    with FanoutCache(tmp_path, shards=4, memory="16MiB") as cache:
        assert dict(cache.index("settings")) == {"a": 1}
        assert list(cache.deque("jobs")) == ["first"]
        assert cache.cache("pages")["/"] == "<html>"
        assert cache.check() == []


def test_deque_and_index_behave_like_pythons(tmp_path: Path) -> None:
    deque = Deque("abcde", directory=tmp_path / "deque", maxlen=4, memory="16MiB")
    deque.rotate(1)
    deque.reverse()
    assert list(deque) == ["d", "c", "b", "e"]
    deque[1] = "x"
    del deque[-1]
    assert deque == ["d", "x", "b"]
    deque.cache.close()
    index = Index(str(tmp_path / "index"), {"a": 1}, b=2)
    assert index.setdefault("c", 3) == 3
    assert list(index.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert index.popitem(last=False) == ("a", 1)
    assert index == {"c": 3, "b": 2}
    index.cache.close()


def test_the_documented_differences_from_diskcache_are_true(cache: Cache) -> None:
    """`docs/cache.md`, "Differences from diskcache"."""
    cache["short"], cache["text"] = b"short", "text"
    assert isinstance(cache.get("short", read=True), io.BytesIO) and cache.get("text", read=True) == "text"
    cache.set("tagged", 1, tag=1)
    assert (cache.evict(1.0), cache.evict(True), cache.evict(1)) == (0, 0, 1)
    cache["number"], cache["truth"], cache["nan"] = 2**63 - 1, True, float("nan")
    assert (cache.incr("number"), cache.incr("truth")) == (2**63, 2)
    assert cache["nan"] != cache["nan"]
    function = cache.memoize(name="f")(lambda a, b: a)
    assert function.__cache_key__(1, b=2) == ("f", (1,), (("b", 2),))  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        cache.reset("colour", 1)
    with pytest.raises(AttributeError):
        cache.colour
    with Cache(cache.directory, memory="32MiB", shared=False, durability="sync") as second:
        assert second._handle.use.store is cache._handle.use.store


@pytest.mark.parametrize("kind", [Cache, Deque, FanoutCache, Index, Timeout, plimsoll.Disk, plimsoll.StoreDisk])
def test_pickles_name_the_public_module_of_a_class(kind: type) -> None:
    assert f"cplimsoll.cache\n{kind.__name__}\n".encode() in pickle.dumps(kind, protocol=0)
