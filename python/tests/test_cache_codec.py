"""Keys and values of a cache are returned as they were stored."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections import OrderedDict, namedtuple
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plimsoll
from plimsoll import Cache, Deque, Index
from plimsoll.cache._codec import Serializer

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.decimals(allow_nan=False)
) | st.dates() | st.timedeltas() | st.uuids()
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(HASHABLE, inner, max_size=4),
    max_leaves=12,
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


def typed(value: Any) -> Any:
    """Pairs a value with the types of all its parts."""
    if isinstance(value, dict):
        return dict, sorted(((repr(typed(key)), typed(item)) for key, item in value.items()), key=lambda pair: pair[0])
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(typed(item)) for item in value)
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("name", ["json", "msgpack", "pickle"])
@given(value=VALUES)
def test_values_round_trip_with_their_types(name: str, value: Any) -> None:
    serializer = Serializer(name)
    assert typed(serializer.load(serializer.dump(value))) == typed(value)


@given(key=HASHABLE)
def test_keys_round_trip(key: Any) -> None:
    serializer = Serializer()
    assert serializer.load_key(serializer.dump_key(key)) == key


@given(first=NUMBERS, second=NUMBERS)
def test_numbers_are_ordered_and_equal_as_in_python(first: float, second: float) -> None:
    dump = Serializer().dump_key
    if all(abs(number) < 2**63 or number != number // 1 for number in (first, second)) and abs(first) != float("inf") != abs(second):
        assert (dump(first) < dump(second)) == (first < second)
        assert (dump(first) == dump(second)) == (first == second)


def test_types_that_json_lacks_round_trip() -> None:
    serializer = Serializer()
    value = {
        1: datetime(2026, 1, 2, tzinfo=timezone.utc),
        (2, 3): [date(2026, 1, 2), Decimal("1.50"), UUID(int=7), {"\0": "tag"}, {1, 2}],
        "plain": float("inf"),
    }
    assert serializer.load(serializer.dump(value)) == value


NOON = datetime(2026, 3, 28, 12, 0, 0, 7)
BERLIN = ZoneInfo("Europe/Berlin")
MOMENTS = [
    NOON,
    NOON.replace(fold=1),
    NOON.replace(tzinfo=timezone.utc),
    NOON.replace(tzinfo=timezone(timedelta(hours=-3, minutes=-30, seconds=-7)), fold=1),
    NOON.replace(tzinfo=timezone(timedelta(hours=1), "CET")),
    NOON.replace(tzinfo=timezone(timedelta(0), "Z")),
    NOON.replace(tzinfo=BERLIN),
    NOON.replace(tzinfo=ZoneInfo("UTC")),
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
]


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_datetime_round_trips_with_its_zone_and_fold(name: str, moment: datetime) -> None:
    serializer = Serializer(name)
    read = serializer.load(serializer.dump(moment))
    assert (read.replace(tzinfo=None), read.fold, type(read.tzinfo)) == (moment.replace(tzinfo=None), moment.fold, type(moment.tzinfo))
    assert (read.tzinfo, read.tzname(), read.utcoffset()) == (moment.tzinfo, moment.tzname(), moment.utcoffset())
    # A key keeps only the offset, so equal datetimes are one key.
    assert serializer.load_key(serializer.dump_key(moment)).isoformat() == moment.isoformat()


def test_a_datetime_that_an_older_version_wrote_is_read() -> None:
    def load(text: str) -> Any:
        return Serializer().load(b'\x05{"\\u0000":"datetime","v":"%s"}' % text.encode())

    assert load("2026-03-28T12:00:00.000007") == NOON
    assert load("2026-03-28T12:00:00.000007+01:00") == NOON.replace(tzinfo=timezone(timedelta(hours=1)))


class Nameless(tzinfo):
    """A zone that only this program defines."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)


def test_a_datetime_of_a_zone_that_has_no_name_is_refused() -> None:
    file = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 3600, 0, 0) + b"CET\0"
    for zone in (Nameless(), ZoneInfo.from_file(io.BytesIO(file))):
        with pytest.raises(TypeError, match=r"a datetime with a tzinfo of type .* use a zoneinfo\.ZoneInfo"):
            Serializer().dump(NOON.replace(tzinfo=zone))


@pytest.mark.parametrize("zone", ["Nowhere/At all", "Europe", "../zone"])
def test_an_unknown_time_zone_is_an_error_and_not_a_missing_key(zone: str) -> None:
    text = f'{{"\\u0000":"datetime","v":{{"at":"2026-03-28T12:00:00","fold":0,"zone":"{zone}"}}}}'
    with pytest.raises(ValueError, match=r"unknown on this machine|relative|TZPATH"):
        Serializer().load(b"\x05" + text.encode())


