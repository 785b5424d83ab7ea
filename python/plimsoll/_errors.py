"""The exceptions of Plimsoll. Numbers in a message are also attributes."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import MergeSteps


class Error(Exception):
    """The base of all exceptions of Plimsoll.

    >>> try:
    ...     plimsoll.open(path, create=False)
    ... except plimsoll.Error as error:
    ...     print(type(error).__name__)
    NotAStore
    """


class Conflict(Error):
    """A transaction read data that another one has changed since. Run it again; `Db.transact` does.

    >>> db = plimsoll.in_memory()
    >>> tx = db.transaction()
    >>> tx[b"a"] = tx.get(b"a", b"") + b"1"
    >>> glsn = db.put(b"a", b"2")
    >>> try:
    ...     tx.commit()
    ... except plimsoll.Conflict as conflict:
    ...     conflict.key, conflict.at < conflict.by == glsn
    (b'a', True)
    """

    key: bytes
    """The key. If the transaction read a range: the first changed key in it."""
    at: int
    """The GLSN at which the transaction read."""
    by: int
    """The GLSN of the commit that changed it."""


class MergeConflicts(Error):
    """A revert met keys that were changed again since the commit. Nothing was written; `rules` decides instead.

    >>> db = plimsoll.in_memory()
    >>> db[b"tea"] = b"3.10"
    >>> wrong = db.put(b"tea", b"31")
    >>> db[b"tea"] = b"3.20"
    >>> try:
    ...     db.revert(wrong)
    ... except plimsoll.MergeConflicts as error:
    ...     for conflict in error.conflicts:
    ...         conflict.key, conflict.base(), conflict.ours(), conflict.theirs()
    (b'tea', b'31', b'3.20', b'3.10')
    """

    conflicts: MergeSteps
    """An iterator over the conflicts. It computes them again, as of the moments of the revert."""


class Trimmed(Error):
    """The moment, or the log entry, is no longer retained.

    >>> db = plimsoll.in_memory()
    >>> glsn = db.put(b"a", b"1")
    >>> first = db.log.trim(db.newest + 1)
    >>> try:
    ...     db.log.commit(glsn)
    ... except plimsoll.Trimmed as trimmed:
    ...     trimmed.asked == glsn, trimmed.first == first
    (True, True)
    """

    asked: int | None
    """The requested GLSN; `None` if a time was requested."""
    first: int
    """The oldest GLSN still retained; for times, the first moment whose time is known."""
    keyspace: str | None
    """The keyspace that does not retain it, of a revert or reset; otherwise `None`."""


class NotYet(Error):
    """The moment is in the future.

    >>> db = plimsoll.in_memory()
    >>> glsn = db.put(b"a", b"1")
    >>> try:
    ...     db.at(glsn + 5)
    ... except plimsoll.NotYet as error:
    ...     error.asked - error.newest
    5
    """

    asked: int
    """The requested GLSN."""
    newest: int
    """The newest GLSN."""


class InvalidInput(Error, ValueError):
    """An argument is invalid. If a limit was exceeded, `bytes` and `limit_bytes` are the size and
    the limit.

    >>> db = plimsoll.in_memory()
    >>> try:
    ...     db[b"k" * 5000] = b""
    ... except plimsoll.InvalidInput as error:
    ...     error.bytes, error.limit_bytes
    (5000, 4096)
    """

    bytes: builtins.int
    limit_bytes: builtins.int


class NoKeyspace(InvalidInput):
    """There is no keyspace with this name, or it was dropped.

    >>> try:
    ...     plimsoll.in_memory().snapshot().keyspace("cats")
    ... except plimsoll.NoKeyspace as error:
    ...     print(error)
    there is no keyspace "cats"
    """


class NotFastForward(InvalidInput):
    """The branch of the other store has commits that the pushed branch does not contain. Pull them
    first, or push with `force=True`.

    >>> plimsoll.open(path, memory="16MiB").close()
    >>> db = plimsoll.clone(path, path + ".copy", memory="16MiB")
    >>> db[b"tea"] = b"3.10"
    >>> with plimsoll.open(path, memory="16MiB") as hub:
    ...     hub[b"cocoa"] = b"4.00"
    >>> try:
    ...     db.push()
    ... except plimsoll.NotFastForward:
    ...     glsn = db.pull().glsn
    ...     db.push().is_up_to_date
    False
    """


class ClockBehind(Error):
    """The last commit's time is ahead of this machine's clock by more than a day, so commits are
    refused. Reads continue.

    Set the clock if it is wrong; if it is right, call `db.log.restart_time()`.
    """

    ahead_seconds: float
    """By how much."""


class NotAStore(Error):
    """The folder holds no store, or holds other files.

    >>> try:
    ...     plimsoll.open(path, create=False)
    ... except plimsoll.NotAStore as error:
    ...     error.path == path
    True
    """

    path: str


class Locked(Error):
    """The store is already open, in another process or in this one. To share it, both must open it
    with `shared=True`.

    >>> import os
    >>> db = plimsoll.open(path, memory="16MiB")
    >>> try:
    ...     plimsoll.open(path, memory="16MiB")
    ... except plimsoll.Locked as locked:
    ...     locked.path == path, locked.pid == os.getpid()
    (True, True)
    """

    path: str
    pid: int | None
    """The process, if it is known."""


class Behind(Error):
    """Commits of other processes or members could not be applied. The message names the cause and
    the remedy, such as to read again in a new snapshot or transaction."""

    cause: str


class Stalled(Error):
    """Another process that shares the store is stopped or hangs while all others wait for it. Reads
    continue meanwhile.

    Resume or kill that process. A write that failed with this error may still take effect; check
    before retrying it.
    """

    pid: int | None
    """The process, if it is known."""


class RemoteError(Error):
    """The other store of a transfer, or the connection to it, failed. Correct what the message
    names, and repeat the transfer, which continues.
    """


class Unavailable(Error):
    """The bucket of the store's cluster cannot be reached or is full. The commit was not made:
    repeat it later. Reads continue."""

    since: float
    """The time of the first call that failed, in seconds since 1970."""


class InDoubt(Error):
    """The bucket's answer was lost, and the commit may have been made. Call `Db.sync` until it
    succeeds; then the store shows whether it was."""

    position: int
    """The position in the cluster's log that the commit has, if it was made."""


