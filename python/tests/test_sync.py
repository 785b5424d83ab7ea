"""Clones, fetches, pulls and pushes between two stores, and ids of commits."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import plimsoll


@pytest.fixture
def hub(path: str) -> str:
    """The path of a store with branch draft."""
    with plimsoll.open(path, memory="16MiB") as db:
        db[b"tea"] = b"3.00"
        db.create_branch("draft")[b"cocoa"] = b"4.00"
    return path


@pytest.fixture
def ada(hub: str) -> Iterator[plimsoll.Db]:
    """A clone of it."""
    with plimsoll.clone(hub, f"{hub}.ada", memory="16MiB") as db:
        yield db


def change(hub: str, key: bytes, value: bytes) -> str | None:
    """Changes a key of the hub; returns the id of the commit."""
    with plimsoll.open(hub, memory="16MiB") as db:
        return db.commit_id(db.put(key, value))


def tips(hub: str) -> dict[str, str | None]:
    """The last commit of each branch."""
    with plimsoll.open(hub, memory="16MiB") as db:
        return {name: db.branch(name).tip() for name in ["main", *(it.name for it in db.branches())]}


def test_a_clone_has_all_branches_and_the_same_ids(hub, ada):
    assert dict(ada) == {b"tea": b"3.00"}
    assert dict(ada.branch("origin/draft")) == {b"cocoa": b"4.00", b"tea": b"3.00"}
    there = tips(hub)
    assert ada.main.tip() == there["main"]
    assert ada.branch("origin/draft").tip() == there["draft"]
    (origin,) = ada.remotes()
    assert (origin.name, origin.address) == ("origin", hub)
    assert repr(origin) == f'<plimsoll remote "origin" at "{hub}">'
    with plimsoll.clone(
        f"file://{hub}", Path(hub + ".eve"), memory="16MiB", shared=True, durability="buffered"
    ) as eve:
        assert eve.main.tip() == there["main"]
    with pytest.raises(plimsoll.InvalidInput, match="not an empty folder"):
        plimsoll.clone(hub, hub + ".eve", memory="16MiB")
    with pytest.raises(plimsoll.NotAStore):
        plimsoll.clone(hub + ".none", hub + ".x", memory="16MiB")
    with pytest.raises(plimsoll.InvalidInput, match="not the address"):
        plimsoll.clone("s3://bucket/hub", hub + ".x", memory="16MiB")
    with pytest.raises(plimsoll.InvalidInput, match="memory_total needs shared"):
        plimsoll.clone(hub, hub + ".x", memory_total="16MiB")
    assert not os.path.exists(hub + ".x")


def test_a_clone_without_the_whole_history(hub):
    with plimsoll.open(hub, memory="16MiB") as db:
        first = db.commit_id(db.put(b"tea", b"3.00"))
        second = db.commit_id(db.put(b"tea", b"3.10"))
    with plimsoll.clone(hub, hub + ".last", depth=1, memory="16MiB") as last:
        assert last.main.tip() == second
        assert second in last.boundary_commits() and last.find_commit(first) is None
        later = change(hub, b"milk", b"1.00")
        assert last.pull().after == later
        last[b"tea"] = b"3.20"
        assert last.push().commits == 1
    with plimsoll.clone(hub, hub + ".at", at=first, memory="16MiB") as at:
        assert at.boundary_commits() == [first]
        assert at[b"tea"] == b"3.00"
    for wrong in ({"depth": 0}, {"at": "12"}, {"depth": 1, "at": first}):
        with pytest.raises(plimsoll.InvalidInput):
            plimsoll.clone(hub, hub + ".x", memory="16MiB", **wrong)
    assert not os.path.exists(hub + ".x")


def test_a_push_transfers_commits_and_is_refused_if_there_are_others(hub, ada):
    first = ada.put(b"milk", b"1.00")
    before = ada.branch("origin/main").tip()
    moved = ada.push()
    assert (moved.before, moved.after, moved.commits) == (before, ada.commit_id(first), 1)
    assert moved.glsn is None and not moved.is_up_to_date
    assert ada.push("origin", "main").is_up_to_date
    theirs = change(hub, b"milk", b"1.20")
    ada[b"tea"] = b"3.10"
    with pytest.raises(plimsoll.NotFastForward, match="does not contain") as refused:
        ada.push()
    assert isinstance(refused.value, ValueError)
    forced = ada.push(force=True)
    assert (forced.before, forced.after) == (theirs, ada.main.tip())
    with plimsoll.open(hub, memory="16MiB") as db:
        assert dict(db) == dict(ada)
        assert db.main.tip() == ada.main.tip()
        assert len(list(db.history(b"milk"))) == 3, "the replaced version stays"
    ada.create_branch("new")[b"tea"] = b"3.20"
    assert ada.push(branch="new").before is None
    assert tips(hub)["new"] == ada.branch("new").tip()
    with pytest.raises(plimsoll.InvalidInput, match="no branch"):
        ada.push("origin", "none")


def test_a_pull_catches_up_or_merges(hub, ada):
    theirs = change(hub, b"milk", b"1.00")
    moved = ada.pull()
    assert (moved.after, moved.commits, moved.glsn) == (theirs, 1, None)
    assert ada.main.tip() == theirs
    again = ada.pull("origin", "main")
    assert again.is_up_to_date and (again.after, again.commits) == (theirs, 0)

    theirs = change(hub, b"milk", b"1.10")
    ours = ada.commit_id(ada.put(b"tea", b"3.10"))
    fetched = ada.fetch()
    assert (fetched.after, fetched.commits, ada[b"milk"]) == (theirs, 1, b"1.00")
    merged = ada.pull()
    assert (merged.before, merged.after) == (ours, ada.main.tip())
    assert merged.glsn is not None and ada.commit_id(merged.glsn) == merged.after
    assert merged.commits is None and f"merge {merged.glsn}" in repr(merged)
    assert dict(ada) == {b"milk": b"1.10", b"tea": b"3.10"}
    ada.push()
    assert tips(hub)["main"] == ada.main.tip()
    ada.pull(branch="draft")
    assert ada.branch("draft").tip() == tips(hub)["draft"]
    with pytest.raises(plimsoll.InvalidInput, match="no branch"):
        ada.fetch("origin", "none")


def test_conflicts_of_a_pull_are_raised_and_decided_by_a_merge(hub, ada):
    change(hub, b"tea", b"2.50")
    ada[b"tea"] = b"3.10"
    before = ada.main.tip()
    with pytest.raises(plimsoll.MergeConflicts, match='merge "origin/main"') as raised:
        ada.pull()
    (conflict,) = raised.value.conflicts
    assert (conflict.base(), conflict.ours(), conflict.theirs()) == (b"3.00", b"3.10", b"2.50")
    assert ada.main.tip() == before
    ada.merge("origin/main", rules={"default": "theirs"})
    assert ada.pull().is_up_to_date
    ada.push()
    assert ada[b"tea"] == b"2.50" and tips(hub)["main"] == ada.main.tip()


def test_remotes_are_added_and_removed(hub, ada, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ada.add_remote("hub", Path("store"))
    ada.add_remote("url", f"file://{hub}")
    assert [it.address for it in ada.remotes()] == [hub, hub, f"file://{hub}"]
    monkeypatch.chdir("/")
    ada[b"milk"] = b"1.00"
    assert ada.push("hub").commits == 1
    assert ada.fetch("url", "draft").after == ada.branch("origin/draft").tip()
    ada.remove_remote("hub")
    for call in (ada.fetch, ada.pull, ada.push, ada.remove_remote):
        with pytest.raises(plimsoll.InvalidInput, match='no remote "hub"'):
            call("hub")
    ada[b"milk"] = b"1.10"
    assert ada.push(Path(hub)).commits == 1
    with plimsoll.open(hub, memory="16MiB", shared=True) as db:
        with pytest.raises(plimsoll.InvalidInput, match="the store itself"):
            db.push(hub)
    for name in ("a/b", "", "incoming"):
        with pytest.raises(plimsoll.InvalidInput, match="the name of a remote"):
            ada.add_remote(name, hub)
    for address in ("", "http://host/hub", "file://relative"):
        with pytest.raises(plimsoll.InvalidInput, match="not the address"):
            ada.add_remote("hub", address)
    with pytest.raises(TypeError):
        ada.add_remote("hub", 7)


def test_ids_are_those_of_commits_only():
    with plimsoll.in_memory() as db:
        assert db.main.tip() is None
        first = db.put(b"a", b"1")
        id = db.commit_id(first)
        assert id is not None and db.find_commit(id) == first
        assert db.find_commit(id.upper()) == first and db.find_commit("0" * 64) is None
        db.tag("v1")
        assert db.main.tip() == id and db.commit_id(0) is None
        assert db.commit_id(db.newest) is None, "the commit of the tag"
        for text in ("", "ab", "g" * 64):
            with pytest.raises(plimsoll.InvalidInput, match="64 hexadecimal digits"):
                db.find_commit(text)
        with pytest.raises(plimsoll.NotYet):
            db.commit_id(99)


def test_a_read_only_store_computes_no_ids(hub):
    with plimsoll.open(hub, memory="16MiB", read_only=True) as db:
        with pytest.raises(plimsoll.ReadOnly):
            db.main.tip()
        assert db.remotes() == []


def test_other_threads_run_during_a_push(hub, ada):
    for _ in range(200):
        ada[b"a"] = os.urandom(1000)
    turns, done = [0], threading.Event()

    def count():
        while not done.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns[0]
    moved = ada.push()
    during = turns[0] - before
    done.set()
    thread.join()
    assert moved.commits == 200 and during > 100


@pytest.fixture
def ssh(tmp_path, monkeypatch) -> None:
    """Stands in for ssh, and serves with this package."""
    (tmp_path / "serve.py").write_text(
        "import sys, plimsoll\n"
        "plimsoll.serve_sync(sys.argv[-1], memory='16MiB', read_only='--read-only' in sys.argv)\n"
    )
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nexec sh -c "exec $2"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PLIMSOLL_SSH", str(script))
    monkeypatch.setenv("PLIMSOLL_SYNC_SERVER", f"{sys.executable} {tmp_path}/serve.py")


def test_a_clone_over_ssh_pushes_and_pulls(hub, ssh, monkeypatch):
    with plimsoll.clone(f"host:{hub}", hub + ".ada", memory="16MiB") as ada:
        assert ada.main.tip() == tips(hub)["main"]
        ada[b"milk"] = b"1.00"
        assert ada.push().commits == 1
        assert ada.main.tip() == tips(hub)["main"]
        change(hub, b"milk", b"1.10")
        assert ada.pull().commits == 1 and ada[b"milk"] == b"1.10"
        ada[b"tea"] = b"3.10"
        change(hub, b"tea", b"3.20")
        with pytest.raises(plimsoll.NotFastForward):
            ada.push()
        server = os.environ["PLIMSOLL_SYNC_SERVER"]
        monkeypatch.setenv("PLIMSOLL_SYNC_SERVER", f"{server} --read-only")
        with pytest.raises(plimsoll.ReadOnly):
            ada.push(force=True)


def test_failures_of_the_other_machine(hub, ssh, monkeypatch):
    with pytest.raises(plimsoll.NotAStore):
        plimsoll.clone(f"host:{hub}.none", hub + ".x", memory="16MiB")
    with pytest.raises(plimsoll.InvalidInput, match="PLIMSOLL_ALLOW_EXEC"):
        plimsoll.clone("exec:cat", hub + ".x", memory="16MiB")
    with pytest.raises(plimsoll.InvalidInput, match="not the address"):
        plimsoll.clone("ssh://-oProxyCommand=x/hub", hub + ".x", memory="16MiB")
    monkeypatch.setenv("PLIMSOLL_ALLOW_EXEC", "1")
    with pytest.raises(plimsoll.RemoteError, match="echoes its input"):
        plimsoll.clone("exec:cat", hub + ".x", memory="16MiB")
    assert not os.path.exists(hub + ".x")
