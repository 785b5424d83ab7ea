"""`PlimsollCache`: the operations of Django's cache on a `FanoutCache`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import IO, Any, ParamSpec, TypeVar

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache  # type: ignore[import-untyped, import-not-found, unused-ignore]
from django.utils.functional import Promise  # type: ignore[import-untyped, import-not-found, unused-ignore]
from django.utils.safestring import SafeString  # type: ignore[import-untyped, import-not-found, unused-ignore]

from ..cache import Cache, Deque, FanoutCache, Index
from ..cache._codec import add_conversion, add_text
from ..cache._memoize import Memoized
from ..cache._memoize import memoize as _memoize

_P = ParamSpec("_P")
_T = TypeVar("_T")

add_text(SafeString)
add_conversion(Promise, str)


class PlimsollCache(BaseCache):  # type: ignore[misc, unused-ignore]
    """Django's cache in a folder, with the additional methods of `plimsoll.Cache`: tags, `pop`,
    `expire`, named deques and indexes.

    >>> from plimsoll.django import PlimsollCache
    >>> cache = PlimsollCache(path, {"TIMEOUT": 600, "OPTIONS": {"size_limit": 10**9}})
    >>> cache.set_many({"home": "<p>", "about": "<p>"})
    []
    >>> cache.set("news", "<p>", tag="pages")
    True
    >>> cache.evict("pages"), cache.get("news", "gone")
    (1, 'gone')
    """

    def __init__(self, directory: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = {
            # Django counts entries, the cache counts bytes.
            name: value
            for name, value in params.get("OPTIONS", {}).items()
            if name not in ("MAX_ENTRIES", "CULL_FREQUENCY")
        }
        # Django creates a backend for each thread, so they wait for each other.
        self._cache = FanoutCache(directory, params.get("SHARDS", 1), params.get("DATABASE_TIMEOUT", 60), **options)

    @property
    def directory(self) -> str:
        """The folder."""
        return self._cache.directory

    def add(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        """Stores a value if the key has none."""
        return self._cache.add(self._key(key, version), value, self.get_backend_timeout(timeout), read, tag, retry)

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        """Stores a value. On failure, the key loses its old value, as in Django's other backends,
        because callers do not check the result."""
        made = self._key(key, version)
        if self._cache.set(made, value, self.get_backend_timeout(timeout), read, tag, retry):
            return True
        self._cache.delete(made, retry)
        return False

    def get(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The value of a key, or `default`."""
        return self._cache.get(self._key(key, version), default, read, expire_time, tag, retry)

    def read(self, key: Any, version: int | None = None) -> IO[bytes]:
        """A bytes value as a file object.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> stored = cache.set("film", b"frame " * 1000)
        >>> with cache.read("film") as film:
        ...     film.read(6)
        b'frame '
        """
        return self._cache.read(self._key(key, version))

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None, retry: bool = True) -> bool:
        """Sets a new time to live."""
        return self._cache.touch(self._key(key, version), self.get_backend_timeout(timeout), retry)

    def pop(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = True,
    ) -> Any:
        """Removes a key and returns its value, or `default`.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> stored = cache.set("token", "3f8a")
        >>> cache.pop("token"), cache.pop("token", default="used")
        ('3f8a', 'used')
        """
        return self._cache.pop(self._key(key, version), default, expire_time, tag, retry)

    def delete(self, key: Any, version: int | None = None, retry: bool = True) -> bool:
        """Removes a key."""
        return self._cache.delete(self._key(key, version), retry)

    def incr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Adds to a number."""
        try:
            return self._cache.incr(self._key(key, version), delta, default, retry)
        except KeyError:
            raise ValueError(f"Key {key!r} not found") from None

    def decr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Subtracts from a number."""
        return self.incr(key, -delta, version, default, retry)

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Whether an unexpired key exists."""
        return self._key(key, version) in self._cache

    def clear(self) -> int:
        """Removes everything."""
        return self._cache.clear()

    def close(self, **kwargs: Any) -> None:
        """Does nothing. Django calls it after each request, but reopening the store for the next
        one would take longer than the request's cache operations, and memory would be refilled. The
        store is closed with the last backend of the process."""

    def expire(self) -> int:
        """Removes expired rows.

        >>> import time
        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> stored = cache.set("key", "value", timeout=0.001)
        >>> time.sleep(0.01)
        >>> cache.expire()
        1
        """
        return self._cache.expire()

    def evict(self, tag: Any) -> int:
        """Removes all rows with a tag.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> for page in ("home", "about"):
        ...     stored = cache.set(page, "<p>", tag="pages")
        >>> cache.evict("pages")
        2
        """
        return self._cache.evict(tag)

    def cull(self) -> int:
        """`Cache.cull`: evicts until the cache is within its limit."""
        return self._cache.cull()

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Hits and misses.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> counted = cache.stats(enable=True)
        >>> stored = cache.set("a", 1)
        >>> cache.get("a"), cache.get("b"), cache.stats()
        (1, None, (1, 1))
        """
        return self._cache.stats(enable, reset)

    def create_tag_index(self) -> None:
        """`Cache.create_tag_index`: tags are always indexed."""
        self._cache.create_tag_index()

    def drop_tag_index(self) -> None:
        """`Cache.drop_tag_index`: tags are always indexed."""
        self._cache.drop_tag_index()

    def cache(self, name: str) -> Cache:
        """A named cache inside this one.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> pages = cache.cache("pages")
        >>> pages["home"] = "<p>"
        >>> cache.has_key("home"), "home" in cache.cache("pages")
        (False, True)
        """
        return self._cache.cache(name)

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """A named deque inside this one.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> jobs = cache.deque("jobs")
        >>> jobs.extend(["wash", "dry"])
        >>> cache.deque("jobs").popleft()
        'wash'
        """
        return self._cache.deque(name, maxlen)

    def index(self, name: str) -> Index:
        """A named mapping inside this one.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> prices = cache.index("prices")
        >>> prices["tea"] = 3.1
        >>> dict(cache.index("prices"))
        {'tea': 3.1}
        """
        return self._cache.index(name)

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        """Seconds to live; None for no expiry."""
        seconds = self.default_timeout if timeout == DEFAULT_TIMEOUT else timeout
        # 0 means "do not keep": a moment that has certainly passed.
        return -1 if seconds == 0 else seconds

    def memoize(
        self,
        name: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        typed: bool = False,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
    ) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
        """Caches the results of a function.

        >>> cache = plimsoll.django.PlimsollCache(path, {})
        >>> @cache.memoize(timeout=60)
        ... def square(number):
        ...     return number * number
        >>> square(4)
        16
        """
        return _memoize(_Versioned(self, version), name, typed, self.get_backend_timeout(timeout), tag, ignore)

    def _key(self, key: Any, version: int | None) -> str:
        made: str = self.make_key(key, version=version)
        return made


class _Versioned:
    """The interface of a backend for `memoize`: keys of one version."""

    def __init__(self, backend: PlimsollCache, version: int | None) -> None:
        self._backend, self._version = backend, version

    def get(self, key: Any, default: Any, retry: bool) -> Any:
        return self._backend.get(key, default, self._version, retry=retry)

    def set(self, key: Any, value: Any, expire: float | None, tag: Any, retry: bool) -> None:
        self._backend.set(key, value, expire, self._version, tag=tag, retry=retry)
