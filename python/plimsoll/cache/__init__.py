"""A size-limited cache on disk, with the interface of the package diskcache.

>>> with plimsoll.Cache() as cache:
...     cache.set("answer", {"value": 42}, expire=60, tag="numbers")
...     cache["answer"]
True
{'value': 42}

The modules, each of which imports only those before it:

| module | owns |
|---|---|
| `_codec` | the stored form of keys and values |
| `_disk` | the classes that a program may derive its own conversion from |
| `_store` | the open stores of this process, and their transactions |
| `_rows` | the rows, indexes, counters and settings of one cache, and eviction |
| `_files` | files beside a store |
| `_handle` | a cache's access to its store |
| `_entries`, `_queues`, `_upkeep` | operations on a row, on queues, on the whole cache |
| `_memoize` | results of functions |
| `_cache`, `_persistent`, `_fanout`, `recipes` | the public classes |
"""

from . import recipes
from ._cache import Cache
from ._disk import ENOVAL, UNKNOWN, Constant, Disk, JSONDisk, StoreDisk
from ._fanout import FanoutCache
from ._persistent import Deque, Index
from ._rows import DEFAULT_SETTINGS, EVICTION_POLICIES
from ._store import Timeout
from .recipes import memoize_stampede

__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICIES",
    "UNKNOWN",
    "Cache",
    "Constant",
    "Deque",
    "Disk",
    "FanoutCache",
    "Index",
    "JSONDisk",
    "StoreDisk",
    "Timeout",
    "memoize_stampede",
    "recipes",
]

# Pickles refer to a class by its public module, so that they stay valid if the class moves between
# private modules.
for _class in (Cache, Constant, Deque, Disk, FanoutCache, Index, JSONDisk, StoreDisk, Timeout):
    _class.__module__ = __name__
