"""A deque and a mapping that live in a cache without eviction."""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._cache import Cache
from ._disk import ENOVAL
from ._memoize import Memoized

if TYPE_CHECKING:
    from typing_extensions import Self

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Deque(Sequence[Any]):
    """A deque on disk. With `maxlen`, adding to one end of a full deque drops an item at the other
    end.

    >>> deque = plimsoll.Deque("abc", maxlen=3)
    >>> deque.append("d")
    >>> list(deque)
    ['b', 'c', 'd']
    """

    def __init__(
        self,
        iterable: Iterable[Any] = (),
        directory: str | bytes | os.PathLike[str] | None = None,
        maxlen: int | None = None,
        **options: Any,
    ) -> None:
        self._cache = Cache(directory, eviction_policy="none", **options)
        self._maxlen: float = float("inf") if maxlen is None else maxlen
        self.extend(iterable)

    @classmethod
    def fromcache(cls, cache: Cache, iterable: Iterable[Any] = (), maxlen: int | None = None) -> Self:
        """A deque in a cache, whose eviction policy should be "none".

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> deque = plimsoll.Deque.fromcache(cache, "abc")
        >>> deque.cache is cache, list(deque)
        (True, ['a', 'b', 'c'])
        """
        self = cls.__new__(cls)
        self._cache = cache
        self._maxlen = float("inf") if maxlen is None else maxlen
        self.extend(iterable)
        return self

    @property
    def cache(self) -> Cache:
        """The cache that holds the deque."""
        return self._cache

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._cache.directory

    @property
    def maxlen(self) -> float:
        """Its maximum length."""
        return self._maxlen

    @maxlen.setter
    def maxlen(self, value: float) -> None:
        self._maxlen = value
        with self.transact():
            while len(self._cache) > value:
                self.popleft()

    def __getitem__(self, index: Any) -> Any:
        return self._at(index, self._cache.__getitem__)

    def __setitem__(self, index: int, value: Any) -> None:
        self._at(index, lambda key: self._cache.__setitem__(key, value))

    def __delitem__(self, index: int) -> None:
        self._at(index, self._cache.__delitem__)

    def _at(self, index: int, act: Callable[[Any], Any]) -> Any:
        """Acts on the key at an index. Skips a key that another thread removes meanwhile."""
        length = len(self)
        if -length <= index < length:
            left = index if index >= 0 else -index - 1
            for key in self._cache.iterkeys(reverse=index < 0):
                if left > 0:
                    left -= 1
                    continue
                try:
                    return act(key)
                except KeyError:
                    continue
        raise IndexError("deque index out of range")

    def __len__(self) -> int:
        return len(self._cache)

    def __iter__(self) -> Iterator[Any]:
        return self._values(self._cache.iterkeys())

    def __reversed__(self) -> Iterator[Any]:
        return self._values(self._cache.iterkeys(reverse=True))

    def _values(self, keys: Iterable[Any]) -> Iterator[Any]:
        for key in keys:
            try:
                yield self._cache[key]
            except KeyError:
                pass

    def _compare(self, other: object, compare: Callable[[Any, Any], bool]) -> Any:
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other) and compare in (operator.eq, operator.ne):
            return compare is operator.ne
        for mine, theirs in zip(self, other):
            if mine != theirs:
                return compare(mine, theirs)
        return compare(len(self), len(other))

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne)

    def __lt__(self, other: object) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: object) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: object) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: object) -> Any:
        return self._compare(other, operator.ge)

    __hash__ = None  # type: ignore[assignment]

    def __iadd__(self, iterable: Iterable[Any]) -> Self:
        self.extend(iterable)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(directory={self.directory!r})"

    def __getstate__(self) -> tuple[Cache, float]:
        return self._cache, self._maxlen

    def __setstate__(self, state: tuple[Cache, float]) -> None:
        self._cache, self._maxlen = state

    def append(self, value: Any) -> None:
        """Appends a value at the back.

        >>> deque = plimsoll.Deque("ab")
        >>> deque.append("c")
        >>> list(deque)
        ['a', 'b', 'c']
        """
        with self.transact():
            self._cache.push(value, retry=True)
            if len(self._cache) > self._maxlen:
                self.popleft()

    def appendleft(self, value: Any) -> None:
        """Appends a value at the front.

        >>> deque = plimsoll.Deque("bc")
        >>> deque.appendleft("a")
        >>> list(deque)
        ['a', 'b', 'c']
        """
        with self.transact():
            self._cache.push(value, side="front", retry=True)
            if len(self._cache) > self._maxlen:
                self.pop()

    def extend(self, iterable: Iterable[Any]) -> None:
        """Appends values at the back in order.

        >>> deque = plimsoll.Deque("a")
        >>> deque.extend("bc")
        >>> list(deque)
        ['a', 'b', 'c']
        """
        for value in iterable:
            self.append(value)

    def extendleft(self, iterable: Iterable[Any]) -> None:
        """Appends values at the front in order.

        >>> deque = plimsoll.Deque("a")
        >>> deque.extendleft("bc")
        >>> list(deque)
        ['c', 'b', 'a']
        """
        for value in iterable:
            self.appendleft(value)

    def peek(self) -> Any:
        """The value at the back.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.peek(), len(deque)
        ('c', 3)
        """
        return self._found(self._cache.peek(default=(None, ENOVAL), side="back", retry=True))

    def peekleft(self) -> Any:
        """The value at the front.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.peekleft(), len(deque)
        ('a', 3)
        """
        return self._found(self._cache.peek(default=(None, ENOVAL), retry=True))

    def pop(self) -> Any:
        """Removes and returns the value at the back.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.pop(), list(deque)
        ('c', ['a', 'b'])
        """
        return self._found(self._cache.pull(default=(None, ENOVAL), side="back", retry=True))

    def popleft(self) -> Any:
        """Removes and returns the value at the front.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.popleft(), list(deque)
        ('a', ['b', 'c'])
        """
        return self._found(self._cache.pull(default=(None, ENOVAL), retry=True))

    def _found(self, item: tuple[Any, Any]) -> Any:
        if item[1] is ENOVAL:
            raise IndexError("the deque is empty")
        return item[1]

    def clear(self) -> None:
        """Removes all values.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.clear()
        >>> len(deque)
        0
        """
        self._cache.clear(retry=True)

    def copy(self) -> Deque:
        """Another object for the same deque, as in diskcache: both use one cache.

        >>> deque = plimsoll.Deque("ab")
        >>> same = deque.copy()
        >>> same.append("c")
        >>> list(deque)
        ['a', 'b', 'c']
        """
        return type(self).fromcache(self._cache, maxlen=None if self._maxlen == float("inf") else int(self._maxlen))

    def count(self, value: Any) -> int:
        """The number of occurrences of a value.

        >>> plimsoll.Deque("banana").count("a")
        3
        """
        return sum(1 for item in self if item == value)

    def remove(self, value: Any) -> None:
        """Removes the first occurrence of a value.

        >>> deque = plimsoll.Deque("banana")
        >>> deque.remove("a")
        >>> "".join(deque)
        'bnana'
        """
        for key in self._cache.iterkeys():
            try:
                if self._cache[key] == value:
                    del self._cache[key]
                    return
            except KeyError:
                continue
        raise ValueError(f"{value!r} is not in the deque")

    def reverse(self) -> None:
        """Reverses the order in one commit.

        >>> deque = plimsoll.Deque("abc")
        >>> deque.reverse()
        >>> list(deque)
        ['c', 'b', 'a']
        """
        with self.transact():
            values = list(reversed(self))
            self.clear()
            self.extend(values)

    def rotate(self, steps: int = 1) -> None:
        """Moves values from the back to the front, or with negative `steps` in the other direction,
        in one commit.

        >>> deque = plimsoll.Deque("abcd")
        >>> deque.rotate()
        >>> list(deque)
        ['d', 'a', 'b', 'c']
        """
        if not isinstance(steps, int):
            raise TypeError(f"rotate takes an integer, not a {type(steps).__name__}")
        take, put = (self.pop, self.appendleft) if steps >= 0 else (self.popleft, self.append)
        with self.transact(), suppress(IndexError):
            for _ in range(abs(steps) % max(1, len(self))):
                put(take())

    def transact(self) -> AbstractContextManager[None]:
        """Makes the operations inside it one commit.

        >>> deque = plimsoll.Deque("ab")
        >>> with deque.transact():
        ...     deque.append(deque.popleft())
        >>> list(deque)
        ['b', 'a']
        """
        return self._cache.transact(retry=True)


