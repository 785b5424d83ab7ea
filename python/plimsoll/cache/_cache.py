"""A size-limited cache on disk, with the interface of the package diskcache.

>>> with plimsoll.Cache() as cache:
...     cache.set("answer", {"value": 42}, expire=60, tag="numbers")
...     cache["answer"]
True
{'value': 42}
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

from .._block import block
from .._errors import Closed
from ._codec import short_key
from ._disk import ENOVAL, Disk, StoreDisk
from ._entries import TAGS, Entries, detailed, expiry
from ._handle import Handle, folder
from ._memoize import Memoized, memoize
from ._queues import Queues
from ._rows import DEFAULT_SETTINGS, NewRow, Row, Table, now, with_details
from ._upkeep import Upkeep

_P = ParamSpec("_P")
_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import Self

_BATCH = 100


class Cache:
    """A mapping on disk. Its rows may expire, and are evicted to stay within a size limit.

    `size_limit` bounds the bytes of its rows. A row that would exceed the limit evicts others in
    the same commit. A row larger than the limit is not stored: `set` returns false, and `cache[key]
    = value` raises `ValueError`. `memory` bounds the store's memory. Bytes, text, numbers and JSON
    types are stored directly; tuples, sets, dates and similar types are restored as such.
    `serializer="pickle"` stores every object, but any program that can write to the folder can then
    run code in this process.

    - `directory`: its folder; a new temporary folder by default. Caches in one or several processes
      may share a folder. A cache created before a fork is reopened in the child at its first use
      there.
    - `disk`: the class that converts keys and values to their stored form: `StoreDisk`, `Disk`,
      `JSONDisk` or a subclass.
    - `timeout`: seconds to wait for a transaction of another thread or process before `Timeout`,
      unless `retry` is true.
    - `memory`: the store's memory in this process; `memory_total`: in all processes together,
      divided equally.
    - `shared`: whether other processes may have the folder open too. Writes are faster without it.
    - `durability`: "buffered" (a crash of the machine may lose the last 200 ms) or "sync".
    - settings: any of `DEFAULT_SETTINGS`, and those of `disk` with the prefix `disk_`; they are
      kept in the store, and `reset` changes them.

    >>> cache = plimsoll.Cache(size_limit=100_000_000)
    >>> cache["key"] = ("a", 1)
    >>> cache["key"]
    ('a', 1)
    >>> cache.get("other", default=0)
    0
    """

    def __init__(
        self,
        directory: str | bytes | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = StoreDisk,
        *,
        serializer: str = "json",
        memory: int | str = "64MB",
        memory_total: int | str | None = None,
        shared: bool = True,
        durability: str = "buffered",
        _name: str = "",
        **settings: Any,
    ) -> None:
        for setting in settings:
            if setting not in DEFAULT_SETTINGS and not setting.startswith(("sqlite_", "disk_")):
                raise TypeError(f"{setting!r} is not a cache setting")
        if not (isinstance(disk, type) and issubclass(disk, Disk)):
            raise ValueError(f"disk is a subclass of plimsoll.Disk, not {disk!r}")
        options = {"memory": memory, "durability": durability, "shared": shared}
        if memory_total is not None:
            options["memory_total"] = memory_total
        self._hold(Handle(folder(directory), _name, timeout, options, disk, serializer))
        self._handle.open(settings)
        for setting, value in settings.items():
            if not setting.startswith("sqlite_"):
                self.reset(setting, value)

    # Attributes.

    @property
    def directory(self) -> str:
        """The folder of the cache; for a cache inside another one, its nominal folder."""
        return self._handle.directory

    @property
    def timeout(self) -> float:
        """Seconds to wait for another thread."""
        return self._handle.timeout

    @property
    def disk(self) -> Disk:
        """The object that converts keys and values to their stored form."""
        self._handle.open()
        return self._handle.disk

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULT_SETTINGS:
            return self._handle.read(Table.stored_settings)[name]
        if name.startswith("disk_"):
            with suppress(KeyError):
                return self._handle.read(Table.stored_settings)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"

    def reset(self, key: str, value: Any = ENOVAL) -> Any:
        """Changes a setting for all users of the cache and returns it; without a value, only
        returns it.

        >>> cache = plimsoll.Cache()
        >>> cache.reset("size_limit", 50_000_000)
        50000000
        >>> cache.size_limit
        50000000
        """
        if key in ("count", "size", "hits", "misses"):
            return getattr(self._handle.open(), key)
        if key not in DEFAULT_SETTINGS and not key.startswith("disk_"):
            raise KeyError(key)
        if value is not ENOVAL:
            with self._handle.transact(True) as (table, rows):
                table.set_setting(rows, key, value)
        kept = self._handle.read(Table.stored_settings)[key]
        if key.startswith("disk_"):
            setattr(self._handle.disk, key[5:], kept)
        return kept

    # One row.

    def set(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Stores a value, for `expire` seconds if given. With `read`, the value is a binary file
        that is read to its end.

        Returns whether it was stored. A value larger than `size_limit` is not stored, and the
        previous value of the key stays.

        >>> cache = plimsoll.Cache()
        >>> cache.set("page", "<p>Hello</p>", expire=60, tag="pages")
        True
        >>> cache["page"]
        '<p>Hello</p>'
        """
        return self._entries.store(NewRow(key, value, expire, read, tag, retry))

    def add(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Stores a value if the key has none. If several threads add a key, one of them gets true.

        >>> cache = plimsoll.Cache()
        >>> cache.add("leader", "ada"), cache.add("leader", "alan")
        (True, False)
        >>> cache["leader"]
        'ada'
        """
        return self._entries.store(NewRow(key, value, expire, read, tag, retry, only_new=True))

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.set(key, value, retry=True):
            raise ValueError(f"the value is larger than size_limit, {self.size_limit} bytes, so the cache cannot hold it")

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The value of a key, or `default`. With `expire_time` or `tag` (or both), a tuple of the
        value and these.

        With `read`, a bytes value is returned as a file object.

        >>> cache = plimsoll.Cache()
        >>> stored = cache.set("page", "<p>", tag="pages")
        >>> cache.get("page", expire_time=True, tag=True)
        ('<p>', None, 'pages')
        >>> cache.get("other", default="none")
        'none'
        """
        while True:
            table = self._handle.open()
            short = short_key(self._handle.key(key))
            # `_read`, inlined for speed.
            try:
                row, data = self._entries.load(table, short, read)
                break
            except Closed:
                if self._handle.holds(table):
                    raise
        value: Any = ENOVAL
        if row is not None and data is not None:
            try:
                value = self._handle.fetch(data, read) if isinstance(data, bytes) else data
            except OSError:  # noqa: SIM105 (`suppress` takes a tenth of a get)
                # A file that cannot be read is a miss, because another process may have removed the
                # row since.
                pass
        if row is None or value is ENOVAL:
            if table.settings["statistics"]:
                table.misses += 1
            return with_details(default, None, None, expire_time, tag)
        if table.settings["statistics"]:
            table.hits += 1
        if table.counts_uses:
            table.touch(short, now())
        return detailed(value, row, expire_time, tag)

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, ENOVAL, retry=True)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def read(self, key: Any, retry: bool = False) -> IO[bytes]:
        """A bytes value as a file object.

        >>> import io
        >>> cache = plimsoll.Cache()
        >>> stored = cache.set("film", io.BytesIO(b"frame " * 1000), read=True)
        >>> with cache.read("film") as film:
        ...     film.read(12)
        b'frame frame '
        """
        file: IO[bytes] = self.get(key, ENOVAL, read=True, retry=retry)
        if file is ENOVAL:
            raise KeyError(key)
        return file

    def __contains__(self, key: Any) -> bool:
        self._handle.open()
        short = short_key(self._handle.key(key))
        row = self._handle.read(lambda table: table.get(table.rows(), short))
        return row is not None and row.expires > now()

    def pop(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """Removes a key and returns its value, or `default`.

        >>> cache = plimsoll.Cache()
        >>> cache["token"] = "3f8a"
        >>> cache.pop("token"), cache.pop("token", default="used")
        ('3f8a', 'used')
        """
        self._handle.open()
        short = short_key(self._handle.key(key))
        with self._handle.transact(retry) as (table, rows):
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return with_details(default, None, None, expire_time, tag)
            data = table.value(rows, row)
            # Decode first, because a refused value, such as a pickle, must stay.
            try:
                found = detailed(self._handle.fetch(data), row, expire_time, tag)
            except OSError:
                found = with_details(default, None, None, expire_time, tag)
            table.delete(rows, short, row)
        return found

    def delete(self, key: Any, retry: bool = False) -> bool:
        """Removes a key; returns whether it existed.

        >>> cache = plimsoll.Cache()
        >>> cache["key"] = 1
        >>> cache.delete("key"), cache.delete("key")
        (True, False)
        """
        self._handle.open()
        short = short_key(self._handle.key(key))
        with self._handle.transact(retry) as (table, rows):
            row = table.get(rows, short)
            if row is None:
                return False
            is_live = row.expires > now()
            # Also removes an expired row, with its file.
            table.delete(rows, short, row)
            return is_live

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key, retry=True):
            raise KeyError(key)

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """Sets a new time to live; returns whether the key exists.

        >>> cache = plimsoll.Cache()
        >>> stored = cache.set("session", "ada", expire=60)
        >>> cache.touch("session", expire=3600), cache.touch("other")
        (True, False)
        """
        self._handle.open()
        short = short_key(self._handle.key(key))
        with self._handle.transact(retry) as (table, rows):
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return False
            table.replace(rows, short, row, row._replace(expires=expiry(expire)))
            return True

    def incr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """Adds `delta` to a number and returns the sum. A missing key counts as `default`, or
        raises `KeyError` if that is None.

        >>> cache = plimsoll.Cache()
        >>> cache.incr("visits"), cache.incr("visits", 10)
        (1, 11)
        >>> cache.incr("price", 0.5, default=2)
        2.5
        """
        return self._entries.add_to(key, delta, default, retry)

    def decr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """Subtracts `delta` from a number, like `incr`.

        >>> cache = plimsoll.Cache()
        >>> cache["stock"] = 10
        >>> cache.decr("stock", 3)
        7
        """
        return self.incr(key, -delta, default, retry)

    def peekitem(self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False) -> Any:
        """The key and value that were inserted last, or first.

        >>> cache = plimsoll.Cache()
        >>> cache["a"] = 1
        >>> cache["b"] = 2
        >>> cache.peekitem(), cache.peekitem(last=False)
        (('b', 2), ('a', 1))
        """
        return self._entries.peek(last=last, expire_time=expire_time, tag=tag, retry=retry)

    # Many rows.

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        return self._iterate(reverse=True)

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """The keys in sorted order: numbers, text, bytes, others.

        >>> cache = plimsoll.Cache()
        >>> for key in ("b", 2, "a", 1):
        ...     cache[key] = True
        >>> list(cache.iterkeys()), list(cache)
        ([1, 2, 'a', 'b'], ['b', 2, 'a', 1])
        """
        start, stop = b"r", b"s"
        while True:
            found = self._handle.read(lambda table: table.rows().scan(start, stop, reverse=reverse, limit=_BATCH))  # noqa: B023
            for stored, data in found:
                yield self._handle.python_key(Row.load(data).long_key or stored[1:])
            if len(found) < _BATCH:
                return
            start, stop = (start, found[-1][0]) if reverse else (found[-1][0] + b"\0", stop)

    def __len__(self) -> int:
        """The number of rows, including expired rows that were not removed yet."""
        return self._handle.read(Table.totals)[0]

    # Queues.

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: str = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Puts a value at the end of a queue, and returns its key: a number, or text that begins
        with `prefix`.

        Raises `ValueError` for a value larger than `size_limit`.

        >>> cache = plimsoll.Cache()
        >>> cache.push("wash"), cache.push("dry")
        (500000000000000, 500000000000001)
        >>> cache.push("iron", prefix="jobs")
        'jobs-500000000000000'
        """
        return self._queues.push(value, prefix, side, expire, read, tag, retry)

    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Takes the key and value at the front of a queue, or `default` from an empty one.

        >>> cache = plimsoll.Cache()
        >>> keys = cache.push("wash"), cache.push("dry")
        >>> cache.pull(), cache.pull()
        ((500000000000000, 'wash'), (500000000000001, 'dry'))
        >>> cache.pull()
        (None, None)
        """
        return self._queues.take(prefix, default, side, expire_time, tag, retry, remove=True)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The key and value at the front of a queue; they stay there.

        >>> cache = plimsoll.Cache()
        >>> keys = cache.push("wash"), cache.push("dry")
        >>> cache.peek(), cache.peek(side="back")
        ((500000000000000, 'wash'), (500000000000001, 'dry'))
        >>> len(cache)
        2
        """
        return self._queues.take(prefix, default, side, expire_time, tag, retry, remove=False)

    # Upkeep.

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Removes expired rows; returns their number.

        >>> import time
        >>> cache = plimsoll.Cache()
        >>> stored = cache.set("key", "value", expire=60)
        >>> cache.expire(), cache.expire(now=time.time() + 61)
        (0, 1)
        """
        return self._upkeep.expire(time.time() if now is None else now, retry)

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Removes all rows with a tag; returns their number.

        >>> cache = plimsoll.Cache()
        >>> for page in ("home", "about"):
        ...     stored = cache.set(page, "<p>", tag="pages")
        >>> cache.evict("pages")
        2
        """
        return self._upkeep.evict(TAGS.dump(tag, is_key=True), retry)

    def cull(self, retry: bool = False) -> int:
        """Removes expired rows, and evicts until the cache is within its limit; returns the number
        of rows.

        >>> cache = plimsoll.Cache()
        >>> for number in range(100):
        ...     cache[number] = b"x" * 1000
        >>> limit = cache.reset("size_limit", 50_000)
        >>> cache.cull() > 50, cache.volume() <= limit
        (True, True)
        """
        return self._upkeep.cull(retry)

    def clear(self, retry: bool = False) -> int:
        """Removes all rows in one commit; returns their number.

        >>> cache = plimsoll.Cache()
        >>> cache["a"] = 1
        >>> cache["b"] = 2
        >>> cache.clear()
        2
        """
        with self._handle.transact(retry) as (table, rows):
            return table.clear(rows)

    def create_tag_index(self) -> None:
        """Tags are always indexed. This method exists for compatibility with diskcache.

        >>> cache = plimsoll.Cache()
        >>> cache.create_tag_index()
        >>> cache.tag_index
        1
        """
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """Tags are always indexed. This method exists for compatibility with diskcache.

        >>> cache = plimsoll.Cache()
        >>> cache.drop_tag_index()
        >>> cache.tag_index
        0
        """
        self.reset("tag_index", 0)

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Hits and misses while counting was enabled.

        >>> cache = plimsoll.Cache()
        >>> counted = cache.stats(enable=True)
        >>> cache["a"] = 1
        >>> cache.get("a"), cache.get("b")
        (1, None)
        >>> cache.stats()
        (1, 1)
        """
        with self._handle.transact(True) as (table, _):
            counted = table.hits, table.misses
            if reset:
                table.hits = table.misses = 0
            self.reset("statistics", int(enable))
        return counted

    def volume(self) -> int:
        """Bytes of the rows: keys, values, and the charge for the indexes of a row. `size_limit`
        bounds these.

        >>> cache = plimsoll.Cache()
        >>> cache["film"] = b"x" * 1_000_000
        >>> 1_000_000 < cache.volume() < 1_001_000
        True
        """
        return self._handle.read(Table.totals)[1]

    def disk_bytes(self) -> int:
        """Bytes of the store's files, including overwritten data not yet reclaimed; for all caches
        in the folder.

        >>> cache = plimsoll.Cache()
        >>> for version in range(2):
        ...     cache["film"] = b"x" * 1_000_000
        >>> cache.volume() < 1_001_000, cache.disk_bytes() > 2_000_000
        (True, True)
        """
        size: int = self._handle.read(lambda table: table.store.db.stats()["disk_bytes"])
        return size

    def check(self, fix: bool = False, retry: bool = False) -> list[str]:
        """Compares rows, indexes, counters and the files of a `Disk`, and verifies the store's
        files; returns the problems.

        With `fix`, the indexes are rebuilt, and rows without their file and files older than ten
        minutes without a row are removed.

        >>> cache = plimsoll.Cache()
        >>> cache["key"] = 1
        >>> cache.check()
        []
        """
        return self._upkeep.check(fix, retry)

    # Transactions, closing, pickling, memoization.

    @block
    def transact(self, retry: bool = False) -> Iterator[None]:
        """Makes the operations in the block one commit; an exception discards them. Other threads
        and processes write only before or after the block, and meanwhile read the last committed
        state.

        >>> cache = plimsoll.Cache()
        >>> with cache.transact():
        ...     total = cache.incr("total", 7)
        ...     count = cache.incr("count")
        """
        with self._handle.transact(retry):
            yield

    def close(self) -> None:
        """Closes the store, unless other caches of this process use it. If a thread is writing to
        it, that thread closes it at the end of its transaction. Any later use of the cache, in any
        thread, reopens it.

        >>> cache = plimsoll.Cache()
        >>> cache["key"] = 1
        >>> cache.close()
        >>> cache["key"]
        1
        """
        self._handle.close()

    def __enter__(self) -> Self:
        self._handle.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        handle = self._handle
        return {
            "_root": handle.root,
            "_name": handle.name,
            "_timeout": handle.timeout,
            "_options": handle.options,
            "_disk_class": handle.disk_class,
            "serializer": handle.serializer.name,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._hold(Handle(**{name.removeprefix("_"): value for name, value in state.items()}))

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
    ) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
        """Caches the results of a function; for an `async` function, the awaited results. `ignore`
        names arguments to leave out of the key; with `typed`, 3 and 3.0 are different.

        >>> cache = plimsoll.Cache()
        >>> @cache.memoize(expire=60)
        ... def square(number):
        ...     return number * number
        >>> square(4)
        16
        """
        return memoize(self, name, typed, expire, tag, ignore)

    # Helpers.

    def _hold(self, handle: Handle) -> None:
        self._handle = handle
        self._entries = Entries(handle)
        self._queues = Queues(handle, self._entries)
        self._upkeep = Upkeep(handle)

    def _iterate(self, *, reverse: bool) -> Iterator[Any]:
        return self._iterate_between(self._handle.read(lambda table: table.next_id), reverse=reverse)

    def _iterate_between(self, stop: int, *, reverse: bool) -> Iterator[Any]:
        first = 0
        while True:
            found = self._handle.read(lambda table: table.keys_by_id(first, stop, reverse=reverse, limit=_BATCH))  # noqa: B023
            for _, full in found:
                yield self._handle.python_key(full)
            if len(found) < _BATCH:
                return
            first, stop = (first, found[-1][0]) if reverse else (found[-1][0] + 1, stop)
