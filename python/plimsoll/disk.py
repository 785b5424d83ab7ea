"""The public place of conversion of keys and values in programs written for diskcache, and in pickles."""

from .cache import ENOVAL, UNKNOWN, Constant, Disk, JSONDisk, StoreDisk

__all__ = ["ENOVAL", "UNKNOWN", "Constant", "Disk", "JSONDisk", "StoreDisk"]
