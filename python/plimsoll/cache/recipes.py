"""Recipes built on caches: memoization without stampedes, locks between threads, averages.

The keys of locks and averages must not be evicted: use a cache with the eviction policy "none".
"""

from __future__ import annotations

import functools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from ._cache import Cache
from ._disk import ENOVAL
from ._fanout import FanoutCache
from ._memoize import Memoized, args_to_key, as_memoized, full_name, is_async, refuse_generators

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PAUSE = 0.001


def memoize_stampede(
    cache: Cache | FanoutCache,
    expire: float,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Iterable[int | str] = (),
) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
    """Caches the results of a function, and recomputes a result in a thread before it expires: the
    sooner, the longer it takes and the larger `beta` is. An expiry thus does not make all callers
    compute at once (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede
    Prevention, VLDB 2015). An `async` function is refused; use `Cache.memoize`.

    >>> cache = plimsoll.Cache()
    >>> @plimsoll.memoize_stampede(cache, expire=60)
    ... def square(number):
    ...     return number * number
    >>> square(4)
    16
    """
    ignored = frozenset(ignore)

    def decorate(function: Callable[_P, _T]) -> Memoized[_P, _T]:
        refuse_generators(function)
        if is_async(function):
            raise TypeError("memoize_stampede runs the function in a thread, so it cannot take an async function; use Cache.memoize")
        base = full_name(function) if name is None else name

        def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return args_to_key((base,), args, kwargs, typed, ignored)

        def compute(key: Any, args: Any, kwargs: Any) -> Any:
            start = time.time()
            result = function(*args, **kwargs)
            cache.set(key, (result, time.time() - start), expire=expire, tag=tag, retry=True)
            return result

        @functools.wraps(function)
        def remembered(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            key = cache_key(*args, **kwargs)
            pair, expires = cache.get(key, ENOVAL, expire_time=True, retry=True)
            if pair is ENOVAL:
                return compute(key, args, kwargs)
            result, seconds = pair
            early = -seconds * beta * math.log(1 - random.random())
            # One thread at a time computes; the key expires in case that thread dies.
            if early >= expires - time.time() and cache.add((*key, "stampede"), None, expire=seconds, retry=True):
                threading.Thread(target=compute, args=(key, args, kwargs), daemon=True).start()
            return result

        return as_memoized(remembered, cache_key)

    return decorate


class Averager:
    """A running average.

    >>> average = plimsoll.cache.recipes.Averager(plimsoll.Cache(), "latency")
    >>> average.add(1)
    >>> average.add(2)
    >>> average.get()
    1.5
    """

    def __init__(self, cache: Cache | FanoutCache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    def add(self, value: float) -> None:
        """Adds a value to the average.

        >>> average = plimsoll.cache.recipes.Averager(plimsoll.Cache(), "latency")
        >>> average.add(0.2)
        >>> average.get()
        0.2
        """
        with self._cache.transact(retry=True):
            total, count = self._cache.get(self._key, (0.0, 0))
            self._cache.set(self._key, (total + value, count + 1), expire=self._expire, tag=self._tag)

    def get(self) -> float | None:
        """The average; None without values.

        >>> plimsoll.cache.recipes.Averager(plimsoll.Cache(), "latency").get() is None
        True
        """
        return _average(self._cache.get(self._key, (0.0, 0), retry=True))

    def pop(self) -> float | None:
        """Returns the average and resets it.

        >>> average = plimsoll.cache.recipes.Averager(plimsoll.Cache(), "latency")
        >>> average.add(4)
        >>> average.pop(), average.pop()
        (4.0, None)
        """
        return _average(self._cache.pop(self._key, (0.0, 0), retry=True))


class BoundedSemaphore:
    """Admits `value` threads at a time.

    >>> cache = plimsoll.Cache(eviction_policy="none")
    >>> with plimsoll.cache.recipes.BoundedSemaphore(cache, "printers", value=2):
    ...     cache["printers"]
    1
    """

    def __init__(self, cache: Cache | FanoutCache, key: Any, value: int = 1, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._value, self._expire, self._tag = cache, key, value, expire, tag

    def acquire(self) -> None:
        """Waits for a place and takes it.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> printers = plimsoll.cache.recipes.BoundedSemaphore(cache, "printers", value=2)
        >>> printers.acquire()
        >>> cache["printers"]
        1
        """
        while True:
            with self._cache.transact(retry=True):
                free = self._cache.get(self._key, self._value)
                if free > 0:
                    self._cache.set(self._key, free - 1, expire=self._expire, tag=self._tag)
                    return
            time.sleep(_PAUSE)

    def release(self) -> None:
        """Releases the place.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> printers = plimsoll.cache.recipes.BoundedSemaphore(cache, "printers", value=2)
        >>> printers.acquire()
        >>> printers.release()
        >>> cache["printers"]
        2
        """
        with self._cache.transact(retry=True):
            free = self._cache.get(self._key, self._value)
            assert free < self._value, "cannot release un-acquired semaphore"
            self._cache.set(self._key, free + 1, expire=self._expire, tag=self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class Lock:
    """A lock represented by a key of a cache. With `expire`, it is released after that time.

    >>> cache = plimsoll.Cache(eviction_policy="none")
    >>> lock = plimsoll.cache.recipes.Lock(cache, "report", expire=60)
    >>> with lock:
    ...     lock.locked()
    True
    """

    def __init__(self, cache: Cache | FanoutCache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    def acquire(self) -> None:
        """Waits for the lock.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> lock = plimsoll.cache.recipes.Lock(cache, "report")
        >>> lock.acquire()
        >>> lock.locked()
        True
        """
        while not self._cache.add(self._key, None, expire=self._expire, tag=self._tag, retry=True):
            time.sleep(_PAUSE)

    def release(self) -> None:
        """Releases the lock.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> lock = plimsoll.cache.recipes.Lock(cache, "report")
        >>> lock.acquire()
        >>> lock.release()
        >>> lock.locked()
        False
        """
        self._cache.delete(self._key, retry=True)

    def locked(self) -> bool:
        """Whether the lock is taken.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> lock = plimsoll.cache.recipes.Lock(cache, "report")
        >>> with lock:
        ...     taken = lock.locked()
        >>> taken, lock.locked()
        (True, False)
        """
        return self._key in self._cache

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class RLock:
    """A lock that its thread may take repeatedly.

    >>> cache = plimsoll.Cache(eviction_policy="none")
    >>> lock = plimsoll.cache.recipes.RLock(cache, "report")
    >>> with lock, lock:
    ...     cache["report"][1]
    2
    """

    def __init__(self, cache: Cache | FanoutCache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    def acquire(self) -> None:
        """Waits for the lock, or takes it once more.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> lock = plimsoll.cache.recipes.RLock(cache, "report")
        >>> lock.acquire()
        >>> lock.acquire()
        >>> cache["report"][1]
        2
        """
        while True:
            with self._cache.transact(retry=True):
                owner, count = self._cache.get(self._key, (None, 0))
                if count == 0 or owner == _me():
                    self._cache.set(self._key, (_me(), count + 1), expire=self._expire, tag=self._tag)
                    return
            time.sleep(_PAUSE)

    def release(self) -> None:
        """Releases it once.

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> lock = plimsoll.cache.recipes.RLock(cache, "report")
        >>> lock.acquire()
        >>> lock.release()
        >>> cache["report"][1]
        0
        """
        with self._cache.transact(retry=True):
            owner, count = self._cache.get(self._key, (None, 0))
            assert owner == _me() and count > 0, "cannot release un-acquired lock"
            self._cache.set(self._key, (owner, count - 1), expire=self._expire, tag=self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


def _me() -> str:
    return f"{os.getpid()}-{threading.get_ident()}"


def _average(pair: tuple[float, int]) -> float | None:
    total, count = pair
    return total / count if count else None


__all__ = ["Averager", "BoundedSemaphore", "Lock", "RLock", "memoize_stampede"]
