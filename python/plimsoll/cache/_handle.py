"""A cache's access to its store: opening and reopening, reads, write transactions, and the
conversion of keys and values.

A handle opens the store at its first use, and again after a close or in a forked child. Its cache
and the owners of the cache's operations hold one handle together.
"""

from __future__ import annotations

import io
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .._block import block
from .._errors import Closed
from ._codec import (
    DISK,
    RAW,
    Serializer,
    dump_disk_key,
    dump_disk_value,
    load_disk_key,
    load_disk_value,
)
from ._disk import Disk, StoreDisk
from ._files import file_pieces, sync_file
from ._rows import Table, table_of
from ._store import Options, Use, acquire, opening, release

if TYPE_CHECKING:
    from .._native import WriteMapping

_T = TypeVar("_T")


class Handle:
    """The arguments of a cache, and its open table."""

    disk: Disk
    """Created at the first opening, because its arguments may be in the store."""

    def __init__(
        self,
        root: str,
        name: str,
        timeout: float,
        options: Options,
        disk_class: type[Disk],
        serializer: str,
    ) -> None:
        self.root = root
        self.name = name
        self.timeout = timeout
        self.options = options
        self.disk_class = disk_class
        self.serializer = Serializer(serializer)
        self.use: Use[Table] = Use()
        weakref.finalize(self, release, self.use)

    @property
    def directory(self) -> str:
        """The folder of the cache; for a cache inside another one, its nominal folder."""
        return os.path.join(self.root, *self.name.split("/")) if self.name else self.root

    def open(self, settings: dict[str, Any] | None = None) -> Table:
        """The table, opened if necessary."""
        table = self.use.table
        if table is not None:
            return table
        with opening():
            if self.use.table is not None:
                return self.use.table
            os.makedirs(self.root, 0o755, exist_ok=True)
            store = acquire(os.path.join(self.root, "store"), self.options, self.use)
            try:
                table = table_of(store, self.name)
                if "disk" not in self.__dict__:
                    self.disk = self._make_disk({**table.stored_settings(), **(settings or {})})
            except BaseException:
                release(self.use)
                raise
            self.use.table = table
            return table

    def _make_disk(self, settings: dict[str, Any]) -> Disk:
        arguments = {name[5:]: value for name, value in settings.items() if name.startswith("disk_")}
        if self.disk_class is StoreDisk:
            # A program that only reads a cache need not know its class.
            arguments = {name: arguments[name] for name in ("min_file_size", "pickle_protocol")}
        disk = self.disk_class(self.directory, **arguments)
        self.serializer.pickle_protocol = disk.pickle_protocol
        disk.serializer = self.serializer
        return disk

    def close(self) -> None:
        """Releases the store."""
        with opening():
            self.use.table = None
            release(self.use)

    def read(self, read: Callable[[Table], _T]) -> _T:
        """Reads in the table. If another thread closes the cache meanwhile, it is reopened."""
        while True:
            table = self.open()
            try:
                return read(table)
            except Closed:
                if self.holds(table):
                    raise

    def holds(self, table: Table) -> bool:
        """Whether the cache has this table open. If the store is closed nevertheless, as at
        interpreter exit, reopening would not help."""
        return self.use.table is table

    @block
    def transact(self, retry: bool = False) -> Iterator[tuple[Table, WriteMapping]]:
        """The table and its rows in this thread's transaction, which commits at the end."""
        while True:
            table = self.open()
            with table.store.write(None if retry else self.timeout) as transaction:
                # Otherwise another thread has just closed the cache.
                if transaction is not None:
                    table.disk = self.disk
                    rows = transaction.keyspace(table.committed)
                    if table.is_unread:
                        table.refresh(rows)
                    yield table, rows
                    return
            # Under the lock, because a closing thread briefly marks a store as closed that others
            # still write to.
            with opening():
                if table.store.is_closed and self.holds(table):
                    raise Closed("the store is closed; open it again")

    # Conversion of keys and values. The default disk is handled inline, without calling it for each
    # of them.

    def key(self, key: Any) -> bytes:
        """The stored form of a key."""
        disk = self.disk
        return self.serializer.dump_key(key) if type(disk) is StoreDisk else dump_disk_key(*disk.put(key))

    def python_key(self, data: bytes) -> Any:
        """A key from its stored form."""
        disk = self.disk
        return self.serializer.load_key(data) if type(disk) is StoreDisk else disk.get(*load_disk_key(data))

    def dump(self, key: Any, value: Any, read: bool) -> tuple[bytes | Iterator[bytes], str | None]:
        """The stored form of a value, and the name of the file written for it."""
        disk = self.disk
        if type(disk) is StoreDisk:
            return file_pieces(value) if read else self.serializer.dump(value), None
        size, mode, filename, plain = disk.store(value, read, key=key)
        if filename is not None and self.options["durability"] == "sync":
            sync_file(self.directory, filename)
        return dump_disk_value(size, mode, filename, plain), filename

    def fetch(self, data: bytes | None, read: bool = False) -> Any:
        """Decodes a stored value. Raises `OSError` if its file cannot be read."""
        assert data is not None, "a transaction sees all pieces of a value"
        disk = self.disk
        if type(disk) is not StoreDisk or data[0] == DISK:
            return disk.fetch(*load_disk_value(data), read)
        return io.BytesIO(data[1:]) if read and data[0] == RAW else self.serializer.load(data)


def folder(directory: str | os.PathLike[str] | bytes | None) -> str:
    """The folder of a cache as an absolute path, which survives a change of the working
    directory."""
    if directory is None:
        return tempfile.mkdtemp(prefix="plimsoll-cache-")
    return os.path.abspath(os.path.expandvars(os.path.expanduser(os.fsdecode(directory))))