class Index(MutableMapping[Any, Any]):
    """An ordered mapping on disk.

    >>> index = plimsoll.Index({"a": 1, "b": 2})
    >>> index.popitem()
    ('b', 2)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        directory = None
        if args and (args[0] is None or isinstance(args[0], (str, bytes, os.PathLike))):
            directory, args = args[0], args[1:]
        self._cache = Cache(directory, eviction_policy="none")
        self.update(*args, **kwargs)

    @classmethod
    def fromcache(cls, cache: Cache, *args: Any, **kwargs: Any) -> Self:
        """A mapping in a cache, whose eviction policy should be "none".

        >>> cache = plimsoll.Cache(eviction_policy="none")
        >>> index = plimsoll.Index.fromcache(cache, {"a": 1})
        >>> index.cache is cache, dict(index)
        (True, {'a': 1})
        """
        self = cls.__new__(cls)
        self._cache = cache
        self.update(*args, **kwargs)
        return self

    @property
    def cache(self) -> Cache:
        """The cache that holds the mapping."""
        return self._cache

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._cache.directory

    def __getitem__(self, key: Any) -> Any:
        return self._cache[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cache[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._cache[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cache)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._cache)

    def __len__(self) -> int:
        return len(self._cache)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping) or len(self) != len(other):
            return False
        if isinstance(other, (Index, OrderedDict)):
            return list(self.items()) == list(other.items())
        return all(other.get(key, ENOVAL) == value for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"

    def __getstate__(self) -> Cache:
        return self._cache

    def __setstate__(self, state: Cache) -> None:
        self._cache = state

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key, set to `default` if it was missing.

        >>> index = plimsoll.Index({"a": 1})
        >>> index.setdefault("a", 0), index.setdefault("b", 0)
        (1, 0)
        """
        with self.transact():
            self._cache.add(key, default, retry=True)
            return self._cache[key]

    def pop(self, key: Any, default: Any = ENOVAL) -> Any:
        """Removes and returns a value; without a `default`, a missing key is a `KeyError`.

        >>> index = plimsoll.Index({"a": 1})
        >>> index.pop("a"), index.pop("a", default=0)
        (1, 0)
        """
        value = self._cache.pop(key, default, retry=True)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def peekitem(self, last: bool = True) -> tuple[Any, Any]:
        """The item that was inserted last, or first.

        >>> index = plimsoll.Index({"b": 1, "a": 2})
        >>> index.peekitem(), index.peekitem(last=False)
        (('a', 2), ('b', 1))
        """
        item: tuple[Any, Any] = self._cache.peekitem(last, retry=True)
        return item

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """Removes and returns the item that was inserted last, or first.

        >>> index = plimsoll.Index({"b": 1, "a": 2})
        >>> index.popitem(last=False), dict(index)
        (('b', 1), {'a': 2})
        """
        with self.transact():
            key, value = self.peekitem(last)
            del self._cache[key]
            return key, value

    def push(self, value: Any, prefix: str | None = None, side: str = "back") -> Any:
        """`Cache.push`.

        >>> index = plimsoll.Index()
        >>> index.push("wash"), index.push("dry", prefix="jobs")
        (500000000000000, 'jobs-500000000000000')
        """
        return self._cache.push(value, prefix, side, retry=True)

    def pull(self, prefix: str | None = None, default: Any = (None, None), side: str = "front") -> Any:
        """`Cache.pull`.

        >>> index = plimsoll.Index()
        >>> key = index.push("wash")
        >>> index.pull(), index.pull()
        ((500000000000000, 'wash'), (None, None))
        """
        return self._cache.pull(prefix, default, side, retry=True)

    def clear(self) -> None:
        """Removes all items.

        >>> index = plimsoll.Index({"a": 1})
        >>> index.clear()
        >>> len(index)
        0
        """
        self._cache.clear(retry=True)

    def memoize(
        self, name: str | None = None, typed: bool = False, ignore: Iterable[int | str] = ()
    ) -> Callable[[Callable[_P, _T]], Memoized[_P, _T]]:
        """`Cache.memoize`.

        >>> index = plimsoll.Index()
        >>> @index.memoize()
        ... def square(number):
        ...     return number * number
        >>> square(4), len(index)
        (16, 1)
        """
        return self._cache.memoize(name, typed, ignore=ignore)

    def transact(self) -> AbstractContextManager[None]:
        """Makes the operations inside it one commit.

        >>> index = plimsoll.Index({"from": 10, "to": 0})
        >>> with index.transact():
        ...     index["from"] -= 3
        ...     index["to"] += 3
        >>> dict(index)
        {'from': 7, 'to': 3}
        """
        return self._cache.transact(retry=True)
