"""Stores, keyspaces, snapshots and transactions as mappings."""

from __future__ import annotations

import array
from collections.abc import Mapping, MutableMapping
from typing import Any

import pytest

import plimsoll


def test_a_store_is_a_mutable_mapping_and_a_snapshot_a_mapping(db: plimsoll.Db) -> None:
    assert isinstance(db, MutableMapping)
    assert isinstance(db.keyspace("k"), MutableMapping)
    snapshot = db.snapshot()
    assert isinstance(snapshot, Mapping) and not isinstance(snapshot, MutableMapping)
    with pytest.raises(TypeError):
        snapshot[b"a"] = b"1"  # type: ignore[index]


def test_it_behaves_as_a_sorted_dict(db: plimsoll.Db) -> None:
    assert not db and len(db) == 0 and db.first() is None
    db.update({b"b": b"2", b"a": b"1", b"c": b"3"})
    assert db and list(db) == [b"a", b"b", b"c"] and dict(db) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert list(reversed(db)) == [b"c", b"b", b"a"]
    assert list(db.values()) == [b"1", b"2", b"3"]
    assert (db.first(), db.last()) == ((b"a", b"1"), (b"c", b"3"))
    assert db.setdefault(b"a", b"x") == b"1" and db.setdefault(b"d", b"4") == b"4"
    assert db.pop(b"d") == b"4" and db.pop(b"d", None) is None
    with pytest.raises(KeyError):
        db.pop(b"d")
    with pytest.raises(KeyError):
        del db[b"d"]
    with pytest.raises(KeyError, match="d"):
        db[b"d"]
    del db[b"a"]
    assert db.popitem() == (b"b", b"2")
    db.clear()
    with pytest.raises(KeyError):
        db.popitem()


def test_walks_take_starts_stops_prefixes_limits_and_directions(db: plimsoll.Db) -> None:
    rows = {b"%c/%d" % (letter, number): b"%d" % number for letter in b"abc" for number in range(10)}
    db.put_many(rows)
    inside = [key for key in sorted(rows) if b"a/5" <= key < b"c/2"]
    assert list(db.keys(b"a/5", b"c/2")) == inside
    assert list(db.keys(b"a/5", b"c/2", reverse=True)) == inside[::-1]
    assert list(db.keys(b"a/5", b"c/2", prefix=b"b/", limit=3)) == [b"b/0", b"b/1", b"b/2"]
    assert list(db.prefix(b"c/", reverse=True)) == db.scan(prefix=b"c/", reverse=True)
    assert list(db[b"c/8":]) == [(b"c/8", b"8"), (b"c/9", b"9")]
    assert list(db[: b"a/1"]) == [(b"a/0", b"0")]
    assert db.count(b"b/", b"b/5") == 5 and db.count(prefix=b"\xff") == 0
    assert list(db.keys(b"z", b"a")) == []
    with pytest.raises(ValueError, match="step"):
        db[b"a" : b"b" : b"c"]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda raw: array.array("B", raw)])
def test_keys_and_values_are_any_objects_with_a_buffer(db: plimsoll.Db, wrap: Any) -> None:
    db[wrap(b"key")] = wrap(b"value")
    assert db[wrap(b"key")] == b"value" and wrap(b"key") in db
    assert db.get_many([wrap(b"key"), wrap(b"other")]) == [b"value", None]
    assert [type(part) for part in next(db.items())] == [bytes, bytes]
    assert db.delete_range(wrap(b"k"), wrap(b"l")) == db.newest and not db


@pytest.mark.parametrize("rows", [20, 2000])
def test_a_range_of_keys_is_deleted_whatever_it_holds(db: plimsoll.Db, rows: int) -> None:
    keys = [b"%04d" % number for number in range(rows)]
    half = rows // 2
    for space in (db, db.keyspace("other")):
        space.put_many((key, b"") for key in keys)
        del space[keys[half] :]
        assert list(space) == keys[:half]
        with db.transaction() as tx:
            inside = tx if space is db else tx.keyspace("other")
            assert inside.delete_range(keys[1], keys[half - 1]) is None
            inside[keys[2]] = b"stays"
            assert list(inside) == [keys[0], keys[2], keys[half - 1]]
        assert list(space) == [keys[0], keys[2], keys[half - 1]]
        assert space.delete_prefix(keys[0]) == db.newest
        assert len(space) == 2
        space.clear()
        assert len(space) == 0
    newest = db.newest
    for wrong in (lambda: db.delete_range(b"b", b"a"), lambda: db.__delitem__(slice(b"a", b"a"))):
        with pytest.raises(plimsoll.InvalidInput):
            wrong()
    with pytest.raises(ValueError, match="step"):
        db.__delitem__(slice(b"a", b"b", b"c"))
    assert db.newest == newest


def test_a_watch_gives_the_deleted_range(db: plimsoll.Db) -> None:
    db.put_many((b"%04d" % number, b"") for number in range(1000))
    watch = db.watch()
    del db[b"0100":b"0900"]
    change = watch.next(timeout=5)
    assert change is not None
    assert (change.key, change.range, change.deleted) == (b"0100", slice(b"0100", b"0900"), True)


