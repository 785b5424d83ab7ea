"""Recipes built on caches: memoization without stampedes, locks between threads, averages.

The keys of locks and averages must not be evicted: use a cache with the eviction policy "none".
"""

from .cache.recipes import Averager, BoundedSemaphore, Lock, RLock, memoize_stampede

__all__ = ["Averager", "BoundedSemaphore", "Lock", "RLock", "memoize_stampede"]
