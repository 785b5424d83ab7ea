"""`with` blocks around generators, like `contextlib.contextmanager`. If a signal handler raises,
the block is still exited; see `_native.Block`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

from ._native import Block

_P = ParamSpec("_P")
_T = TypeVar("_T")


def block(steps: Callable[_P, Iterator[_T]]) -> Callable[_P, AbstractContextManager[_T]]:
    """Converts a generator function that yields once into a function that returns a `with`
    block."""

    @wraps(steps)
    def enter(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T]:
        return Block(steps(*args, **kwargs))

    return enter
