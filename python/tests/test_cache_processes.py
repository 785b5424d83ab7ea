"""A cache used by several processes at once, which are started as programs start them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll import Cache

sys.path.insert(0, str(Path(__file__).parent))
import cache_workers
from cache_workers import LIMIT, open_cache

Start = Callable[..., Any]


@pytest.fixture
def context() -> Iterator[Any]:
    """Ends the remaining processes."""
    yield multiprocessing.get_context("forkserver")
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def run(context: Any, *calls: tuple[Any, ...]) -> None:
    """Runs calls, each in a process of its own, to their ends."""
    processes = [context.Process(target=function, args=arguments) for function, *arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0


def test_rows_and_transactions_of_several_processes_lose_nothing(context: Any, path: str) -> None:
    with open_cache(path) as cache:
        cache.set("added", 0)
        run(context, *[(cache_workers.count, path, 150)] * 4)
        assert [cache[key] for key in ("one", "left", "right")] == [600, 600, -600]
        assert len(cache) == 4 and sorted(cache) == ["added", "left", "one", "right"]
        assert cache.check() == []


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used", "least-frequently-used"])
def test_the_limit_holds_over_all_processes_after_every_commit(context: Any, path: str, policy: str) -> None:
    with open_cache(path, eviction_policy=policy) as cache:
        run(context, *[(cache_workers.fill, path, worker, 120, policy) for worker in range(4)])
        assert LIMIT / 2 < cache.volume() <= LIMIT
        assert cache.check() == []
        assert len(cache) == len(list(cache))
        # The newest row of a process that has just written is readable.
        cache.set("last", b"x" * 60_000)
        assert cache["last"] == b"x" * 60_000 and cache.volume() <= LIMIT
        assert sum(cache.evict(worker) for worker in range(4)) > 0 and len(cache) == 1 and cache.check() == []


def test_each_row_of_a_queue_goes_to_one_process(context: Any, path: str) -> None:
    results = context.Queue()
    with open_cache(path):
        pullers = [context.Process(target=cache_workers.pull, args=(path, 100, results)) for _ in range(2)]
        for puller in pullers:
            puller.start()
        run(context, *[(cache_workers.produce, path, worker, 100) for worker in range(2)])
        taken = [results.get(timeout=60) for _ in pullers]
    assert sorted(taken[0] + taken[1]) == [(worker, number) for worker in range(2) for number in range(100)]
    for part in taken:
        for worker in range(2):
            numbers = [number for of, number in part if of == worker]
            assert numbers == sorted(numbers)


def test_a_wait_for_another_process_times_out_and_a_killed_process_blocks_nobody(context: Any, path: str) -> None:
    held, until = context.Event(), context.Event()
    with open_cache(path, timeout=0.05) as cache:
        cache.set("there", 1)
        holder = context.Process(target=cache_workers.hold, args=(path, held, until))
        holder.start()
        assert held.wait(60)
        with pytest.raises(plimsoll.Timeout):
            cache.set("a", 1)
        # Reads take no lock.
        assert cache["there"] == 1 and cache.get("half") is None
        holder.kill()
        holder.join()
        start = time.monotonic()
        cache.set("a", 1, retry=True)
        assert time.monotonic() - start < 60
        assert cache["a"] == 1 and "half" not in cache and cache.check() == []


def test_settings_and_totals_are_those_of_the_store(context: Any, path: str) -> None:
    with open_cache(path) as cache:
        cache.set("a", b"x" * 1_000)
        program = f"import plimsoll; c = plimsoll.Cache({path!r}, memory='16MiB'); c.reset('size_limit', 500_000); c.set('b', 1); c.close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        assert cache.reset("size_limit") == cache.size_limit == 500_000
        assert len(cache) == 2 and cache.volume() > 1_000
        for number in range(20):
            cache.set(number, b"x" * 50_000)
        assert 50_000 < cache.volume() <= 500_000


def test_hits_and_misses_of_all_processes_are_counted(path: str) -> None:
    with open_cache(path) as cache:
        cache.stats(enable=True)
        cache.set("a", 1)
        program = f"import plimsoll; c = plimsoll.Cache({path!r}, memory='16MiB'); c['a']; c.get('x'); c.set('b', 1); c.close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        assert cache["a"] == 1
        assert cache.stats(reset=True) == (2, 1) and cache.stats() == (0, 0)


def test_a_fanout_cache_is_shared(context: Any, path: str) -> None:
    cache = plimsoll.FanoutCache(path, shards=4, memory="16MiB")
    run(context, *[(cache_workers.fan_out, path, worker, 60) for worker in range(3)])
    assert cache["count"] == 180 and len(cache) == 181
    assert all(cache[worker, number] == number for worker in range(3) for number in range(60))
    assert cache.check() == []
    cache.close()


def test_the_workers_of_a_site_share_its_cache(context: Any, path: str) -> None:
    cache = plimsoll.FanoutCache(path, shards=1, memory="16MiB")
    cache.set(":1:visits", 0)
    run(context, *[(cache_workers.use_django, path, 50)] * 2)
    assert cache[":1:visits"] == 100
    cache.close()


def test_a_value_that_a_lock_guards_is_computed_once_by_all_processes(context: Any, path: str) -> None:
    calls = context.Queue()
    with open_cache(path):
        run(context, *[(cache_workers.memoized, path, calls)] * 3)
    assert calls.get(timeout=60) == 7
    time.sleep(0.1)
    assert calls.empty()


def test_a_forked_child_reopens_the_cache(path: str) -> None:
    context = multiprocessing.get_context("fork")
    with open_cache(path) as cache:
        cache.set("added", 0)
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = context.Process(target=cache_workers.count, args=(path, 20))
            child.start()
        child.join(60)
        assert child.exitcode == 0 and cache["one"] == 20
        assert os.getpid() != child.pid


# Every class that a program may create once, at module level.
MADE_BEFORE_A_FORK = """
import multiprocessing, os, plimsoll, signal, sys
folder = sys.argv[1]
cache = plimsoll.Cache(folder + "/cache", memory="16MiB")
files = plimsoll.Cache(folder + "/files", memory="16MiB", disk=plimsoll.Disk)
parts = plimsoll.FanoutCache(folder + "/parts", shards=2, timeout=60, memory="16MiB")
deque = plimsoll.Deque("ab", folder + "/deque", memory="16MiB")
index = plimsoll.Index(folder + "/index", {"a": 1})
inside = parts.cache("inside"), parts.deque("jobs"), parts.index("prices")

