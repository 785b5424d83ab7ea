"""Dumps and restores."""

import io
from pathlib import Path

import pytest

import plimsoll


def test_a_dump_with_history_is_restored_with_every_moment(db: plimsoll.Db, tmp_path: Path) -> None:
    first = db.put(b"a", b"one")
    db[b"\xff"] = b"\x00" * 300_000
    db[b"a"] = b"two"
    file = io.BytesIO()
    assert db.dump(file, history=True) == db.newest
    assert db.dump(tmp_path / "dump", True) == db.newest
    file.seek(0)
    for number, source in enumerate([file, tmp_path / "dump", str(tmp_path / "dump")]):
        path = tmp_path / f"copy {number}"
        assert plimsoll.restore(path, source, memory="16MiB") == db.newest
        with plimsoll.open(path, memory="16MiB") as copy:
            assert dict(copy) == dict(db)
            assert copy.at(first)[b"a"] == b"one"
            assert [v.glsn for v in copy.history(b"a")] == [v.glsn for v in db.history(b"a")]


def test_a_store_in_memory_is_saved_by_a_dump(tmp_path: Path) -> None:
    db = plimsoll.in_memory()
    db[b"a"] = b"1"
    db.keyspace("other")[b"b"] = b"2"
    db.dump(tmp_path / "dump", keyspace="other")
    plimsoll.restore(tmp_path / "copy", tmp_path / "dump", memory="16MiB")
    with plimsoll.open(tmp_path / "copy", memory="16MiB") as copy:
        assert dict(copy) == {} and dict(copy.keyspace("other")) == {b"b": b"2"}


def test_failures_of_files_and_dumps_are_raised(db: plimsoll.Db, tmp_path: Path) -> None:
    class Full:
        def write(self, data: bytes, /) -> int:
            raise OSError(28, "no space")

    db[b"a"] = b"1"
    with pytest.raises(OSError, match="no space"):
        db.dump(Full())
    with pytest.raises(FileNotFoundError):
        plimsoll.restore(tmp_path / "copy", tmp_path / "none", memory="16MiB")
    file = io.BytesIO()
    db.dump(file)
    with pytest.raises(plimsoll.Corrupt, match="truncated"):
        plimsoll.restore(tmp_path / "copy", io.BytesIO(file.getvalue()[:-1]), memory="16MiB")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(plimsoll.FormatError):
        plimsoll.restore(tmp_path / "copy", io.BytesIO(b"no dump"), memory="16MiB")
