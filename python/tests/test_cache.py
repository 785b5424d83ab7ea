"""The cache: the behaviour of diskcache, and the guarantees that it adds."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import plimsoll
from plimsoll import Cache, Deque, FanoutCache, Index, Timeout
from plimsoll.cache import _store, recipes
from plimsoll.cache._handle import Handle
from plimsoll.cache._rows import Table


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """An open cache."""
    with Cache(tmp_path / "cache", memory="16MiB") as opened:
        yield opened
        assert opened.check() == []


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


def test_only_one_add_of_many_threads_is_true(cache: Cache) -> None:
    added: list[bool] = []
    threads = [threading.Thread(target=lambda: added.append(cache.add("key", 1, retry=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == [False] * 7 + [True]


def test_no_increment_of_many_threads_is_lost(cache: Cache) -> None:
    def add() -> None:
        for _ in range(200):
            cache.incr("count", retry=True)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache["count"] == 1600


def test_a_reader_sees_a_long_value_whole_while_it_is_replaced(cache: Cache) -> None:
    values = {bytes([letter]) * 200_000 for letter in b"abc"}
    cache["key"] = b"a" * 200_000
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            if cache["key"] not in values or cache.read("key").read() not in values:
                wrong.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(30):
        for value in values:
            cache["key"] = value
    stop.set()
    thread.join()
    assert not wrong


def test_a_transaction_is_one_commit_or_none(cache: Cache) -> None:
    cache["kept"] = 1
    cache.set("goes", 1, expire=1000)
    volume = cache.volume()
    with pytest.raises(ZeroDivisionError), cache.transact():
        cache["new"] = b"x" * 100_000
        cache.reset("cull_limit", 3)
        cache.clear()
        assert len(cache) == 0
        raise ZeroDivisionError
    assert sorted(cache) == ["goes", "kept"]
    assert (len(cache), cache.volume(), cache.cull_limit) == (2, volume, 10)
    with cache.transact():
        cache["a"] = 1
        with cache.transact():
            cache["b"] = cache["a"] + 1
    assert cache["b"] == 2


def test_a_writer_waits_for_a_transaction_of_another_thread_or_times_out(tmp_path: Path) -> None:
    with Cache(tmp_path, timeout=0.01, memory="16MiB") as cache:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with cache.transact():
                cache["key"] = 1
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        assert cache.get("key") is None, "a reader does not wait, and sees what is committed"
        assert len(cache) == 0
        with pytest.raises(Timeout):
            cache.set("key", 2)
        done.set()
        cache.set("key", 3, retry=True)
        thread.join()
        assert cache["key"] == 3


def test_a_pickled_value_is_read_only_with_serializer_pickle(tmp_path: Path) -> None:
    with Cache(tmp_path, serializer="pickle", memory="16MiB") as cache:
        cache["key"] = ValueError
        assert cache["key"] is ValueError
        cache[ValueError] = 1
    with Cache(tmp_path, memory="16MiB") as cache:
        with pytest.raises(ValueError, match="pickle"):
            cache["key"]
        with pytest.raises(ValueError, match="pickle"):
            list(cache)


@pytest.mark.parametrize("disk", [plimsoll.Disk, plimsoll.StoreDisk])
def test_a_pickled_value_that_is_refused_is_not_removed(tmp_path: Path, disk: type[plimsoll.Disk]) -> None:
    stored = [ValueError, "x" * 100_000]
    with Cache(tmp_path, disk=disk, serializer="pickle", eviction_policy="none", memory="16MiB") as cache:
        assert cache.push(stored) is not None
    with Cache(tmp_path, disk=disk, memory="16MiB") as cache:
        (key,) = cache
        deque, index = Deque.fromcache(cache), Index.fromcache(cache)
        takes = [lambda: cache.pop(key), cache.pull, cache.peek, cache.peekitem, deque.pop, deque.popleft]
        for take in [*takes, lambda: index.pop(key), index.popitem, index.pull, lambda: cache.incr(key)]:
            with pytest.raises(ValueError, match="pickle"):
                take()
            with cache.transact(), pytest.raises(ValueError, match="pickle"):
                take()
        assert list(cache) == [key] and cache.check() == []
    with Cache(tmp_path, disk=disk, serializer="pickle", memory="16MiB") as cache:
        assert cache.pull() == (key, stored)
        assert len(cache) == 0


def test_types_that_json_lacks_are_refused_with_a_reason(cache: Cache) -> None:
    with pytest.raises(TypeError, match='serializer="pickle"'):
        cache["key"] = object()
    with pytest.raises(TypeError, match='serializer="pickle"'):
        cache[object()] = 1
    assert len(cache) == 0
    with pytest.raises(ValueError, match="serializer"):
        Cache(cache.directory, serializer="yaml")
    with pytest.raises(TypeError, match="colour"):
        Cache(cache.directory, colour=1)


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


def test_a_file_that_fails_midway_stores_nothing_in_the_open_transaction(cache: Cache) -> None:
    class Broken(io.RawIOBase):
        left = 5

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            if not self.left:
                raise OSError("the disk is gone")
            return b"x" * size

    cache["film"] = b"before"
    with cache.transact():
        with pytest.raises(OSError, match="gone"):
            cache.set("film", Broken(), read=True)
        cache["other"] = 1
    assert cache["film"] == b"before" and cache["other"] == 1
    assert list(cache._handle.open().rows().keys(prefix=b"v")) == []


def test_a_set_as_a_key_is_the_same_key_in_every_process(tmp_path: Path) -> None:
    program = "import sys, plimsoll; plimsoll.Cache(sys.argv[1], memory='16MiB').incr((frozenset(map(str, range(9))), 1))"
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)
    with Cache(tmp_path, memory="16MiB") as cache:
        assert len(cache) == 1 and cache[frozenset(map(str, range(9))), 1] == 3


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


def test_a_queue_returns_values_in_order(cache: Cache) -> None:
    for number in range(3):
        cache.push(number, prefix="jobs")
        cache.push(-number, side="front")
    assert [cache.pull(prefix="jobs")[1] for _ in range(3)] == [0, 1, 2]
    assert [cache.pull()[1] for _ in range(3)] == [-2, -1, 0]
    assert cache.pull() == (None, None)


def test_a_function_is_computed_once(cache: Cache) -> None:
    calls = []

    @cache.memoize(typed=True, ignore={"log"})
    def double(number: float, log: object = None) -> float:
        calls.append(number)
        return number * 2

    assert [double(2), double(2, log=object()), double(2.0), double(2)] == [4, 4, 4.0, 4]
    assert calls == [2, 2.0]
    assert cache.get(double.__cache_key__(2)) == 4

    class Shop:
        @cache.memoize(ignore={0})
        def price(self, number: int, *, with_tax: bool = False) -> int:
            calls.append(number)
            return number * 3

    assert [Shop().price(7), Shop().price(7), Shop().price(7, with_tax=True)] == [21] * 3 and calls[2:] == [7, 7]


@pytest.mark.parametrize("fanout", [False, True])
def test_an_async_function_is_awaited_once_and_uncacheable_functions_are_refused(tmp_path: Path, fanout: bool) -> None:
    import asyncio

    calls = []
    with plimsoll.FanoutCache(tmp_path, memory="16MiB") if fanout else Cache(tmp_path, memory="16MiB") as cache:

        @cache.memoize(expire=60)
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            calls.append(number)
            return number * 2

        async def twice() -> list[int]:
            return [await double(2), await double(2), await double(3)]

        assert asyncio.run(twice()) == [4, 4, 6] and calls == [2, 3]
        assert cache.get(double.__cache_key__(2)) == 4

        async def fail() -> None:
            raise KeyError("none")

        with pytest.raises(KeyError, match="none"):
            asyncio.run(cache.memoize()(fail)())

        def numbers() -> Iterator[int]:
            yield 1

        async def numbers_later() -> AsyncIterator[int]:
            yield 1

        for generator in (numbers, numbers_later):
            for decorate in (cache.memoize(), plimsoll.memoize_stampede(cache, 60)):
                with pytest.raises(TypeError, match="list"):
                    decorate(generator)
        with pytest.raises(TypeError, match="Cache.memoize"):
            plimsoll.memoize_stampede(cache, 60)(fail)


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


def test_a_result_is_recomputed_once_before_it_expires(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    go_on = threading.Event()
    late, chance = 0, 0.0

    @plimsoll.memoize_stampede(cache, expire=1_000)
    def slow() -> int:
        nonlocal late
        calls.append(threading.get_ident())
        if len(calls) == 2:
            go_on.wait(100)
        # Each computation takes 100 seconds.
        late += 100
        return len(calls)

    monkeypatch.setattr(recipes, "time", SimpleNamespace(time=lambda: time.time() + late))
    monkeypatch.setattr(recipes, "random", SimpleNamespace(random=lambda: chance))
    try:
        assert [slow() for _ in range(3)] == [1, 1, 1] and len(calls) == 1, "there is time until it expires"
        # 100 seconds times the logarithm is 2,000 seconds before expiry.
        chance = 1 - 2e-9
        assert [slow() for _ in range(20)] == [1] * 20, "nobody waits for what is computed ahead"
    finally:
        go_on.set()
    chance = 0.0
    while slow() == 1:
        time.sleep(0.001)
    here = threading.get_ident()
    assert len(calls) == 2 and calls[1] != here, "only one of them computes, in another thread"
    cache.expire(time.time() + 10_000)
    assert slow() == 3 and calls[2] == here


def test_two_caches_of_a_process_share_a_folder(cache: Cache) -> None:
    other = Cache(cache.directory)
    other["key"] = 1
    assert cache["key"] == 1
    other.close()
    assert cache["key"] == 1
    copy = pickle.loads(pickle.dumps(cache))
    assert copy["key"] == 1
    other["key"] = 2
    assert copy["key"] == 2, "a closed cache opens again when it is used"


def test_the_error_names_the_process_with_exclusive_use_of_the_folder(tmp_path: Path) -> None:
    with Cache(tmp_path / "alone", shared=False) as alone:
        alone["a"] = 1
        program = f"import plimsoll; plimsoll.Cache({alone.directory!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "plimsoll._errors.Locked" in done.stderr
        assert str(os.getpid()) in done.stderr


WRITER = """
import sys, plimsoll
cache = plimsoll.Cache(sys.argv[1], memory="16MiB", size_limit=3_000_000)
number = 0
while True:
    number += 1
    cache.set(number % 700, b"x" * (number * 37 % 70_000), expire=None if number % 3 else 0.05, tag=number % 5)
    if number == 500:
        print("ready", flush=True)
