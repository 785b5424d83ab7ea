"""Conversion of a cache's keys and values to their stored form, with the interface of diskcache's
class `Disk`.

A cache calls an object of such a class for each key and value: `Cache(directory, disk=JSONDisk,
disk_compress_level=6)`. There are three classes, and programs derive their own from them:

- `StoreDisk`, the default: a long value is kept in the store, in pieces.
- `Disk`: a value of `min_file_size` bytes or more is a separate file in the folder of the cache, as
  in diskcache.
- `JSONDisk`: a `Disk` of compressed JSON.

A cache setting with the prefix `disk_` is an argument of the class and an attribute of the object:
`disk_compress_level` is `compress_level`. Settings are kept in the store, and `Cache.reset` changes
them.

Invariant: a file is written before the commit that refers to it. It is removed after the commit
that drops the reference, or once its row has expired. So an unexpired row has its file even after a
crash of any process. A crash may leave a file without a row; `Cache.check` finds it.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import pickle
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ._codec import (
    MODE_BINARY,
    MODE_RAW,
    MODE_SERIALIZED,
    MODE_TEXT,
    Serializer,
    dump_disk_key,
    fits,
    short_key,
)

_CHUNK_BYTES = 4 << 20
_TRIES = 10


class Constant:
    """A sentinel for default arguments, with a readable name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


ENOVAL: Any = Constant("ENOVAL")
"""No value."""
UNKNOWN: Any = Constant("UNKNOWN")
"""Marks an unknown key or value."""


