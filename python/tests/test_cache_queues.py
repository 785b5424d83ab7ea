"""Queues of a cache return whole values in order, and never overwrite or take its other keys."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plimsoll
from plimsoll import Cache, Deque
from plimsoll.cache._queues import foreign_rank

SIDES = ["front", "back"]


@pytest.mark.parametrize(("side", "edge", "beyond"), [("front", 1, 0), ("back", 999_999_999_999_998, 999_999_999_999_999)])
def test_a_push_where_the_numbers_end_is_refused(cache: Cache, side: str, edge: int, beyond: int) -> None:
    cache[beyond] = "of the program"
    cache[edge] = "at the edge"
    for _ in range(2):
        with pytest.raises(OverflowError, match=str(edge)):
            cache.push("new", side=side)
    assert cache[beyond] == "of the program" and len(cache) == 2
    other = "back" if side == "front" else "front"
    key = cache.push("new", side=other)
    assert key == (edge + 1 if other == "back" else edge - 1)
    assert cache.pull(side=other) == (key, "new")


@pytest.mark.parametrize("side", SIDES)
def test_non_integer_keys_are_not_part_of_a_queue(cache: Cache, side: str) -> None:
    others = [0.5, 1.5, 2.5, 7e14 + 0.5, 999_999_999_999_997.5]
    for key in others:
        cache[key] = "of the program"
    pushed = [cache.push(number, side=side) for number in range(3)]
    assert all(type(key) is int for key in pushed)
    assert cache.peek(side=side) == (pushed[-1], 2)
    assert [cache.pull(side=side)[1] for _ in range(4)] == [2, 1, 0, None]
    assert list(cache) == others


@pytest.mark.parametrize("side", SIDES)
def test_a_queue_does_not_take_from_one_whose_prefix_begins_with_its_own(cache: Cache, side: str) -> None:
    prefixes = ["job", "job-7", "job-7-5", "job-5000", "job-", "job-x", "job-/", "job-0"]
    for number in range(3):
        for prefix in prefixes:
            cache.push((prefix, number), prefix=prefix, side=side)
    assert len(cache) == 3 * len(prefixes)
    for number in reversed(range(3)):
        for prefix in prefixes:
            key, value = cache.peek(prefix=prefix, side=side)
            assert value == (prefix, number)
            assert cache.pull(prefix=prefix, side=side) == (key, value)
    assert cache.pull(prefix="job") == (None, None) and len(cache) == 0


@pytest.mark.parametrize("side", SIDES)
def test_keys_that_only_look_like_those_of_a_queue_stay(cache: Cache, side: str) -> None:
    others = ["p-7", "p-7x", "p-", "p-0000000000000001", "p-٣00000000000000", "p-99999999999999", "p-5-6", "p-500000000000000x"]
    for key in others:
        cache[key] = "of the program"
    keys = [cache.push(number, prefix="p", side=side) for number in range(4)]
    assert sorted(keys) == (keys if side == "back" else keys[::-1])
    assert [cache.pull(prefix="p", side=side)[1] for _ in range(5)] == [3, 2, 1, 0, None]
    assert list(cache) == others


@given(st.text("-/059:x", max_size=17), st.integers(0, 10**15 - 1))
def test_the_rank_of_a_foreign_key_is_where_it_is_sorted(tail: str, number: int) -> None:
    text = f"{number:015d}"
    if len(tail) != 15 or not set(tail) <= set("0123456789"):
        assert (text < tail) == (number <= foreign_rank(tail))


def test_a_deque_loses_nothing_when_a_rotation_is_killed(tmp_path: Path) -> None:
    program = """
import sys, plimsoll
deque = plimsoll.Deque((), sys.argv[1], memory="16MiB")
pull = plimsoll.Cache.pull
def stop(self, *args, **kwargs):
    taken = pull(self, *args, **kwargs)
    self.left -= 1
    if not self.left:
        import os
        os._exit(3)
    return taken
plimsoll.Cache.pull = stop
deque.cache.left = 2
deque.rotate(3)
"""
    deque = Deque(range(6), tmp_path / "deque", memory="16MiB")
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "deque")], check=False)
    assert ended.returncode == 3
    assert list(deque) == list(range(6))
    deque.rotate(2)
    assert list(deque) == [4, 5, 0, 1, 2, 3]
    deque.rotate(-3)
    assert list(deque) == [1, 2, 3, 4, 5, 0]
    deque.cache.close()


def test_a_push_of_a_value_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=10_000, memory="16MiB") as cache:
        first = cache.push("small")
        with cache.transact():
            with pytest.raises(ValueError, match="size_limit"):
                cache.push(bytes(20_000))
            assert cache.push("next") == first + 1
        with pytest.raises(ValueError, match="size_limit"):
            cache.push(bytes(20_000), side="front")
        assert [cache.pull()[1] for _ in range(3)] == ["small", "next", None]
        assert cache.check() == []


def test_a_queue_returns_values_in_order(cache: Cache) -> None:
    for number in range(3):
        cache.push(number, prefix="jobs")
        cache.push(-number, side="front")
    assert [cache.pull(prefix="jobs")[1] for _ in range(3)] == [0, 1, 2]
    assert [cache.pull()[1] for _ in range(3)] == [-2, -1, 0]
    assert cache.pull() == (None, None)


@pytest.mark.parametrize("disk", [plimsoll.Disk, plimsoll.StoreDisk])
@pytest.mark.parametrize("size", [0, 1, 64 << 10, 6 << 20])
def test_a_file_of_any_size_is_pushed_whole(tmp_path: Path, disk: type[plimsoll.Disk], size: int) -> None:
    with Cache(tmp_path / "cache", disk=disk, memory="16MiB") as cache:
        value = os.urandom(size)
        assert cache.push(io.BytesIO(value), read=True) and cache.set("key", io.BytesIO(value), read=True)
        assert cache.pull()[1] == value == cache["key"]
        assert cache.check() == []