def test_a_buffer_that_is_not_contiguous_is_copied_in_its_order(db: plimsoll.Db) -> None:
    db[b"even"] = memoryview(b"0123456789")[::2]
    assert db[b"even"] == b"02468"


@pytest.mark.parametrize("wrong", ["text", 7, None, [1], object()])
def test_other_objects_are_refused_and_say_what_to_do(db: plimsoll.Db, wrong: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        db[wrong] = b"value"
    with pytest.raises(TypeError, match="bytes"):
        db[b"key"] = wrong
    assert len(db) == 0


def test_many_rows_cross_the_border_in_one_commit(db: plimsoll.Db) -> None:
    before = db.newest
    glsn = db.put_many((b"%05d" % number, b"x" * (number % 500)) for number in range(5_000))
    assert glsn == before + 1 == db.newest
    keys = [b"%05d" % number for number in range(0, 6_000, 7)]
    assert db.get_many(keys, b"") == [b"x" * (int(key) % 500) if int(key) < 5_000 else b"" for key in keys]
    db.delete_many(keys)
    assert db.newest == before + 2 and db.count() == 5_000 - len([key for key in keys if int(key) < 5_000])
    db.bulk_load([(b"%05d" % number, b"y") for number in reversed(range(2_000))])
    assert db.newest == before + 3 and db[b"01999"] == b"y"
    assert abs(db.approximate_len() - db.count()) < 2_000


def test_a_batch_with_a_wrong_pair_writes_nothing(db: plimsoll.Db) -> None:
    with pytest.raises(TypeError, match="pairs of key and value are wanted"):
        db.put_many([[b"a", b"1"]])  # type: ignore[list-item]
    for pairs in ([(b"a", b"1"), (b"b",)], [(b"a", b"1"), b"b"], [(b"a", b"1"), (b"b", "text")], 7):
        with pytest.raises(TypeError):
            db.put_many(pairs)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            db.bulk_load(pairs)  # type: ignore[arg-type]
    assert len(db) == 0


def test_a_walk_keeps_its_moment_while_rows_are_written(db: plimsoll.Db) -> None:
    db.put_many((b"%04d" % number, b"old") for number in range(3_000))
    walk = db.items()
    seen = [next(walk) for _ in range(10)]
    db.update({b"%04d" % number: b"new" for number in range(3_000)})
    db.flush()
    seen.extend(walk)
    assert len(seen) == 3_000 and {value for _, value in seen} == {b"old"}


def test_large_values_are_read_piece_by_piece(db: plimsoll.Db) -> None:
    value = bytes(range(256)) * 20_000
    db[b"film"] = value
    with db.open_value(b"film") as film:
        assert film.size == len(value) and film.read(1_000) == value[:1_000]
        db[b"film"] = b"another"
        assert film.read() == value[1_000:] and film.read() == b""
    with pytest.raises(ValueError, match="closed"):
        film.read(1)
    assert db[b"film"] == b"another"
    with pytest.raises(KeyError):
        db.open_value(b"book")


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd:1", "zstd:22"])
def test_compressed_values_come_back(db: plimsoll.Db, compression: str) -> None:
    pages = db.keyspace("pages")
    pages.compression = compression
    value = b"compressible" * 20_000
    pages[b"index"] = value
    with db.transaction() as tx:
        tx.keyspace(pages)[b"other"] = value
        assert tx.keyspace(pages)[b"other"] == value
    assert pages.compression == compression
    assert pages[b"index"] == value and pages[b"other"] == value
    assert (pages.size().stored_bytes < pages.size().bytes / 10) == (compression != "none")


@pytest.mark.parametrize("wrong", ["gzip", "zstd:0", "zstd:23", "", 3, None])
def test_an_unknown_compression_is_refused(db: plimsoll.Db, wrong: object) -> None:
    with pytest.raises(plimsoll.InvalidInput, match="compression"):
        db.set_compression("default", wrong)  # type: ignore[arg-type]
    with pytest.raises(plimsoll.InvalidInput, match="compression"):
        plimsoll.in_memory(compression="gzip")
    assert plimsoll.in_memory(compression="lz4").keyspace("new").compression == "lz4"


def test_keyspaces_are_apart_and_are_dropped(db: plimsoll.Db) -> None:
    cats = db.keyspace("cats", retention="latest")
    cats[b"tom"] = b"grey"
    assert b"tom" not in db and db.keyspaces() == {"default": "forever", "cats": "latest"}
    assert (cats.name, cats.retention, cats.size().keys, cats.size().exact) == ("cats", "latest", 1, True)
    cats.retention = 100
    assert db.keyspaces()["cats"] == 100
    db.drop_keyspace(cats)
    with pytest.raises(plimsoll.InvalidInput, match="cats"):
        cats[b"tom"] = b"black"
    assert b"tom" not in cats and b"tom" in db.at(db.newest - 1).keyspace("cats")
    with pytest.raises(plimsoll.NoKeyspace):
        db.drop_keyspace("cats")
