"""Threads that use one cache at the same time, and transactions of a cache."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from plimsoll import Cache, FanoutCache, Timeout


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
