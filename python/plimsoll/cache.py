"""A cache on disk with a limit, and the interface of the package diskcache.

>>> with plimsoll.Cache() as cache:
...     cache.set("answer", {"value": 42}, expire=60, tag="numbers")
...     cache["answer"]
True
{'value': 42}
"""

from __future__ import annotations

import io
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import _cache_store
from ._block import block
from ._cache_codec import (
    DISK,
    RAW,
    Serializer,
    dump_disk_key,
    dump_disk_value,
    load_disk_key,
    load_disk_value,
    short_key,
)
from ._cache_files import file_pieces, read_first, sync_file
from ._cache_queues import Queues
from ._cache_rows import DEFAULT_SETTINGS, EVICTION_POLICIES, PIECE_BYTES, NewRow, PieceReader, Row, Table, now, with_details
from ._cache_store import Timeout
from ._cache_upkeep import TAGS, Upkeep
from ._errors import Closed
from ._memoize import Memoized, memoize
from .disk import ENOVAL, Disk, StoreDisk

_P = ParamSpec("_P")
_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._native import WriteMapping

_BATCH = 100
_TRIES = 3
"""Number of attempts to read a value whose file is unreadable, before it counts as lost."""


class Cache(Queues, Upkeep):
    """A mapping on disk whose rows may expire, and are evicted to keep to a limit.

    `size_limit` bounds the bytes of its rows: a row that would exceed it evicts others in the same
    commit, and a row larger than the limit is not stored: `set` returns false, and `cache[key] =
    value` raises `ValueError`. `memory` bounds the store's memory. Bytes, text, numbers and JSON
    types are stored directly; tuples, sets, dates and similar types are restored as such.
    `serializer="pickle"` stores every object; any program that can write to the folder can then run
    code in this one.

    - `directory`: its folder; a new temporary folder by default. Caches in one or several processes
      may share a folder. A cache created before a fork is reopened in the child at its first use
      there.
    - `disk`: a class that converts keys and values to their stored form (`plimsoll.disk`):
      `StoreDisk`, `Disk`, `JSONDisk` or a subclass.
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
                raise TypeError(f"{setting!r} is not a setting of a cache")
        if not (isinstance(disk, type) and issubclass(disk, Disk)):
            raise ValueError(f"disk is a subclass of plimsoll.Disk, not {disk!r}")
        self._root = folder(directory)
        self._name = _name
        self._timeout = timeout
        self._serializer = Serializer(serializer)
        self._disk_class = disk
        self._options = {"memory": memory, "durability": durability, "shared": shared}
        if memory_total is not None:
            self._options["memory_total"] = memory_total
        self._claim()
        self._open(settings)
        for setting, value in settings.items():
            if not setting.startswith("sqlite_"):
                self.reset(setting, value)

    # Attributes.

    @property
    def directory(self) -> str:
        """The folder of the cache; for a cache inside another one, its nominal folder."""
        return os.path.join(self._root, *self._name.split("/")) if self._name else self._root

    @property
    def timeout(self) -> float:
        """Seconds to wait for another thread."""
        return self._timeout

    @property
    def disk(self) -> Disk:
        """The object that converts keys and values to their stored form."""
        self._open()
        return self._disk

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULT_SETTINGS:
            return self._read(Table.stored_settings)[name]
        if name.startswith("disk_"):
            with suppress(KeyError):
                return self._read(Table.stored_settings)[name]
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
            return getattr(self._open(), key)
        if key not in DEFAULT_SETTINGS and not key.startswith("disk_"):
            raise KeyError(key)
        if value is not ENOVAL:
            with self._transact(True) as (table, rows):
                table.set_setting(rows, key, value)
        kept = self._read(Table.stored_settings)[key]
        if key.startswith("disk_"):
            setattr(self._disk, key[5:], kept)
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
        return self._store(NewRow(key, value, expire, read, tag, retry))

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
        return self._store(NewRow(key, value, expire, read, tag, retry, only_new=True))

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
            table = self._open()
            short = short_key(self._key(key))
            # `_read`, inlined for speed.
            try:
                row, data = self._load(table, short, read)
                break
            except Closed:
                if self._holds(table):
                    raise
        value: Any = ENOVAL
        if row is not None and data is not None:
            try:
                value = self._fetch(data, read) if isinstance(data, bytes) else data
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
        return self._detailed(value, row, expire_time, tag)

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
        file: Any = self.get(key, ENOVAL, read=True, retry=retry)
        if file is ENOVAL:
            raise KeyError(key)
        return file  # type: ignore[no-any-return]

    def __contains__(self, key: Any) -> bool:
        self._open()
        short = short_key(self._key(key))
        row = self._read(lambda table: table.get(table.rows(), short))
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
        self._open()
        short = short_key(self._key(key))
        with self._transact(retry) as (table, rows):
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return with_details(default, None, None, expire_time, tag)
            data = table.value(rows, row)
            # Decode first, because a refused value, such as a pickle, must stay.
            try:
                found = self._detailed(self._fetch(data), row, expire_time, tag)
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
        self._open()
        short = short_key(self._key(key))
        with self._transact(retry) as (table, rows):
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
        self._open()
        short = short_key(self._key(key))
        with self._transact(retry) as (table, rows):
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return False
            table.replace(rows, short, row, row._replace(expires=_expiry(expire)))
            return True

    def incr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """Adds `delta` to a number and returns the sum. A missing key counts as `default`, or raises `KeyError` if that is None.

        >>> cache = plimsoll.Cache()
        >>> cache.incr("visits"), cache.incr("visits", 10)
        (1, 11)
        >>> cache.incr("price", 0.5, default=2)
        2.5
        """
        self._open()
        full = self._key(key)
        short = short_key(full)
        with self._transact(retry) as (table, rows):
            row = table.get(rows, short)
            moment = now()
            total: Any = ENOVAL
            if row is not None and row.expires > moment:
                with suppress(OSError):
                    total = self._fetch(table.value(rows, row) or b"\0")
            if row is None or total is ENOVAL:
                if default is None:
                    raise KeyError(key)
                total = default + delta
                expires, tag = math.inf, b""
            else:
                if not isinstance(total, (int, float)):
                    raise TypeError(f"incr needs a number, and the value of {key!r} is a {type(total).__name__}")
                total += delta
                expires, tag = row.expires, row.tag
            dumped, _ = self._dump(key, total, False)
            stored = table.put(rows, short, _long(full, short), dumped, expires, tag, moment, row)
            if stored is not None:
                if row is not None:
                    table.replace(rows, short, stored, stored._replace(uses=row.uses + 1))
                table.make_room(rows, moment, stored.id)
            return total

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
        tries = 0
        while True:
            with self._transact(retry) as (table, rows):
                found = table.keys_by_id(0, table.next_id, reverse=last, limit=1)
                if not found:
                    raise KeyError("the cache is empty")
                full = found[0][1]
                row = table.get(rows, short_key(full))
                assert row is not None, "each entry of the order has its row"
                if row.expires <= now():
                    table.delete(rows, short_key(full), row)
                    continue
                data = table.value(rows, row)
            try:
                return self._detailed((self._python_key(full), self._fetch(data)), row, expire_time, tag)
            except OSError as error:
                tries += 1
                self._give_up(short_key(full), row, error, tries)

    # Many rows.

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        return self._iterate(reverse=True)

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """The keys in their own order: numbers, text, bytes, others.

        >>> cache = plimsoll.Cache()
        >>> for key in ("b", 2, "a", 1):
        ...     cache[key] = True
        >>> list(cache.iterkeys()), list(cache)
        ([1, 2, 'a', 'b'], ['b', 2, 'a', 1])
        """
        start, stop = b"r", b"s"
        while True:
            found = self._read(lambda table: table.rows().scan(start, stop, reverse=reverse, limit=_BATCH))  # noqa: B023
            for stored, data in found:
                yield self._python_key(Row.load(data).long_key or stored[1:])
            if len(found) < _BATCH:
                return
            start, stop = (start, found[-1][0]) if reverse else (found[-1][0] + b"\0", stop)

    def __len__(self) -> int:
        """The number of rows, including expired rows that were not removed yet."""
        return self._read(Table.totals)[0]

    # The whole.

    @block
    def transact(self, retry: bool = False) -> Iterator[None]:
        """Makes the operations inside it one commit, or none after an exception. Other threads and
        processes write before or after it, and read the state committed before.

        >>> cache = plimsoll.Cache()
        >>> with cache.transact():
        ...     total = cache.incr("total", 7)
        ...     count = cache.incr("count")
        """
        with self._transact(retry):
            yield

    def close(self) -> None:
        """Closes the store unless other caches of this process use it, or a thread is writing to
        it; then that thread closes it at the end of its transaction. Using a closed cache reopens
        it, even from a thread that was using it meanwhile.

        >>> cache = plimsoll.Cache()
        >>> cache["key"] = 1
        >>> cache.close()
        >>> cache["key"]
        1
        """
        with _cache_store.opening():
            self._use.table = None
            _cache_store.release(self._use)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_root", "_name", "_timeout", "_options", "_disk_class")
        return {**{name: self.__dict__[name] for name in kept}, "serializer": self._serializer.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._serializer = Serializer(state.pop("serializer"))
        self.__dict__.update(state)
        self._claim()

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
    ) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
        """Caches the results of a function; of an `async` one, the awaited results. `ignore` names
        arguments to leave out of the key; with `typed`, 3 and 3.0 are different.

        >>> cache = plimsoll.Cache()
        >>> @cache.memoize(expire=60)
        ... def square(number):
        ...     return number * number
        >>> square(4)
        16
        """
        return memoize(self, name, typed, expire, tag, ignore)

    # Parts.

    def _claim(self) -> None:
        self._use = _cache_store.Use()
        weakref.finalize(self, _cache_store.release, self._use)

    def _open(self, settings: dict[str, Any] | None = None) -> Table:
        table = self._use.table
        if table is not None:
            return table
        with _cache_store.opening():
            if self._use.table is not None:
                return self._use.table
            os.makedirs(self._root, 0o755, exist_ok=True)
            store = _cache_store.acquire(os.path.join(self._root, "store"), self._options, self._use)
            try:
                table = _cache_store.table(store, self._name)
                if "_disk" not in self.__dict__:
                    self._disk = self._make_disk({**table.stored_settings(), **(settings or {})})
            except BaseException:
                _cache_store.release(self._use)
                raise
            self._use.table = table
            return table

    def _make_disk(self, settings: dict[str, Any]) -> Disk:
        arguments = {name[5:]: value for name, value in settings.items() if name.startswith("disk_")}
        if self._disk_class is StoreDisk:
            # A program that only reads a cache need not know its class.
            arguments = {name: arguments[name] for name in ("min_file_size", "pickle_protocol")}
        disk = self._disk_class(self.directory, **arguments)
        self._serializer.pickle_protocol = disk.pickle_protocol
        disk.serializer = self._serializer
        return disk

    def _read(self, read: Callable[[Table], _T]) -> _T:
        """Reads in the table. If another thread closes the cache meanwhile, it is reopened."""
        while True:
            table = self._open()
            try:
                return read(table)
            except Closed:
                if self._holds(table):
                    raise

    def _holds(self, table: Table) -> bool:
        """Whether the cache has this table open. If the store is closed nevertheless, as at
        interpreter exit, reopening would not help."""
        return self._use.table is table

    @block
    def _transact(self, retry: bool = False) -> Iterator[tuple[Table, WriteMapping]]:
        while True:
            table = self._open()
            with table.store.write(None if retry else self._timeout) as transaction:
                # Otherwise another thread has just closed the cache.
                if transaction is not None:
                    table.disk = self._disk
                    rows = transaction.keyspace(table.committed)
                    if table.is_unread:
                        table.refresh(rows)
                    yield table, rows
                    return
            # Under the lock, because a closing thread briefly marks a store as closed that others
            # still write to.
            with _cache_store.opening():
                if table.store.is_closed and self._holds(table):
                    raise Closed("the store is closed; open it again")

    # Conversion of keys and values. The default disk is handled inline, without calling it for each
    # of them.

    def _key(self, key: Any) -> bytes:
        disk = self._disk
        return self._serializer.dump_key(key) if type(disk) is StoreDisk else dump_disk_key(*disk.put(key))

    def _python_key(self, data: bytes) -> Any:
        disk = self._disk
        return self._serializer.load_key(data) if type(disk) is StoreDisk else disk.get(*load_disk_key(data))

    def _dump(self, key: Any, value: Any, read: bool) -> tuple[bytes | Iterator[bytes], str | None]:
        """The stored form of a value, and the name of the file written for it."""
        disk = self._disk
        if type(disk) is StoreDisk:
            return file_pieces(value) if read else self._serializer.dump(value), None
        size, mode, filename, plain = disk.store(value, read, key=key)
        if filename is not None and self._options["durability"] == "sync":
            sync_file(self.directory, filename)
        return dump_disk_value(size, mode, filename, plain), filename

    def _fetch(self, data: bytes | None, read: bool = False) -> Any:
        """Decodes a stored value. Raises `OSError` if its file cannot be read."""
        assert data is not None, "a transaction sees all pieces of a value"
        disk = self._disk
        if type(disk) is not StoreDisk or data[0] == DISK:
            return disk.fetch(*load_disk_value(data), read)
        return io.BytesIO(data[1:]) if read and data[0] == RAW else self._serializer.load(data)

    def _give_up(self, short: bytes, row: Row, error: OSError, tries: int) -> None:
        """Removes a row whose file is lost, after several attempts. Raises any other read error."""
        if tries < _TRIES:
            return
        if not isinstance(error, FileNotFoundError):
            raise error
        with self._transact(True) as (table, rows):
            if table.get(rows, short) == row:
                table.delete(rows, short, row)

    def _store(self, new: NewRow) -> bool:
        """Stores a row; returns whether it was stored."""
        store = self._open().store
        full = self._key(new.key) if new.full is None else new.full
        if new.read and type(self._disk) is StoreDisk and store.transaction is None:
            with read_first(new.value, store.path) as copy:
                return self._store_row(full, new._replace(value=copy))
        return self._store_row(full, new)

    def _store_row(self, full: bytes, new: NewRow) -> bool:
        short = short_key(full)
        can_seek = new.read and hasattr(new.value, "seekable") and new.value.seekable()
        start = new.value.tell() if can_seek else None
        try:
            dumped, filename = self._dump(new.key, new.value, new.read)
        except FileExistsError:
            if new.read and start is None:
                # The disk may have consumed part of the file.
                raise
            # The disk derives names from keys, so the file may belong to an expired row.
            with self._transact(new.retry) as (table, rows):
                row = table.get(rows, short)
                if row is not None and row.expires > now():
                    if new.only_new:
                        return False
                    raise
                if row is not None:
                    table.delete(rows, short, row)
            if start is not None:
                new.value.seek(start)
            dumped, filename = self._dump(new.key, new.value, new.read)
        stored = None
        try:
            with self._transact(new.retry) as (table, rows):
                if filename is not None:
                    table.store.file_written(self._disk, filename)
                moment = now()
                row = table.get(rows, short)
                if new.only_new and row is not None and row.expires > moment:
                    return False
                tag = b"" if new.tag is None else TAGS.dump(new.tag, is_key=True)
                stored = table.put(rows, short, _long(full, short), dumped, _expiry(new.expire), tag, moment, row)
                if stored is not None:
                    table.make_room(rows, moment, stored.id)
                return stored is not None
        finally:
            if filename is not None and stored is None:
                self._disk.remove(filename)

    def _load(self, table: Table, short: bytes, read: bool) -> tuple[Row | None, bytes | IO[bytes] | None]:
        """An unexpired row and its value; as a file if requested and stored in pieces."""
        if read and table.store.transaction is None:
            reader = PieceReader(table, short)
            if reader.row is not None and reader.kind == RAW and reader.row.expires > now():
                return reader.row, io.BufferedReader(reader, PIECE_BYTES)
            reader.close()
        while True:
            rows = table.rows()
            row = table.get(rows, short)
            if row is None or row.expires <= now():
                return None, None
            data = table.value(rows, row)
            if data is not None:
                return row, data

    def _detailed(self, value: Any, row: Row, expire_time: bool, tag: bool) -> Any:
        expires = None if row.expires == math.inf else row.expires
        return with_details(value, expires, TAGS.load(row.tag) if row.tag and tag else None, expire_time, tag)

    def _iterate(self, *, reverse: bool) -> Iterator[Any]:
        return self._iterate_between(self._read(lambda table: table.next_id), reverse=reverse)

    def _iterate_between(self, stop: int, *, reverse: bool) -> Iterator[Any]:
        first = 0
        while True:
            found = self._read(lambda table: table.keys_by_id(first, stop, reverse=reverse, limit=_BATCH))  # noqa: B023
            for _, full in found:
                yield self._python_key(full)
            if len(found) < _BATCH:
                return
            first, stop = (first, found[-1][0]) if reverse else (found[-1][0] + 1, stop)


def folder(directory: str | os.PathLike[str] | bytes | None) -> str:
    """The folder of a cache as an absolute path, which survives a change of the working
    directory."""
    if directory is None:
        return tempfile.mkdtemp(prefix="plimsoll-cache-")
    return os.path.abspath(os.path.expandvars(os.path.expanduser(os.fsdecode(directory))))


def _expiry(expire: float | None) -> float:
    return math.inf if expire is None else now() + expire


def _long(full: bytes, short: bytes) -> bytes:
    return full if full is not short else b""


__all__ = ["DEFAULT_SETTINGS", "ENOVAL", "EVICTION_POLICIES", "Cache", "Timeout"]