class Text(str):
    """A subclass of `str`."""


Point = namedtuple("Point", "x y")
Level = IntEnum("Level", "LOW HIGH")
Colour = Enum("Colour", "RED")


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Text("a"), r"come back as str, so store str\(value\)"),
        (Point(1, 2), r"come back as tuple, so store tuple\(value\)"),
        (OrderedDict(a=1), r"come back as dict, so store dict\(value\)"),
        (Level.LOW, "store its value or its name"),
        (Colour.RED, "store its value or its name"),
        (object(), "store a dictionary or bytes"),
    ],
)
def test_a_value_that_would_change_its_type_is_refused_with_advice(name: str, value: Any, advice: str) -> None:
    for refused in (value, [value], {"key": value}):
        with pytest.raises(TypeError, match=advice):
            Serializer(name).dump(refused)


def test_an_unknown_tag_is_an_error_and_not_a_missing_key() -> None:
    with pytest.raises(ValueError, match="newer version"):
        Serializer().load(b'\x05{"\\u0000":"colour","v":"red"}')


PAIR = "\ud83d\ude00"
"""Two lone surrogates; escaped in JSON, they are read as one character."""


@pytest.mark.parametrize("name", ["json", "msgpack", "pickle"])
@pytest.mark.parametrize(
    "value", ["a\ud800", PAIR, [PAIR, "\ude00\ud83d"], {PAIR: {"key": (PAIR,)}}, (1, PAIR), {1: PAIR}, [frozenset({PAIR, "\U0001f600"})]]
)
def test_text_with_lone_surrogates_is_kept(name: str, value: Any) -> None:
    serializer = Serializer(name)
    assert serializer.load(serializer.dump(value)) == value
    assert serializer.load_key(serializer.dump_key(value)) == value


def test_keys_that_are_not_equal_are_two_keys() -> None:
    dump = Serializer().dump_key
    assert dump((PAIR,)) != dump(("\U0001f600",))
    # The order of a set differs between processes.
    first, second = frozenset([PAIR, "\U0001f600"]), frozenset(["\U0001f600", PAIR])
    assert dump(first) == dump(second)


def test_json_that_was_written_with_escapes_is_read() -> None:
    assert Serializer().load(b'\x04["\\u00e9","\\ud83d\\ude00"]') == ["\xe9", "\U0001f600"]


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_equal_datetimes_are_one_key_also_in_the_older_encoding(tmp_path: Path, serializer: str) -> None:
    summer = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    with plimsoll.Cache(tmp_path, serializer=serializer, memory="16MiB") as cache:
        codec = cache._handle.serializer
        for key in (summer, (1, summer), datetime(2026, 10, 25, 2, 30, fold=1), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "X"))):
            plain = datetime.fromisoformat(key.isoformat()) if isinstance(key, datetime) else (1, datetime.fromisoformat(summer.isoformat()))
            assert codec.dump_key(key) == codec.dump_key(plain)
            cache[key] = 1
            assert cache[plain] == 1
        cache.set("a", 1, tag=summer)
        assert cache.evict(datetime.fromisoformat(summer.isoformat())) == 1


EQUAL = [
    (("".join(["us", "er"]), "user"), ("user", "user")),
    ((b"".join([b"k"]), (b"k", 1.5)), (b"k", (b"k", 1.5))),
    (frozenset(range(0, 4000, 7)), frozenset(reversed(range(0, 4000, 7)))),
    (frozenset([8, 0]), frozenset([0, 8])),
    (("a", frozenset(["x", ("y", frozenset([8, 16, 0]))])), ("a", frozenset([("y", frozenset([0, 16, 8])), "x"]))),
    ([{"a": 1, "b": {"c": [], "d": 2}}], [{"b": {"d": 2, "c": []}, "a": 1}]),
    ({1: "x", "a": (1, {"p": 1, "q": 2})}, {"a": (1, {"q": 2, "p": 1}), 1: "x"}),
    ((datetime(2026, 10, 25, 2, 30, fold=1), 1), (datetime(2026, 10, 25, 2, 30), 1)),
]


@pytest.mark.parametrize("disk", [plimsoll.StoreDisk, plimsoll.Disk])
@pytest.mark.parametrize("serializer", ["json", "msgpack", "pickle"])
def test_keys_that_are_equal_are_one_key(tmp_path: Path, serializer: str, disk: type[plimsoll.Disk]) -> None:
    with plimsoll.Cache(tmp_path, serializer=serializer, memory="16MiB", disk=disk) as cache:
        for number, (first, second) in enumerate(EQUAL):
            assert first == second
            cache[first] = number
            assert cache[second] == number and second in cache
            cache[second] = -number
            assert cache[first] == -number
        assert len(cache) == len(EQUAL) and list(cache) == [first for first, _ in EQUAL]


