"""`FanoutCache` under the module name that programs and pickles use."""

from .cache import FanoutCache

__all__ = ["FanoutCache"]
