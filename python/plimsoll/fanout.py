"""The public place of the cache in several parts in programs written for diskcache, and in pickles."""

from .cache import FanoutCache

__all__ = ["FanoutCache"]