class Disk:
    """Stores keys and values for a cache; a value of `min_file_size` bytes or more is a file in the
    folder `directory`.

    Other types than bytes, text and numbers go through the cache's serializer, so they are pickled
    only if the cache was opened with `serializer="pickle"`.

    >>> import os
    >>> class HashedNames(plimsoll.Disk):
    ...     def filename(self, key=None, value=None):
    ...         name = f"{self.hash(key):08x}"
    ...         return name, os.path.join(self.directory, name)
    >>> cache = plimsoll.Cache(disk=HashedNames, disk_min_file_size=1000)
    >>> cache["page"] = "<p>" * 1000
    >>> name, path = cache.disk.filename("page")
    >>> os.path.getsize(path)
    3000
    """

    def __init__(
        self, directory: str, min_file_size: int = 0, pickle_protocol: int = pickle.HIGHEST_PROTOCOL
    ) -> None:
        self._directory = os.path.abspath(directory)
        self.min_file_size = min_file_size
        self.serializer = Serializer("json")
        """The serializer of the cache."""
        self.pickle_protocol = pickle_protocol

    @property
    def directory(self) -> str:
        """The folder of the files."""
        return self._directory

    @property
    def pickle_protocol(self) -> int:
        """The pickle protocol, if the cache stores pickles."""
        return self.serializer.pickle_protocol

    @pickle_protocol.setter
    def pickle_protocol(self, protocol: int) -> None:
        self.serializer.pickle_protocol = protocol

    def hash(self, key: Any) -> int:
        """A number for a key, the same in every process.

        >>> plimsoll.Disk(path).hash("key")
        72614333
        """
        return zlib.adler32(short_key(dump_disk_key(*self.put(key))))

    def put(self, key: Any) -> tuple[Any, bool]:
        """A key as bytes, text or a number, and whether that is the key itself.

        >>> disk = plimsoll.Disk(path)
        >>> disk.put("key"), disk.put([1, 2])
        (('key', True), (b'\\x04[1,2]', False))
        """
        if type(key) in (bytes, str, float) or (type(key) is int and fits(key)):
            return key, True
        return self.serializer.dump(key, is_key=True), False

    def get(self, key: Any, raw: bool) -> Any:
        """The key that `put` has converted to this pair.

        >>> disk = plimsoll.Disk(path)
        >>> stored, raw = disk.put(("a", 1))
        >>> disk.get(stored, raw)
        ('a', 1)
        """
        return key if raw else self.serializer.load(key)

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Stores a value, or with `read` the rest of a binary file. Returns the size of the file,
        the mode, the file name, and if there is no file, the value as bytes, text or a number.

        >>> disk = plimsoll.Disk(path, min_file_size=1000)
        >>> disk.store("short", read=False)
        (0, 1, None, 'short')
        >>> size, mode, filename, value = disk.store("x" * 2000, read=False)
        >>> size, filename is None, value
        (2000, False, None)
        """
        if read:
            return self._store_file(MODE_BINARY, iter(lambda: value.read(_CHUNK_BYTES), b""), key, value)
        kind = type(value)
        if kind is float or (kind is int and fits(value)):
            return 0, MODE_RAW, None, value
        if kind is bytes:
            mode, inline, data = MODE_BINARY, MODE_RAW, value
        elif kind is str:
            mode, inline, data = MODE_TEXT, MODE_RAW, value.encode("utf-8", "surrogatepass")
        else:
            mode = inline = MODE_SERIALIZED
            value = data = self.serializer.dump(value)
        if len(data) < self.min_file_size:
            return 0, inline, None, value
        return self._store_file(mode, [data], key, value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """The value that `store` has converted to these; with `read`, a binary file is returned
        open.

        Raises `OSError` if its file cannot be read. The cache then treats the value as missing.

        >>> disk = plimsoll.Disk(path)
        >>> size, mode, filename, value = disk.store(b"film", read=False)
        >>> disk.fetch(mode, filename, value, read=False)
        b'film'
        >>> with disk.fetch(mode, filename, value, read=True) as file:
        ...     file.read(2)
        b'fi'
        """
        if mode == MODE_RAW:
            return value
        if filename is None:
            return self.serializer.load(value)
        file = open(self._path(filename), "rb")
        if read and mode == MODE_BINARY:
            return file
        with file:
            data = file.read()
        if mode == MODE_BINARY:
            return data
        if mode == MODE_TEXT:
            return data.decode("utf-8", "surrogatepass")
        return self.serializer.load(data)

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        """A name for a new file, relative to the folder, and its full path. By default it is
        random, two folders deep.

        >>> disk = plimsoll.Disk("/var/cache/site")
        >>> name, whole = disk.filename()
        >>> len(name.split("/")), whole == "/var/cache/site/" + name
        (3, True)
        """
        name = codecs.encode(os.urandom(16), "hex").decode()
        filename = os.path.join(name[:2], name[2:4], name[4:] + ".val")
        return filename, os.path.join(self._directory, filename)

    def remove(self, file_path: str) -> None:
        """Removes a file by name, and the folders that become empty. A missing file is not an
        error.

        >>> import os
        >>> disk = plimsoll.Disk(path)
        >>> size, mode, filename, value = disk.store(b"film", read=False)
        >>> disk.remove(filename)
        >>> os.path.exists(os.path.join(path, filename))
        False
        """
        with suppress(OSError):
            path = self._path(file_path)
            os.remove(path)
            os.removedirs(os.path.dirname(path))

    def _store_file(self, mode: int, chunks: Iterable[bytes], key: Any, value: Any) -> tuple[int, int, str | None, Any]:
        filename, path = self.filename(key, value)
        return self._write(path, chunks), mode, filename, None

    def _write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Writes a new file; returns its size."""
        for left in reversed(range(_TRIES)):
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                file = open(path, "xb")
                break
            except OSError:
                # Another process may have removed the empty folder before the file was created in
                # it.
                if not left:
                    raise
        size = 0
        try:
            with file:
                for chunk in chunks:
                    size += file.write(chunk)
        except BaseException:
            with suppress(OSError):
                os.remove(path)
            raise
        return size

    def _path(self, filename: str) -> str:
        """The path of a file. Names come from the store, so a writer of the store must not be able
        to name files elsewhere."""
        path = os.path.join(self._directory, filename)
        folder, top = os.path.realpath(os.path.dirname(path)), os.path.realpath(self._directory)
        if folder != top and not folder.startswith(os.path.join(top, "")):
            raise PermissionError(errno.EACCES, "the file name points outside the cache's folder", filename)
        return path