class Point:
    """An object that only pickle keeps."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None  # type: ignore[assignment]


def test_an_object_is_found_by_an_equal_one_and_may_contain_itself(tmp_path: Path) -> None:
    with plimsoll.Cache(tmp_path, serializer="pickle", memory="16MiB") as cache:
        text = "text"
        cache[Point({8, 0}, [text, text])] = 1
        assert cache[Point({0, 8}, [text, "".join(["te", "xt"])])] == 1
        assert list(cache) == [Point({0, 8}, ["text", "text"])]
        ring: list[Any] = []
        ring.append(ring)
        cache[Point(ring, 1)] = 2
        assert cache[Point(ring, 1)] == 2


@pytest.mark.parametrize("serializer", ["json", "msgpack", "pickle"])
def test_an_integer_of_any_size_is_a_value_and_a_key(tmp_path: Path, serializer: str) -> None:
    with plimsoll.Cache(tmp_path, serializer=serializer, memory="16MiB") as cache:
        for number in (2**63, -(2**64), 2**8192 - 1, 2**8192, -(2**8192), 10**5000, -(10**50_000)):
            for value in (number, [number, {"a": number}], (number, {number: frozenset([number])})):
                cache["value"] = value
                # pytest would show them in decimal.
                assert cache["value"] == value or not "equal"
            for key in (number, ("a", number)):
                cache[key] = "found"
                assert cache.get(key) == "found" and any(found == key for found in cache) or not "found"
        cache.set("tagged", 1, tag=10**5000)
        assert cache.evict(10**5000) == 1
        assert cache.incr("sum", 10**5000) == 10**5000 or not "equal"


def test_a_pickled_value_is_read_only_with_serializer_pickle(tmp_path: Path) -> None:
    with Cache(tmp_path, serializer="pickle", memory="16MiB") as cache:
        cache["key"] = ValueError
        assert cache["key"] is ValueError
        cache[ValueError] = 1
    with Cache(tmp_path, memory="16MiB") as cache:
        with pytest.raises(ValueError, match="pickle"):
            cache["key"]
        with pytest.raises(ValueError, match="pickle"):
            list(cache)


@pytest.mark.parametrize("disk", [plimsoll.Disk, plimsoll.StoreDisk])
def test_a_pickled_value_that_is_refused_is_not_removed(tmp_path: Path, disk: type[plimsoll.Disk]) -> None:
    stored = [ValueError, "x" * 100_000]
    with Cache(tmp_path, disk=disk, serializer="pickle", eviction_policy="none", memory="16MiB") as cache:
        assert cache.push(stored) is not None
    with Cache(tmp_path, disk=disk, memory="16MiB") as cache:
        (key,) = cache
        deque, index = Deque.fromcache(cache), Index.fromcache(cache)
        takes = [lambda: cache.pop(key), cache.pull, cache.peek, cache.peekitem, deque.pop, deque.popleft]
        for take in [*takes, lambda: index.pop(key), index.popitem, index.pull, lambda: cache.incr(key)]:
            with pytest.raises(ValueError, match="pickle"):
                take()
            with cache.transact(), pytest.raises(ValueError, match="pickle"):
                take()
        assert list(cache) == [key] and cache.check() == []
    with Cache(tmp_path, disk=disk, serializer="pickle", memory="16MiB") as cache:
        assert cache.pull() == (key, stored)
        assert len(cache) == 0


def test_types_that_json_lacks_are_refused_with_a_reason(cache: Cache) -> None:
    with pytest.raises(TypeError, match='serializer="pickle"'):
        cache["key"] = object()
    with pytest.raises(TypeError, match='serializer="pickle"'):
        cache[object()] = 1
    assert len(cache) == 0
    with pytest.raises(ValueError, match="serializer"):
        Cache(cache.directory, serializer="yaml")
    with pytest.raises(TypeError, match="colour"):
        Cache(cache.directory, colour=1)


def test_a_set_as_a_key_is_the_same_key_in_every_process(tmp_path: Path) -> None:
    program = "import sys, plimsoll; plimsoll.Cache(sys.argv[1], memory='16MiB').incr((frozenset(map(str, range(9))), 1))"
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)
    with Cache(tmp_path, memory="16MiB") as cache:
        assert len(cache) == 1 and cache[frozenset(map(str, range(9))), 1] == 3
