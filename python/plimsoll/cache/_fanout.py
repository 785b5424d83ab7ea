"""A cache in several parts, with the interface of diskcache's FanoutCache.

The parts are in one store with one memory budget, so this is not faster than `Cache`. It is for
programs written for diskcache, and for the named caches, deques and indexes inside it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

from .._block import block
from ._cache import Cache
from ._disk import ENOVAL, Disk, StoreDisk
from ._handle import folder
from ._memoize import Memoized, memoize
from ._persistent import Deque, Index
from ._rows import DEFAULT_SETTINGS, with_details
from ._store import Timeout

if TYPE_CHECKING:
    from typing_extensions import Self

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FanoutCache:
    """`Cache` in `shards` parts. `size_limit` is divided among them. A timeout is a miss or a false
    result, not an exception.

    >>> cache = plimsoll.FanoutCache()
    >>> cache.set("key", "value")
    True
    >>> cache["key"]
    'value'
    """

    def __init__(
        self,
        directory: str | bytes | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = StoreDisk,
        *,
        serializer: str = "json",
        memory: int | str = "64MB",
        memory_total: int | str | None = None,
        shared: bool = True,
        durability: str = "buffered",
        **settings: Any,
    ) -> None:
        self._directory = folder(directory)
        self._options: dict[str, Any] = {
            "serializer": serializer,
            "memory": memory,
            "memory_total": memory_total,
            "shared": shared,
            "durability": durability,
        }
        self._disk_class = disk
        self._count = shards
        settings["size_limit"] = settings.get("size_limit", DEFAULT_SETTINGS["size_limit"]) // shards
        self._shards: tuple[Cache, ...] = tuple(
            Cache(self._directory, timeout, disk, _name=f"{number:03d}", **self._options, **settings)
            for number in range(shards)
        )
        self._hash = self._shards[0].disk.hash
        self._inside: dict[tuple[str, str], Any] = {}

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._directory

    @property
    def timeout(self) -> float:
        """Seconds to wait for another thread."""
        return self._shards[0].timeout

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULT_SETTINGS:
            return getattr(self._shards[0], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _shard(self, key: Any) -> Cache:
        return self._shards[self._hash(key) % self._count]

    @block
    def transact(self, retry: bool = True) -> Iterator[None]:
        """Makes the operations inside it, in all parts, one commit.

        >>> cache = plimsoll.FanoutCache()
        >>> with cache.transact():
        ...     cache["a"] = 1
        ...     cache["b"] = 2
        >>> sorted(cache)
        ['a', 'b']
        """
        with ExitStack() as stack:
            for shard in self._shards:
                stack.enter_context(shard.transact(retry=True))
            yield

    def set(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """`Cache.set`; false after a timeout."""
        try:
            return self._shard(key).set(key, value, expire, read, tag, retry)
        except Timeout:
            return False

    def add(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """`Cache.add`; false after a timeout."""
        try:
            return self._shard(key).add(key, value, expire, read, tag, retry)
        except Timeout:
            return False

    def __setitem__(self, key: Any, value: Any) -> None:
        self._shard(key)[key] = value

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """`Cache.get`; `default` after a timeout."""
        try:
            return self._shard(key).get(key, default, read, expire_time, tag, retry)
        except Timeout:
            return with_details(default, None, None, expire_time, tag)

    def __getitem__(self, key: Any) -> Any:
        return self._shard(key)[key]

    def read(self, key: Any) -> IO[bytes]:
        """`Cache.read`."""
        return self._shard(key).read(key, retry=True)

    def __contains__(self, key: Any) -> bool:
        return key in self._shard(key)

    def pop(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """`Cache.pop`; `default` after a timeout."""
        try:
            return self._shard(key).pop(key, default, expire_time, tag, retry)
        except Timeout:
            return with_details(default, None, None, expire_time, tag)

    def delete(self, key: Any, retry: bool = False) -> bool:
        """`Cache.delete`; false after a timeout."""
        try:
            return self._shard(key).delete(key, retry)
        except Timeout:
            return False

    def __delitem__(self, key: Any) -> None:
        del self._shard(key)[key]

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """`Cache.touch`; false after a timeout."""
        try:
            return self._shard(key).touch(key, expire, retry)
        except Timeout:
            return False

    def incr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """`Cache.incr`; None after a timeout."""
        try:
            return self._shard(key).incr(key, delta, default, retry)
        except Timeout:
            return None

    def decr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """`Cache.decr`; None after a timeout."""
        try:
            return self._shard(key).decr(key, delta, default, retry)
        except Timeout:
            return None

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable([iter(shard) for shard in self._shards])

    def __reversed__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable([reversed(shard) for shard in reversed(self._shards)])

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """`Cache.expire` in all parts."""
        return self._in_all(lambda shard: shard.expire(now, retry=retry))

    def evict(self, tag: Any, retry: bool = False) -> int:
        """`Cache.evict` in all parts."""
        return self._in_all(lambda shard: shard.evict(tag, retry=retry))

    def cull(self, retry: bool = False) -> int:
        """`Cache.cull` in all parts."""
        return self._in_all(lambda shard: shard.cull(retry=retry))

    def clear(self, retry: bool = False) -> int:
        """`Cache.clear` in all parts."""
        return self._in_all(lambda shard: shard.clear(retry=retry))

    def _in_all(self, remove: Callable[[Cache], int]) -> int:
        total = 0
        for shard in self._shards:
            while True:
                try:
                    total += remove(shard)
                    break
                except Timeout as timeout:
                    total += next((done for done in timeout.args if isinstance(done, int)), 0)
        return total

    def check(self, fix: bool = False, retry: bool = False) -> list[str]:
        """`Cache.check` in all parts."""
        return [problem for shard in self._shards for problem in shard.check(fix, retry)]

    def create_tag_index(self) -> None:
        """`Cache.create_tag_index` in all parts."""
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """`Cache.drop_tag_index` in all parts."""
        self.reset("tag_index", 0)

    def reset(self, key: str, value: Any = ENOVAL) -> Any:
        """`Cache.reset` in all parts. `size_limit` is that of one part.

        >>> cache = plimsoll.FanoutCache(shards=4, size_limit=100_000_000)
        >>> cache.reset("size_limit")
        25000000
        """
        result = None
        for shard in self._shards:
            while True:
                try:
                    result = shard.reset(key, value)
                    break
                except Timeout:
                    pass
        return result

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """`Cache.stats`, summed."""
        counted = [shard.stats(enable, reset) for shard in self._shards]
        return sum(hits for hits, _ in counted), sum(misses for _, misses in counted)

    def volume(self) -> int:
        """`Cache.volume`, summed."""
        return sum(shard.volume() for shard in self._shards)

    def disk_bytes(self) -> int:
        """`Cache.disk_bytes`: one store holds all parts.

        >>> cache = plimsoll.FanoutCache()
        >>> cache["film"] = b"x" * 1_000_000
        >>> cache.disk_bytes() > 1_000_000
        True
        """
        return self._shards[0].disk_bytes()

    def close(self) -> None:
        """Closes all parts, and the caches inside.

        >>> cache = plimsoll.FanoutCache()
        >>> cache["key"] = 1
        >>> cache.close()
        >>> cache["key"]
        1
        """
        for shard in self._shards:
            shard.close()
        closed, self._inside = self._inside, {}
        for inside in list(closed.values()):
            getattr(inside, "cache", inside).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "directory": self._directory,
            "shards": self._count,
            "timeout": self.timeout,
            "disk": self._disk_class,
            "size_limit": self.size_limit * self._count,
            **self._options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def cache(self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Any) -> Cache:
        """A named cache inside this one, with its own limit and, unless specified otherwise, the
        same class of disk.

        >>> cache = plimsoll.FanoutCache()
        >>> pages = cache.cache("pages", size_limit=10_000_000)
        >>> pages["home"] = "<p>"
        >>> "home" in cache, "home" in cache.cache("pages")
        (False, True)
        """
        kept = {"disk": self._disk_class if disk is None else disk, **self._options, **settings}
        return self._named("cache", name, lambda path: Cache(self._directory, timeout, _name=path, **kept))

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """A named deque inside this one; nothing in it is evicted.

        >>> cache = plimsoll.FanoutCache()
        >>> jobs = cache.deque("jobs")
        >>> jobs.extend(["wash", "dry"])
        >>> cache.deque("jobs").popleft()
        'wash'
        """
        return self._named("deque", name, lambda path: Deque.fromcache(self._unlimited(path), maxlen=maxlen))

    def index(self, name: str) -> Index:
        """A named mapping inside this one; nothing in it is evicted.

        >>> cache = plimsoll.FanoutCache()
        >>> prices = cache.index("prices")
        >>> prices["tea"] = 3.1
        >>> dict(cache.index("prices"))
        {'tea': 3.1}
        """
        return self._named("index", name, lambda path: Index.fromcache(self._unlimited(path)))

    def _unlimited(self, path: str) -> Cache:
        return Cache(self._directory, disk=self._disk_class, _name=path, eviction_policy="none", **self._options)

    def _named(self, kind: str, name: str, make: Callable[[str], _T]) -> _T:
        inside: _T | None = self._inside.get((kind, name))
        # Another thread may create it, or close all, meanwhile.
        return self._inside.setdefault((kind, name), make(f"{kind}/{name}")) if inside is None else inside

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
    ) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
        """`Cache.memoize`.

        >>> cache = plimsoll.FanoutCache()
        >>> @cache.memoize(expire=60)
        ... def square(number):
        ...     return number * number
        >>> square(4)
        16
        """
        return memoize(self, name, typed, expire, tag, ignore)