"""


def test_rows_and_indexes_agree_after_a_kill(tmp_path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.1)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with Cache(tmp_path, memory="16MiB") as cache:
            assert cache.check() == []
            assert 0 < cache.volume() <= 3_000_000


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", memory="16MiB")
    cache["key"] = 1
    subprocess.run(["rm", "-r", str(tmp_path / "cache")], check=True)
    other = Cache(tmp_path / "cache", memory="16MiB")
    assert "key" not in other
    other["key"] = 2
    cache.close()
    assert other["key"] == 2
    other.close()


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


def test_get_does_not_wait_for_a_writer(cache: Cache) -> None:
    cache.reset("eviction_policy", "least-recently-used")
    with cache.transact():
        for number in range(50):
            cache[number] = number
    table = cache._handle.open()
    table.touched = {b"%d" % number: (0.0, 1) for number in range(20_000)}
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.transact():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    assert [cache[number] for number in range(50)] == list(range(50))
    assert len(table.touched) <= 20_000
    done.set()
    thread.join()


def test_a_cache_inside_another_is_created_in_a_transaction(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, memory="16MiB") as cache:
        with cache.transact():
            cache["a"] = 1
            inside = cache.cache("inside")
            inside["b"] = 2
        assert (cache["a"], inside["b"], inside.check()) == (1, 2, [])


def test_the_interpreter_exits_cleanly_with_an_open_cache(tmp_path: Path) -> None:
    program = f"import plimsoll; cache = plimsoll.Cache({str(tmp_path)!r}, memory='16MiB'); cache['key'] = 1"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Cache(tmp_path, memory="16MiB") as cache:
        assert cache["key"] == 1


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


@pytest.mark.parametrize("inside", ["file", "push"])
def test_others_write_while_the_file_of_a_value_is_read(cache: Cache, inside: str) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        put = {"file": lambda: cache.set("big", file, read=True), "push": lambda: cache.push(file, read=True)}[inside]
        thread = threading.Thread(target=put)
        thread.start()
        try:
            for number in range(20):
                os.write(writer, b"x" * 60_000)
                cache._handle.timeout = 5
                assert cache.set("other", number)
        finally:
            os.close(writer)
            thread.join()
    assert cache.get("big" if inside == "file" else 500_000_000_000_000) == b"x" * 1_200_000


@pytest.mark.parametrize("disk", [plimsoll.Disk, plimsoll.StoreDisk])
@pytest.mark.parametrize("size", [0, 1, 64 << 10, 6 << 20])
def test_a_file_of_any_size_is_pushed_whole(tmp_path: Path, disk: type[plimsoll.Disk], size: int) -> None:
    with Cache(tmp_path / "cache", disk=disk, memory="16MiB") as cache:
        value = os.urandom(size)
        assert cache.push(io.BytesIO(value), read=True) and cache.set("key", io.BytesIO(value), read=True)
        assert cache.pull()[1] == value == cache["key"]
        assert cache.check() == []


@pytest.mark.parametrize("shared", [True, False])
def test_close_does_not_affect_a_transaction_of_another_thread(tmp_path: Path, shared: bool) -> None:
    cache = Cache(tmp_path, memory="16MiB", shared=shared)
    inside, go = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            with cache.transact():
                cache["first"] = 1
                inside.set()
                go.wait()
                cache["second"] = 2
        except BaseException as error:  # noqa: BLE001 (the test tells)
            errors.append(error)

    writer = threading.Thread(target=write, daemon=True)
    closer = threading.Thread(target=cache.close, daemon=True)
    writer.start()
    inside.wait()
    closer.start()
    closer.join(0.2)
    go.set()
    for thread in (writer, closer):
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert (cache["first"], cache["second"], len(cache)) == (1, 2, 2)
    cache.close()
    assert _store._stores == {}


def test_a_store_that_was_closed_in_a_transaction_is_closed_after_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path, memory="16MiB")
    with cache.transact():
        cache["key"] = 1
        cache.close()
    assert _store._stores == {}
    with Cache(tmp_path, memory="16MiB", shared=False) as again:
        assert again["key"] == 1


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used"])
def test_the_interpreter_ends_while_a_thread_is_in_a_transaction(tmp_path: Path, policy: str) -> None:
    program = f"""
