"""Results of functions in a cache: computed once, and recomputed before they expire."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import plimsoll
from plimsoll import Cache
from plimsoll.cache import recipes


def test_a_function_is_computed_once(cache: Cache) -> None:
    calls = []

    @cache.memoize(typed=True, ignore={"log"})
    def double(number: float, log: object = None) -> float:
        calls.append(number)
        return number * 2

    assert [double(2), double(2, log=object()), double(2.0), double(2)] == [4, 4, 4.0, 4]
    assert calls == [2, 2.0]
    assert cache.get(double.__cache_key__(2)) == 4

    class Shop:
        @cache.memoize(ignore={0})
        def price(self, number: int, *, with_tax: bool = False) -> int:
            calls.append(number)
            return number * 3

    assert [Shop().price(7), Shop().price(7), Shop().price(7, with_tax=True)] == [21] * 3 and calls[2:] == [7, 7]


@pytest.mark.parametrize("fanout", [False, True])
def test_an_async_function_is_awaited_once_and_uncacheable_functions_are_refused(tmp_path: Path, fanout: bool) -> None:
    import asyncio

    calls = []
    with plimsoll.FanoutCache(tmp_path, memory="16MiB") if fanout else Cache(tmp_path, memory="16MiB") as cache:

        @cache.memoize(expire=60)
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            calls.append(number)
            return number * 2

        async def twice() -> list[int]:
            return [await double(2), await double(2), await double(3)]

        assert asyncio.run(twice()) == [4, 4, 6] and calls == [2, 3]
        assert cache.get(double.__cache_key__(2)) == 4

        async def fail() -> None:
            raise KeyError("none")

        with pytest.raises(KeyError, match="none"):
            asyncio.run(cache.memoize()(fail)())

        def numbers() -> Iterator[int]:
            yield 1

        async def numbers_later() -> AsyncIterator[int]:
            yield 1

        for generator in (numbers, numbers_later):
            for decorate in (cache.memoize(), plimsoll.memoize_stampede(cache, 60)):
                with pytest.raises(TypeError, match="list"):
                    decorate(generator)
        with pytest.raises(TypeError, match="Cache.memoize"):
            plimsoll.memoize_stampede(cache, 60)(fail)


def test_a_result_is_recomputed_once_before_it_expires(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    go_on = threading.Event()
    late, chance = 0, 0.0

    @plimsoll.memoize_stampede(cache, expire=1_000)
    def slow() -> int:
        nonlocal late
        calls.append(threading.get_ident())
        if len(calls) == 2:
            go_on.wait(100)
        # Each computation takes 100 seconds.
        late += 100
        return len(calls)

    monkeypatch.setattr(recipes, "time", SimpleNamespace(time=lambda: time.time() + late))
    monkeypatch.setattr(recipes, "random", SimpleNamespace(random=lambda: chance))
    try:
        assert [slow() for _ in range(3)] == [1, 1, 1] and len(calls) == 1, "there is time until it expires"
        # 100 seconds times the logarithm is 2,000 seconds before expiry.
        chance = 1 - 2e-9
        assert [slow() for _ in range(20)] == [1] * 20, "nobody waits for what is computed ahead"
    finally:
        go_on.set()
    chance = 0.0
    while slow() == 1:
        time.sleep(0.001)
    here = threading.get_ident()
    assert len(calls) == 2 and calls[1] != here, "only one of them computes, in another thread"
    cache.expire(time.time() + 10_000)
    assert slow() == 3 and calls[2] == here
