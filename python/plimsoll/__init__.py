"""Plimsoll: an embedded, versioned, transactional key-value store within one memory budget.

>>> db = plimsoll.in_memory()
>>> db[b"ada"] = b"Ada Lovelace"
>>> with db.transaction() as tx:
...     tx[b"alan"] = b"Alan Turing"
>>> [key for key in db]
[b'ada', b'alan']

`open` opens a store in a folder. Every commit has a number, its GLSN (global log sequence number): `Db.at` reads the store as it was after
any of them, `Db.watch` and `Db.log` follow them.
"""

import atexit as _atexit
import os as _os
from collections.abc import Mapping as _Mapping
from collections.abc import MutableMapping as _MutableMapping

from . import _native, cache
from ._errors import (
    Behind,
    ClockBehind,
    Closed,
    Conflict,
    Corrupt,
    Dropped,
    Error,
    FormatError,
    InvalidInput,
    IoError,
    Locked,
    LogMismatch,
    MergeConflicts,
    NoKeyspace,
    NotAStore,
    NotFastForward,
    NotKeeper,
    NotYet,
    OutOfBudget,
    Poisoned,
    ReadOnly,
    Stalled,
    TransactionEnded,
    Trimmed,
    UsedAfterFork,
)
from ._native import (
    ArchiveReport,
    ArchiveRestoreReport,
    ArchiveVerifyReport,
    BackupReport,
    Branch,
    BranchInfo,
    BranchLog,
    BranchMapping,
    Change,
    Commit,
    Commits,
    Db,
    Diff,
    Difference,
    History,
    Keyspace,
    KeyspaceSize,
    LiveMapping,
    Log,
    LogBounds,
    LogEntry,
    LogFollow,
    LogScan,
    MemberInfo,
    MergeStep,
    MergeSteps,
    Moved,
    ReadMapping,
    RecoverReport,
    Remote,
    Rows,
    Snapshot,
    Tag,
    Ticket,
    Transaction,
    VerifyReport,
    Version,
    Watch,
    WriteMapping,
    archive,
    clone,
    in_memory,
    members,
    open,
    recover,
    restore,
    restore_archive,
    verify,
    verify_archive,
)
from ._value_reader import ValueReader
from ._watch_async import AsyncWatch
from .cache import (
    Cache,
    Deque,
    Disk,
    FanoutCache,
    Index,
    JSONDisk,
    StoreDisk,
    Timeout,
    memoize_stampede,
)

# Read from the extension module, because a lookup in the package's metadata takes longer than
# opening a store.
__version__: str = _native.__version__

__all__ = [
    "ArchiveReport",
    "ArchiveRestoreReport",
    "ArchiveVerifyReport",
    "AsyncWatch",
    "BackupReport",
    "Behind",
    "Branch",
    "BranchInfo",
    "BranchLog",
    "BranchMapping",
    "ClockBehind",
    "Cache",
    "Change",
    "Closed",
    "Commit",
    "Commits",
    "Conflict",
    "Corrupt",
    "Db",
    "Deque",
    "Diff",
    "Difference",
    "Disk",
    "Dropped",
    "Error",
    "FanoutCache",
    "FormatError",
    "History",
    "Index",
    "InvalidInput",
    "IoError",
    "JSONDisk",
    "Keyspace",
    "KeyspaceSize",
    "LiveMapping",
    "Locked",
    "Log",
    "LogBounds",
    "LogEntry",
    "LogFollow",
    "LogMismatch",
    "LogScan",
    "MemberInfo",
    "MergeConflicts",
    "MergeStep",
    "MergeSteps",
    "Moved",
    "NoKeyspace",
    "NotAStore",
    "NotFastForward",
    "NotKeeper",
    "NotYet",
    "OutOfBudget",
    "Poisoned",
    "ReadMapping",
    "RecoverReport",
    "ReadOnly",
    "Remote",
    "Rows",
    "Snapshot",
    "Tag",
    "Stalled",
    "StoreDisk",
    "Ticket",
    "Timeout",
    "Transaction",
    "TransactionEnded",
    "Trimmed",
    "UsedAfterFork",
    "ValueReader",
    "VerifyReport",
    "Version",
    "Watch",
    "WriteMapping",
    "archive",
    "clone",
    "in_memory",
    "members",
    "memoize_stampede",
    "open",
    "recover",
    "restore",
    "restore_archive",
    "verify",
    "verify_archive",
]

_Mapping.register(ReadMapping)
_MutableMapping.register(WriteMapping)

# Close stores before the interpreter shuts down; a forked child must not touch its parent's.
_atexit.register(_native._close_all)
_os.register_at_fork(after_in_child=_native._after_fork_in_child)