import plimsoll, threading
cache = plimsoll.Cache({str(tmp_path)!r}, memory="16MiB", eviction_policy={policy!r})
cache["key"] = cache.get("key")
inside = threading.Event()
def write():
    with cache.transact():
        cache["other"] = 1
        inside.set()
        threading.Event().wait()
threading.Thread(target=write, daemon=True).start()
inside.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Cache(tmp_path, memory="16MiB") as cache:
        assert list(cache) == ["key"] and cache.check() == []


def test_the_first_uses_of_an_unpickled_cache_by_several_threads_open_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, memory="16MiB") as made:
        made["key"] = 1
    cache = pickle.loads(pickle.dumps(made))
    make = Handle._make_disk

    def slowly(self: Handle, settings: dict[str, object]) -> plimsoll.Disk:
        time.sleep(0.05)
        return make(self, settings)

    monkeypatch.setattr(Handle, "_make_disk", slowly)
    found: list[object] = []

    def use() -> None:
        try:
            found.append(cache["key"])
        except Exception as error:  # noqa: BLE001 (the test tells)
            found.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 4
    cache.close()
    assert _store._stores == {}


def test_collecting_a_cache_keeps_the_store_open_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, identity = Cache(tmp_path, memory="16MiB"), _store.identity

    def collecting(path: str) -> tuple[int, int] | None:
        first.close()
        return identity(path)

    with monkeypatch.context() as patched:
        patched.setattr(_store, "identity", collecting)
        second = Cache(tmp_path, memory="16MiB")
    second["key"] = 1
    assert second["key"] == 1
    second.close()
    assert _store._stores == {}


