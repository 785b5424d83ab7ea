"""A cache is closed while another thread uses it, in a transaction, and when the interpreter exits.

A use in another thread completes, and opens the cache again if necessary."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plimsoll import Cache, FanoutCache, Index
from plimsoll.cache import _store
from plimsoll.cache._handle import Handle

USES: dict[str, tuple[Callable[[Cache], Any], Any]] = {
    "set": (lambda cache: cache.set("new", 2), True),
    "set from a file": (lambda cache: cache.set("new", io.BytesIO(b"2"), read=True), True),
    "add": (lambda cache: cache.add("new", 2), True),
    "get": (lambda cache: cache.get("key"), 1),
    "get of a file": (lambda cache: cache.get("long", read=True).read(), b"long" * 50_000),
    "in": (lambda cache: "key" in cache, True),
    "pop": (lambda cache: cache.pop("key"), 1),
    "delete": (lambda cache: cache.delete("key"), True),
    "touch": (lambda cache: cache.touch("key", 100), True),
    "incr": (lambda cache: cache.incr("key"), 2),
    "peekitem": (lambda cache: cache.peekitem(last=False), ("key", 1)),
    "iter": (lambda cache: list(cache), ["key", "long"]),
    "reversed": (lambda cache: list(reversed(cache)), ["long", "key"]),
    "iterkeys": (lambda cache: list(cache.iterkeys()), ["key", "long"]),
    "iterkeys, from the end": (lambda cache: list(cache.iterkeys(reverse=True)), ["long", "key"]),
    "len": (len, 2),
    "expire": (lambda cache: cache.expire(), 0),
    "evict": (lambda cache: cache.evict("tag"), 1),
    "cull": (lambda cache: cache.cull(), 0),
    "clear": (lambda cache: cache.clear(), 2),
    "stats": (lambda cache: cache.stats(enable=False), (0, 0)),
    "volume": (lambda cache: cache.volume() > 200_000, True),
    "disk_bytes": (lambda cache: cache.disk_bytes() > 0, True),
    "check": (lambda cache: cache.check(), []),
    "reset": (lambda cache: cache.reset("cull_limit", 3), 3),
    "a setting": (lambda cache: cache.cull_limit, 10),
    "push": (lambda cache: cache.push("value", prefix="queue"), "queue-500000000000000"),
    "push from a file": (lambda cache: cache.push(io.BytesIO(b"2"), prefix="queue", read=True), "queue-500000000000000"),
    "pull": (lambda cache: cache.pull("queue"), (None, None)),
    "peek": (lambda cache: cache.peek("queue"), (None, None)),
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("use", USES)
def test_an_operation_completes_if_another_thread_closes_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, use: str
) -> None:
    work, expected = USES[use]
    open_ = Handle.open
    calls = closed_at = 0

    def open_and_close(self: Handle, settings: dict[str, Any] | None = None) -> Any:
        nonlocal calls
        table = open_(self, settings)
        calls += 1
        if calls == closed_at:
            closer = threading.Thread(target=self.close)
            closer.start()
            closer.join()
        return table

    while calls >= closed_at:
        with Cache(tmp_path, memory="16MiB", shared=shared) as cache:
            cache.clear()
            cache.reset("cull_limit", 10)
            cache.set("key", 1, tag="tag")
            cache.set("long", b"long" * 50_000)
            with monkeypatch.context() as patched:
                calls, closed_at = 0, closed_at + 1
                patched.setattr(Handle, "open", open_and_close)
                assert work(cache) == expected
            assert cache.check() == []
    assert closed_at > 1
    assert _store._stores == {}


@pytest.mark.parametrize("shared", [True, False])
def test_threads_use_a_cache_that_another_thread_closes_repeatedly(tmp_path: Path, shared: bool) -> None:
    fanout = FanoutCache(tmp_path, shards=2, memory="16MiB", shared=shared, eviction_policy="least-recently-used")
    index = Index.fromcache(fanout._shards[1])
    errors: list[BaseException] = []
    counts = [0, 0, 0]
    stop = threading.Event()

    def use(number: int) -> None:
        try:
            while not stop.is_set():
                fanout.incr(("count", number), retry=True)
                counts[number] += 1
                assert fanout.get(("count", number)) == counts[number]
                assert fanout._shards[0].push(number, prefix="queue", retry=True)
                index[number] = counts[number]
                assert index[number] == counts[number] and number in index
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    closes = 0
    until = time.monotonic() + 1.5
    # Counted rather than timed, so that a busy machine closes as often as an idle one.
    while not stop.is_set() and (time.monotonic() < until or closes <= 10 or not all(counts)):
        fanout.close()
        closes += 1
        time.sleep(0.002)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and closes > 10
    assert [fanout[("count", number)] for number in range(3)] == counts
    for _ in range(sum(counts)):
        assert fanout._shards[0].pull("queue")[1] in range(3)
    assert fanout._shards[0].pull("queue") == (None, None) and fanout.check() == []
    fanout.close()
    assert _store._stores == {}


AT_THE_END = """
import atexit, sys
def use():
    for work in (lambda: cache.set("key", 2), lambda: cache["key"]):
        try:
            work()
        except plimsoll.Closed as error:
            print(error)
atexit.register(use)
import plimsoll
cache = plimsoll.Cache(sys.argv[1], memory="16MiB")
cache["key"] = 1
"""


def test_use_at_interpreter_exit_raises_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the store is closed; open it again\n" * 2, "")


def test_the_interpreter_exits_cleanly_with_an_open_cache(tmp_path: Path) -> None:
    program = f"import plimsoll; cache = plimsoll.Cache({str(tmp_path)!r}, memory='16MiB'); cache['key'] = 1"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Cache(tmp_path, memory="16MiB") as cache:
        assert cache["key"] == 1


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