class NotKeeper(Error):
    """The keeper, the process that compacts and trims for all, failed to do so. The keeper's own
    calls report the reason."""

    pid: int | None
    """The process, if it is known."""


class Closed(Error):
    """The store, or an object created from it, is closed.

    >>> db = plimsoll.in_memory()
    >>> db.close()
    >>> try:
    ...     db[b"a"]
    ... except plimsoll.Closed as error:
    ...     print(error)
    the store is closed; open it again
    """


class TransactionEnded(Error):
    """The transaction was committed or aborted.

    >>> tx = plimsoll.in_memory().transaction()
    >>> tx.abort()
    >>> try:
    ...     tx[b"a"]
    ... except plimsoll.TransactionEnded as error:
    ...     print(error)
    the transaction was aborted; begin a new one with Db.transaction()
    """


class ReadOnly(Error):
    """The store was opened read-only.

    >>> plimsoll.open(path, memory="16MiB").close()
    >>> db = plimsoll.open(path, memory="16MiB", read_only=True)
    >>> try:
    ...     db[b"a"] = b"1"
    ... except plimsoll.ReadOnly as error:
    ...     print(error)
    the store is open read-only; open it for writing
    """


class UsedAfterFork(Error):
    """An object was used in a forked child process, but its store was opened by the parent."""


class FormatError(Error):
    """The files have the format of another version of Plimsoll."""

    path: str | None


class Corrupt(Error):
    """Data on disk is damaged. `plimsoll verify` lists the losses and the remedies."""

    file: str | None
    glsn: int | None


class Dropped(Error):
    """The value is lost: it was damaged when the store was recovered."""

    glsn: int


class LogMismatch(Error):
    """The log is not the one that the index or a cursor was created from."""

    glsn: int | None


class Poisoned(Error):
    """A write to the disk failed; later writes are refused until the store is reopened."""

    cause: str


class OutOfBudget(Error, MemoryError):
    """The operation needs more memory than the budget has.

    >>> db = plimsoll.in_memory(memory="16MiB")
    >>> db[b"film"] = bytes(20_000_000)
    >>> try:
    ...     db[b"film"]
    ... except plimsoll.OutOfBudget as error:
    ...     error.needed_bytes > error.limit_bytes == 16 << 20
    True
    """

    needed_bytes: int
    limit_bytes: int


class IoError(Error, OSError):
    """An operation of the operating system failed; `errno` is its error number.

    >>> import errno
    >>> try:
    ...     plimsoll.open("/dev/null/store")
    ... except plimsoll.IoError as error:
    ...     errno.errorcode[error.errno]
    'ENOTDIR'
    """


__all__ = [
    "Behind",
    "ClockBehind",
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
    "NotFastForward",
    "NotKeeper",
    "NotYet",
    "OutOfBudget",
    "Poisoned",
    "ReadOnly",
    "RemoteError",
    "Unavailable",
    "InDoubt",
    "Stalled",
    "TransactionEnded",
    "Trimmed",
    "UsedAfterFork",
]