@pytest.mark.parametrize("shared", [True, False])
def test_a_cache_that_is_opened_during_a_commit_knows_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    options: dict[str, Any] = {"memory": "16MiB", "shared": shared}
    with Cache(tmp_path, _name="inside", **options) as inside:
        for number in range(5):
            inside[number] = number
    with Cache(tmp_path, **options) as cache:
        opened: list[Cache] = []

        def open_other() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Table, "before_commit", before_commit)
                opened.append(Cache(tmp_path, _name="inside", **options))

        before_commit = Table.before_commit

        def opening(self: Table, transaction: object) -> None:
            before_commit(self, transaction)
            if not opened:
                thread = threading.Thread(target=open_other)
                thread.start()
                thread.join()

        with monkeypatch.context() as patched:
            patched.setattr(Table, "before_commit", opening)
            cache["key"] = 1
        (inside,) = opened
        assert len(inside) == 5
        with pytest.raises(ZeroDivisionError), inside.transact():
            inside["key"] = 1 // 0
        inside["new"] = 5
        assert len(inside) == 6 and inside.check() == []
        inside.close()


def test_ids_stay_unique_if_another_process_writes_during_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import plimsoll; c = plimsoll.Cache({str(tmp_path)!r}, memory='16MiB', _name='inside'); c['other'] = 1; c.close()"
    made = Table.__init__
    with Cache(tmp_path, memory="16MiB") as cache:

        def make(self: Table, store: _store.CacheStore, name: str) -> None:
            made(self, store, name)
            subprocess.run([sys.executable, "-c", program], check=True)
            cache["key"] = 1

        with monkeypatch.context() as patched:
            patched.setattr(Table, "__init__", make)
            inside = Cache(tmp_path, memory="16MiB", _name="inside")
        inside["mine"] = 2
        assert list(inside) == ["other", "mine"] and len(inside) == 2
        assert inside.check() == []
        inside.close()


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
