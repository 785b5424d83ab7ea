"""The files beside a cache: values that a `Disk` stores there, and values read from a file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from ._rows import PIECE_BYTES, Table

if TYPE_CHECKING:
    from .._native import WriteMapping

_MEMORY_BYTES = 4 << 20
_STRAY_SECONDS = 600
"""A file without a row that is older than this is a leftover of an unfinished write."""


def file_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """A value that is read from a file while it is stored."""
    yield b"\0"
    while piece := file.read(PIECE_BYTES):
        yield piece


@contextmanager
def read_first(file: IO[bytes], folder: str) -> Iterator[IO[bytes]]:
    """Copies the rest of a file, so that no writer waits for the file: into memory, or into an
    unnamed file in `folder` if it is long."""
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES, dir=folder) as copy:
        shutil.copyfileobj(file, copy, PIECE_BYTES)
        copy.seek(0)
        yield copy


def sync_file(folder: str, filename: str) -> None:
    """Makes a new file survive a power cut, with its name and the folders above it."""
    places = [os.path.join(folder, filename)]
    while filename:
        filename = os.path.dirname(filename)
        places.append(os.path.join(folder, filename))
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def stray_files(table: Table, rows: WriteMapping) -> list[str]:
    """Files in the folder of a cache that have no row and that no current write can be about to
    name."""
    named = {os.path.join(table.folder, name) for name in table.files(rows)}
    top = os.path.dirname(table.store.path)
    caches = {name[len("cache:") :] for name in table.store.db.keyspaces() if name.startswith("cache:")}
    # Files of the store, and of other caches in it.
    others = {os.path.join(top, "store"), *(os.path.join(top, *name.split("/")) for name in caches - {table.name, ""})}
    found = []
    for folder, folders, names in os.walk(table.folder):
        if folder != table.folder and "store" in folders:
            # Another cache with its own store.
            folders.clear()
            continue
        folders[:] = [name for name in folders if os.path.join(folder, name) not in others]
        for path in (os.path.join(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if path not in named and os.stat(path).st_mtime < time.time() - _STRAY_SECONDS:
                    found.append(path)
    return found
