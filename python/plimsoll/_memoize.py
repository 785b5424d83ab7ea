"""Results of functions, kept in a cache by a key that is made of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from .disk import ENOVAL


def memoize(
    cache: Any,
    name: str | None,
    typed: bool,
    expire: float | None,
    tag: Any,
    ignore: Iterable[int | str],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`Cache.memoize` for everything with `get` and `set`."""
    if callable(name):
        raise TypeError("memoize takes the name of the function, not the function: write @cache.memoize()")
    ignored = frozenset(ignore)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        base = full_name(function) if name is None else name

        @functools.wraps(function)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            key = args_to_key((base,), args, kwargs, typed, ignored)
            result = cache.get(key, ENOVAL, retry=True)
            if result is ENOVAL:
                result = function(*args, **kwargs)
                if expire is None or expire > 0:
                    cache.set(key, result, expire, tag=tag, retry=True)
            return result

        def cache_key(*args: Any, **kwargs: Any) -> Any:
            """The key for these arguments."""
            return args_to_key((base,), args, kwargs, typed, ignored)

        remembered.__cache_key__ = cache_key  # type: ignore[attr-defined]
        return remembered

    return decorate


def args_to_key(
    base: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool, ignore: frozenset[int | str]
) -> tuple[Any, ...]:
    """The key of a call."""
    positional = tuple(arg for index, arg in enumerate(args) if index not in ignore)
    named = tuple(sorted((name, arg) for name, arg in kwargs.items() if name not in ignore))
    key = (*base, positional, named)
    if typed:
        key += (tuple(full_name(type(arg)) for arg in positional), tuple(full_name(type(arg)) for _, arg in named))
    return key


def full_name(thing: Any) -> str:
    """Module and name of a function or class."""
    return f"{thing.__module__}.{thing.__qualname__}"
