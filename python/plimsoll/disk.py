"""The conversion of keys and values under the module name that programs and pickles use."""

from .cache import ENOVAL, UNKNOWN, Constant, Disk, JSONDisk, StoreDisk

__all__ = ["ENOVAL", "UNKNOWN", "Constant", "Disk", "JSONDisk", "StoreDisk"]
