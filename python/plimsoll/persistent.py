"""The public place of deques and mappings in a cache in programs written for diskcache, and in pickles."""

from .cache import Deque, Index

__all__ = ["Deque", "Index"]