class StoreDisk(Disk):
    """The default: all values are in the store, long ones in pieces, so a commit contains the
    complete value.

    >>> class Upper(plimsoll.StoreDisk):
    ...     def put(self, key):
    ...         return super().put(key.upper())
    >>> cache = plimsoll.Cache(disk=Upper)
    >>> cache["key"] = 1
    >>> cache["KEY"]
    1
    """

    def hash(self, key: Any) -> int:
        """A number for a key, the same in every process.

        >>> plimsoll.StoreDisk(path).hash("key")
        72614333
        """
        if type(self) is StoreDisk:
            return zlib.adler32(short_key(self.serializer.dump_key(key)))
        return super().hash(key)

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """A value as bytes, text or a number; it has no file.

        >>> disk = plimsoll.StoreDisk(path)
        >>> disk.store("text", read=False), disk.store([1, 2], read=False)
        ((0, 1, None, 'text'), (0, 5, None, b'\\x04[1,2]'))
        """
        if read:
            value = value.read()
        if type(value) in (bytes, str, float) or (type(value) is int and fits(value)):
            return 0, MODE_RAW, None, value
        return 0, MODE_SERIALIZED, None, self.serializer.dump(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """The value; with `read`, bytes as a file object.

        >>> disk = plimsoll.StoreDisk(path)
        >>> size, mode, filename, value = disk.store([1, 2], read=False)
        >>> disk.fetch(mode, filename, value, read=False)
        [1, 2]
        """
        value = super().fetch(mode, filename, value, read)
        return io.BytesIO(value) if read and type(value) is bytes else value


class JSONDisk(Disk):
    """Keys and values as JSON, compressed by zlib. `disk_compress_level` is from 0 (not at all) to 9 (small, but slow).

    >>> cache = plimsoll.Cache(disk=plimsoll.JSONDisk, disk_compress_level=6)
    >>> cache["key"] = {"value": [1, 2.5, None]}
    >>> cache["key"]
    {'value': [1, 2.5, None]}
    """

    def __init__(self, directory: str, compress_level: int = 1, **kwargs: Any) -> None:
        self.compress_level = compress_level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> tuple[Any, bool]:
        """A key as compressed JSON.

        >>> import zlib
        >>> stored, raw = plimsoll.JSONDisk(path).put({"id": 7})
        >>> zlib.decompress(stored)
        b'{"id": 7}'
        """
        return super().put(self._dump(key))

    def get(self, key: Any, raw: bool) -> Any:
        """The key.

        >>> disk = plimsoll.JSONDisk(path)
        >>> stored, raw = disk.put({"id": 7})
        >>> disk.get(stored, raw)
        {'id': 7}
        """
        return self._load(super().get(key, raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Stores a value as compressed JSON; with `read`, a file as it is.

        >>> import os
        >>> disk = plimsoll.JSONDisk(path)
        >>> size, mode, filename, value = disk.store(["x"] * 1000, read=False)
        >>> os.path.getsize(os.path.join(path, filename)) == size < 100
        True
        """
        return super().store(value if read else self._dump(value), read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """The value; with `read`, the file as it is.

        >>> disk = plimsoll.JSONDisk(path)
        >>> size, mode, filename, value = disk.store([1, None], read=False)
        >>> disk.fetch(mode, filename, value, read=False)
        [1, None]
        """
        data = super().fetch(mode, filename, value, read)
        return data if read else self._load(data)

    def _dump(self, value: Any) -> bytes:
        # With spaces, like diskcache.
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return zlib.compress(data, self.compress_level)

    def _load(self, data: bytes) -> Any:
        return json.loads(zlib.decompress(data))

