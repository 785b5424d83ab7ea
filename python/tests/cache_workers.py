"""Functions that the child processes of `test_cache_processes.py` run."""

from __future__ import annotations

import random
from typing import Any

import plimsoll
import plimsoll.cache

LIMIT = 2_000_000


def open_cache(path: str, **options: Any) -> plimsoll.Cache:
    """The cache that all processes share."""
    return plimsoll.Cache(path, memory="16MiB", size_limit=LIMIT, **options)


def count(path: str, rounds: int) -> None:
    """Increments shared counters: one row, and a pair of rows in one commit."""
    with open_cache(path) as cache:
        for _ in range(rounds):
            cache.incr("one")
            with cache.transact(retry=True):
                cache.set("left", cache.get("left", 0) + 1)
                cache.set("right", cache.get("right", 0) - 1)
            assert cache.add("added", 1) is False


def fill(path: str, worker: int, rounds: int, policy: str) -> None:
    """Writes more rows than fit, and checks the limit after each row."""
    random.seed(worker)
    with open_cache(path, eviction_policy=policy) as cache:
        for number in range(rounds):
            cache.set(f"{worker}/{number}", b"x" * random.randrange(100, 60_000), expire=random.choice([None, 0.01, 60]), tag=worker)
            cache.get(f"{worker}/{random.randrange(number + 1)}")
            assert cache.volume() <= LIMIT, cache.volume()


def produce(path: str, worker: int, rounds: int) -> None:
    """Pushes to a queue."""
    with open_cache(path) as cache:
        for number in range(rounds):
            cache.push((worker, number))


def pull(path: str, rounds: int, results: Any) -> None:
    """Takes rows from a queue that no other process gets."""
    with open_cache(path) as cache:
        taken = []
        while len(taken) < rounds:
            key, value = cache.pull()
            if key is not None:
                taken.append(value)
        results.put(taken)


def hold(path: str, held: Any, until: Any) -> None:
    """Keeps the cache locked until it is killed or exits."""
    with open_cache(path) as cache, cache.transact():
        cache.set("half", 1)
        held.set()
        until.wait(60)


def use_django(path: str, rounds: int) -> None:
    """A worker process of a Django site."""
    from django.conf import settings

    settings.configure(CACHES={"default": {"BACKEND": "plimsoll.django.PlimsollCache", "LOCATION": path, "OPTIONS": {"memory": "16MiB"}}})
    from django.core.cache import cache

    for _ in range(rounds):
        cache.incr("visits")


def fan_out(path: str, worker: int, rounds: int) -> None:
    """Writes to all parts of a cache."""
    cache = plimsoll.FanoutCache(path, shards=4, timeout=60, memory="16MiB")
    for number in range(rounds):
        assert cache.set((worker, number), number)
        cache.incr("count")
    cache.close()


def memoized(path: str, calls: Any) -> None:
    """Computes a value that only one process must compute."""
    with open_cache(path) as cache:

        @cache.memoize()
        def slow(number: int) -> int:
            calls.put(number)
            return number * number

        with plimsoll.cache.recipes.Lock(cache, "lock"):
            assert slow(7) == 49
