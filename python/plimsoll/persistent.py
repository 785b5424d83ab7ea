"""`Deque` and `Index` under the module name that programs and pickles use."""

from .cache import Deque, Index

__all__ = ["Deque", "Index"]