@cache.memoize()
def square(number):
    return number * number

def use(number):
    assert cache.set(number, number) and cache[number] == number and cache.incr("count")
    assert files.set(number, bytes(50_000)) and files[number] == bytes(50_000)
    parts[number] = number
    assert parts[number] == number and parts.incr("count")
    deque.append(number)
    index[number] = number
    assert index[number] == number and deque.count(number) == 1
    inside[0][number] = inside[2][number] = number
    inside[1].append(number)
    assert square(number) == number * number and cache.get(square.__cache_key__(number)) == number * number
    with cache.transact():
        cache.incr("count")

def count():
    return cache["count"], parts["count"], len(files), len(deque), len(index), len(inside[0]), len(inside[1]), len(inside[2])

use(0)
rows = iter(cache)
next(rows)
children = []
for number in (1, 2):
    child = os.fork()
    if not child:
        signal.alarm(100)
        use(number)
        assert list(rows) != []
        # A child of the child.
        if not os.fork():
            use(number + 10)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    children.append(child)
pool = multiprocessing.get_context("fork").Pool(2)
pool.map(use, range(20, 24))
use(3)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
pool.close()
pool.join()
print(*count())
assert cache.check() == files.check() == parts.check() == []
"""


def test_objects_created_before_a_fork_are_reopened_in_the_child(path: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", MADE_BEFORE_A_FORK, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    # Ten calls of `use`.
    assert (done.stdout, done.stderr, done.returncode) == ("20 10 10 12 11 10 10 10\n", "", 0)


FORK_WHILE_A_THREAD_WRITES = """
import os, plimsoll, signal, sys, threading
cache = plimsoll.Cache(sys.argv[1], memory="16MiB", shared=sys.argv[2] == "True")
held, go = threading.Event(), threading.Event()
def write():
    with cache.transact():
        held.set()
        go.wait()
        cache["parent"] = 1
thread = threading.Thread(target=write)
thread.start()
held.wait()
def child_of(body):
    child = os.fork()
    if child:
        return child
    signal.alarm(100)
    try:
        body()
        os._exit(0)
    except plimsoll.Error as error:
        os._exit(10 if isinstance(error, plimsoll.UsedAfterFork) else 20 if isinstance(error, plimsoll.Locked) else 30)
    os._exit(40)
def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def child():
    cache["child"] = cache.get("parent", 0) + 1
child = child_of(child)
go.set()
thread.join()
print(end_of(child))
# The transaction of the parent is not the child's.
child = None
def leave():
    with cache.transact():
        global child
        child = os.fork()
try:
    leave()
except plimsoll.UsedAfterFork:
    os._exit(10)
print(end_of(child))
print(sorted(cache), cache.check())
cache.close()
"""


@pytest.mark.parametrize(("shared", "said"), [(True, "0\n10\n['child', 'parent'] []\n"), (False, "20\n10\n['parent'] []\n")])
def test_a_fork_while_a_thread_writes_leaves_the_child_no_lock_and_no_transaction(path: str, shared: bool, said: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_A_THREAD_WRITES, path, str(shared)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)


def test_close_does_not_wait_for_other_processes(path: str) -> None:
    from plimsoll._turn import Turn

    cache = open_cache(path, eviction_policy="least-recently-used")
    cache.set("a", 1)
    other = Turn(os.path.join(path, "store"), shared=True)
    with other.hold():
        # The close finds an unwritten use.
        assert cache.get("a") == 1
        closed = threading.Thread(target=cache.close, daemon=True)
        closed.start()
        closed.join(60)
        assert not closed.is_alive()
    other.close()
    assert cache["a"] == 1
    cache.close()


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
