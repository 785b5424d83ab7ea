"""The exceptions of Plimsoll. Numbers that a message names are attributes, too."""

from __future__ import annotations

import builtins


class Error(Exception):
    """The base of all exceptions of Plimsoll."""


class Conflict(Error):
    """A transaction read what another one has changed since. Run it again; `Db.transact` does."""

    key: bytes
    """The key, behind the number of its keyspace."""
    at: int
    """The GLSN at which the transaction read."""
    by: int
    """The GLSN of the commit that changed it."""


class Trimmed(Error):
    """The moment, or the entry of the log, is no longer kept."""

    asked: int
    """The GLSN that was asked for."""
    first: int
    """The oldest GLSN that is still kept."""


class NotYet(Error):
    """The moment lies in the future."""

    asked: int
    """The GLSN that was asked for."""
    newest: int
    """The newest GLSN."""


class InvalidInput(Error, ValueError):
    """An argument is invalid. Where a limit was exceeded, `bytes` and `limit_bytes` say by how much."""

    bytes: builtins.int
    limit_bytes: builtins.int


class NoKeyspace(InvalidInput):
    """There is no keyspace with this name, or it was dropped."""


class NotAStore(Error):
    """The folder holds no store, or something else."""

    path: str


class Locked(Error):
    """Another process has the store open, and at most one of the two with `shared=True`."""

    path: str
    pid: int | None
    """The process, if it is known."""


class Behind(Error):
    """What other processes have committed could not be taken in. Read again in a new snapshot or transaction."""

    cause: str


class Stalled(Error):
    """Another process that shares the store was stopped, or hangs, while all waited for it. Reads go on meanwhile.

    Continue or end that process. A write that failed with this may be there after that: look before you try it again.
    """

    pid: int | None
    """The process, if it is known."""


class NotKeeper(Error):
    """The process that compacts and trims for all could not do it. Its own calls say why."""

    pid: int | None
    """The process, if it is known."""


class Closed(Error):
    """The store, or an object of it, was closed."""


class TransactionEnded(Error):
    """The transaction was committed or aborted."""


class ReadOnly(Error):
    """The store was opened read-only."""


class UsedAfterFork(Error):
    """An object was used in a process that was forked from the one that opened the store."""


class FormatError(Error):
    """The files are of another version of Plimsoll."""

    path: str | None


class Corrupt(Error):
    """Bytes on disk are not what was written. `plimsoll verify` says what is lost and what helps."""

    file: str | None
    glsn: int | None


class Dropped(Error):
    """The value was damaged, and a salvage has dropped it."""

    glsn: int


class LogMismatch(Error):
    """The log is not the one that the index, or a cursor, was made from."""

    glsn: int | None


class Poisoned(Error):
    """A write to the disk failed: what comes after it is refused until the store is opened anew."""

    cause: str


class OutOfBudget(Error, MemoryError):
    """The operation needs more memory than the budget has."""

    needed_bytes: int
    limit_bytes: int


class IoError(Error, OSError):
    """An operation of the operating system failed; `errno` says how."""


__all__ = [
    "Behind",
    "Closed",
    "Conflict",
    "Corrupt",
    "Dropped",
    "Error",
    "FormatError",
    "InvalidInput",
    "IoError",
    "Locked",
    "LogMismatch",
    "NoKeyspace",
    "NotAStore",
    "NotKeeper",
    "NotYet",
    "OutOfBudget",
    "Poisoned",
    "ReadOnly",
    "Stalled",
    "TransactionEnded",
    "Trimmed",
    "UsedAfterFork",
]
