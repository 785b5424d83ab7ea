"""`with` blocks around generators, like `contextlib.contextmanager`. A signal handler cannot leave
one entered; see `_native.Block`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

from ._native import Block

_P = ParamSpec("_P")
_T = TypeVar("_T")


def block(steps: Callable[_P, Iterator[_T]]) -> Callable[_P, AbstractContextManager[_T]]:
    """Makes a function that returns a `with` block of a generator function, which yields once."""

    @wraps(steps)
    def enter(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T]:
        return Block(steps(*args, **kwargs))

    return enter
