"""Caches results of functions under a key built from the call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from ._disk import ENOVAL

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Memoized(Protocol[_P, _T_co]):
    """A function with cached results: called like the function itself, also as a method."""

    @property
    def __cache_key__(self) -> Callable[_P, tuple[Any, ...]]:
        """Builds the key for the arguments of a call."""

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T_co: ...

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None, /) -> Memoized[_P, _T_co]: ...

    @overload
    def __get__(
        self: Memoized[Concatenate[Any, _Q], _T], instance: object, owner: type[Any] | None = None, /
    ) -> Callable[_Q, _T]: ...


class Store(Protocol):
    """The cache operations that `memoize` uses."""

    def get(self, key: Any, default: Any, *, retry: bool) -> Any: ...

    def set(self, key: Any, value: Any, expire: float | None, *, tag: Any, retry: bool) -> Any: ...


def memoize(
    cache: Store,
    name: str | None,
    typed: bool,
    expire: float | None,
    tag: Any,
    ignore: Iterable[int | str],
) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
    """`Cache.memoize` for any object with `get` and `set`. For an `async` function, it caches the
    awaited results."""
    if callable(name):
        raise TypeError("memoize takes the name of the function, not the function: write @cache.memoize()")
    ignored = frozenset(ignore)

    def decorate(function: Callable[_P, _T]) -> Memoized[_P, _T]:
        refuse_generators(function)
        base = full_name(function) if name is None else name

        def keep(key: Any, result: Any) -> None:
            if expire is None or expire > 0:
                cache.set(key, result, expire, tag=tag, retry=True)

        def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            """The key for these arguments."""
            return args_to_key((base,), args, kwargs, typed, ignored)

        @functools.wraps(function)
        def remembered(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            key = cache_key(*args, **kwargs)
            result = cache.get(key, ENOVAL, retry=True)
            if result is ENOVAL:
                result = function(*args, **kwargs)
                keep(key, result)
            return result

        @functools.wraps(function)
        async def remembered_async(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            key = cache_key(*args, **kwargs)
            result = cache.get(key, ENOVAL, retry=True)
            if result is ENOVAL:
                result = await cast(Any, function(*args, **kwargs))
                keep(key, result)
            return result

        return as_memoized(remembered_async if is_async(function) else remembered, cache_key)

    return decorate


def as_memoized(function: Callable[_P, Any], cache_key: Callable[..., tuple[Any, ...]]) -> Memoized[_P, Any]:
    """A function with its key builder."""
    function.__cache_key__ = cache_key  # type: ignore[attr-defined]
    return cast("Memoized[_P, Any]", function)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether its calls are awaited."""
    # Imported here, because the import takes longer than the rest of the package.
    import inspect

    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None))


def refuse_generators(function: Callable[..., Any]) -> None:
    """Raises `TypeError` for a function that returns generators, which cannot be cached."""
    import inspect

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"memoize cannot cache generators, which {full_name(function)} returns; let it return a list"
        )


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
