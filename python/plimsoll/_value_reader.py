"""A large value as a file object."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import RawValueReader


class ValueReader(io.RawIOBase):
    """Reads a value in pieces, from `ReadMapping.open_value`.

    It reads the value as of the reader's creation, regardless of later writes.

    >>> db = plimsoll.in_memory()
    >>> db[b"film"] = b"frame " * 100_000
    >>> with db.open_value(b"film") as film:
    ...     film.size, film.read(6), film.read(6)
    (600000, b'frame ', b'frame ')
    """

    def __init__(self, raw: RawValueReader) -> None:
        super().__init__()
        self._raw = raw

    @property
    def size(self) -> int:
        """Length of the whole value in bytes."""
        return len(self._raw)

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer with the next bytes; returns their number, 0 at the end.

        >>> db = plimsoll.in_memory()
        >>> db[b"film"] = b"frame " * 100_000
        >>> buffer = bytearray(12)
        >>> with db.open_value(b"film") as film:
        ...     film.readinto(buffer), bytes(buffer)
        (12, b'frame frame ')
        """
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            piece = self._raw.read(len(view) - filled)
            if not piece:
                break
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled
