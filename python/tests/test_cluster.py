"""Members of a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import plimsoll
import pytest


def test_a_place_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(plimsoll.InvalidInput, match="there is no cluster here"):
        plimsoll.open(tmp_path / "store", memory="16MiB", cluster=tmp_path / "bucket")
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "bucket").exists()


def test_a_member_is_open_in_one_process(tmp_path: Path) -> None:
    for keywords in ({"shared": True}, {"read_only": True}):
        with pytest.raises(plimsoll.InvalidInput, match="one process"):
            plimsoll.open(tmp_path / "store", cluster=tmp_path / "bucket", **keywords)


def test_a_store_that_is_no_member_is_refused(tmp_path: Path) -> None:
    plimsoll.open(tmp_path / "store", memory="16MiB").close()
    with pytest.raises(plimsoll.InvalidInput, match="not a member of a cluster"):
        plimsoll.open(tmp_path / "store", memory="16MiB", cluster=tmp_path / "bucket")
    plimsoll.open(tmp_path / "store", memory="16MiB").close()


def test_members_have_one_history(tmp_path: Path) -> None:
    with plimsoll.open(tmp_path / "one", memory="16MiB") as db:
        db[b"first"] = b"1"
    bucket = tmp_path / "bucket"
    plimsoll.create_cluster(tmp_path / "one", bucket, memory="16MiB")
    with pytest.raises(plimsoll.InvalidInput, match="cluster=URL"):
        plimsoll.open(tmp_path / "one", memory="16MiB")
    with (
        plimsoll.open(tmp_path / "one", memory="16MiB", cluster=bucket) as one,
        plimsoll.open(tmp_path / "two", memory="16MiB", cluster=bucket) as two,
    ):
        assert two[b"first"] == b"1"
        two[b"second"] = b"2"
        one.sync()
        assert one[b"second"] == b"2"


def test_a_trimmed_log_restores_members_that_were_behind(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with plimsoll.open(tmp_path / "one", memory="16MiB") as db:
        with pytest.raises(plimsoll.InvalidInput, match="not a member"):
            db.trim_cluster()
    plimsoll.create_cluster(tmp_path / "one", bucket, memory="16MiB")
    plimsoll.open(tmp_path / "two", memory="16MiB", cluster=bucket).close()
    with plimsoll.open(tmp_path / "one", memory="16MiB", cluster=bucket) as one:
        for number in range(10):
            one[b"key"] = b"%d" % number
        assert one.trim_cluster() == 0
        assert one.trim_cluster(keep=2) >= 8
    assert len(list((bucket / "log").iterdir())) == 2
    with plimsoll.open(tmp_path / "two", memory="16MiB", cluster=bucket) as two:
        assert two[b"key"] == b"9"
        two[b"own"] = b"1"


def test_a_cluster_moves_to_another_bucket(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    plimsoll.open(tmp_path / "one", memory="16MiB").close()
    plimsoll.create_cluster(tmp_path / "one", old, memory="16MiB")
    with (
        plimsoll.open(tmp_path / "one", memory="16MiB", cluster=old) as one,
        plimsoll.open(tmp_path / "two", memory="16MiB", cluster=old) as two,
    ):
        one[b"first"] = b"1"
        with pytest.raises(plimsoll.InvalidInput, match="there is a cluster here"):
            one.move_cluster(old)
        one.move_cluster(new)
        two[b"second"] = b"2"
        one.sync()
        assert (one[b"second"], two[b"first"]) == (b"2", b"1")
    # A program that still names the old bucket goes on, too.
    for bucket in (old, new):
        with plimsoll.open(tmp_path / "two", memory="16MiB", cluster=bucket) as two:
            two[b"third"] = b"3"
    with plimsoll.open(tmp_path / "three", memory="16MiB", cluster=old) as three:
        assert three[b"third"] == b"3"


def test_a_cluster_is_healed_from_its_members(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    plimsoll.open(tmp_path / "one", memory="16MiB").close()
    plimsoll.create_cluster(tmp_path / "one", bucket, memory="16MiB")
    with (
        plimsoll.open(tmp_path / "one", memory="16MiB", cluster=bucket) as one,
        plimsoll.open(tmp_path / "two", memory="16MiB", cluster=bucket) as two,
    ):
        for number in range(10):
            one[b"key"] = b"%d" % number
        two.sync()
    members = tmp_path / "one", tmp_path / "two"
    assert plimsoll.heal_cluster(*members, memory="16MiB") == []
    sorted((bucket / "log").iterdir())[3].unlink()
    problems = plimsoll.heal_cluster(*members, memory="16MiB")
    assert len(problems) == 1 and "log/" in problems[0]
    assert plimsoll.heal_cluster(*members, memory="16MiB") == []
    for name in ("one", "two", "three"):
        with plimsoll.open(tmp_path / name, memory="16MiB", cluster=bucket) as db:
            assert db[b"key"] == b"9"
            db[name.encode()] = b"1"
    for path in bucket.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(plimsoll.InvalidInput, match="this place is empty"):
        plimsoll.heal_cluster(*members, memory="16MiB")
    # Only the last one has its own commit.
    with pytest.raises(plimsoll.InvalidInput, match="at least one"):
        plimsoll.heal_cluster()
    members = (*members, tmp_path / "three")
    assert plimsoll.heal_cluster(*members, bucket=bucket, memory="16MiB") == ["the bucket is empty"]
    with plimsoll.open(tmp_path / "one", memory="16MiB", cluster=bucket) as db:
        assert db[b"three"] == b"1"
