"""Branches: lines of history that leave another one."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import plimsoll


def test_a_branch_is_a_mapping_of_its_own(db: plimsoll.Db) -> None:
    db.update({b"a": b"1", b"b": b"2"})
    users = db.keyspace("users")
    users[b"ada"] = b"Ada"
    draft = db.create_branch("draft")
    assert isinstance(draft, plimsoll.Branch) and isinstance(draft, plimsoll.BranchMapping)
    assert dict(draft.items()) == dict(db.items()) and b"a" in draft and len(draft) == 2 and draft
    draft[b"a"] = b"3"
    del draft[b"b"]
    draft.update({b"c": b"4", b"d": b"5"})
    assert list(draft) == [b"a", b"c", b"d"] and list(reversed(draft)) == [b"d", b"c", b"a"]
    assert list(draft[b"c":]) == [(b"c", b"4"), (b"d", b"5")]
    assert draft.get_many([b"a", b"b", b"c"]) == [b"3", None, b"4"]
    assert draft.first() == (b"a", b"3") and draft.last() == (b"d", b"5")
    assert draft.scan(prefix=b"c") == [(b"c", b"4")] and draft.count() == 3
    assert draft.pop(b"d") == b"5" and draft.setdefault(b"e", b"6") == b"6"
    assert draft.pop_last() == (b"e", b"6")
    assert draft.open_value(b"c").read() == b"4"
    with pytest.raises(KeyError):
        del draft[b"d"]
    with pytest.raises(KeyError):
        draft[b"b"]
    assert draft.add(b"n", 2) == 2 and draft.append(b"c", b"x") == 2
    assert draft.max(b"n", 9) == 9 and draft.min(b"n", 3) == 3
    assert draft.set_if_absent(b"c", b"") is False
    assert draft.compare_and_swap(b"c", b"4x", b"4") is True
    assert draft.set_bit(b"bits", 1) is False and draft.clear_bit(b"bits", 1) is True
    assert draft.modify(b"c", lambda value: value + value if value else None) == b"44"
    assert isinstance(draft.put(b"z", b""), int) and isinstance(draft.delete(b"z"), int)
    assert isinstance(draft.delete_range(b"bits", b"c"), int)
    assert isinstance(draft.delete_prefix(b"n"), int)
    assert dict(draft.items()) == {b"a": b"3", b"c": b"44"}
    on_draft = draft.keyspace("users")
    assert on_draft.keyspace_name == "users" and dict(on_draft.items()) == {b"ada": b"Ada"}
    on_draft[b"ada"] = b"Augusta"
    assert draft.keyspace(users)[b"ada"] == b"Augusta"
    draft.clear()
    assert not draft
    assert repr(draft) == '<plimsoll branch "draft">'
    assert repr(on_draft) == '<plimsoll keyspace "users" on branch "draft">'
    assert dict(db.items()) == {b"a": b"1", b"b": b"2"} and dict(users.items()) == {b"ada": b"Ada"}


def test_transactions_and_moments_of_a_branch(db: plimsoll.Db) -> None:
    before = db.put(b"a", b"1")
    draft = db.create_branch("draft")
    with draft.transaction(metadata=b"by Ada") as tx:
        tx[b"a"] = b"2"
        tx.keyspace("default")[b"b"] = b"3"
        assert tx[b"a"] == b"2" and b"b" not in draft
    assert tx.glsn is not None
    assert db.log.commit(tx.glsn).metadata == b"by Ada"  # type: ignore[union-attr]
    changes = db.log.commit(tx.glsn).changes()  # type: ignore[union-attr]
    assert [(change.branch, change.keyspace, change.key, change.value()) for change in changes] == [
        ("draft", "default", b"a", b"2"),
        ("draft", "default", b"b", b"3"),
    ]
    assert db.log.commit(before).changes()[0].branch is None  # type: ignore[union-attr]
    with pytest.raises(RuntimeError), draft.transaction() as tx:
        tx[b"a"] = b"9"
        raise RuntimeError
    with draft.snapshot() as snapshot:
        draft[b"a"] = b"4"
        assert dict(snapshot.items()) == {b"a": b"2", b"b": b"3"}
        assert dict(snapshot.keyspace("default").items()) == dict(snapshot.items())
    assert dict(draft.at(before).items()) == {b"a": b"1"}
    db.tag("v1")
    draft[b"a"] = b"5"
    assert draft.at("v1")[b"a"] == b"4" and db.at("v1")[b"a"] == b"1"
    assert draft.at(datetime.now(timezone.utc) + timedelta(days=1))[b"a"] == b"5"
    # One conflicts on its own branch, not on another one.
    first, second, other = draft.transaction(), draft.transaction(), db.main.transaction()
    for tx in (first, second, other):
        tx[b"a"] = tx[b"a"] + b"x"
    first.commit()
    other.commit()
    with pytest.raises(plimsoll.Conflict):
        second.commit()
    with draft.transaction(ordered=True) as tx:
        tx[b"a"] = tx[b"a"] + b"y"
    assert (draft[b"a"], db[b"a"]) == (b"5xy", b"1x")


def test_writers_of_two_branches(db: plimsoll.Db) -> None:
    branches = [db.create_branch("one"), db.create_branch("two"), db.main]

    def count(tx: plimsoll.Transaction, by: int) -> int:
        tx[b"n"] = b"%d" % (int(tx.get(b"n", b"0")) + by)
        return int(tx[b"n"])

    def work(branch: plimsoll.Branch) -> None:
        for _ in range(25):
            branch.transact(count, by=2)

    threads = [threading.Thread(target=work, args=(branch,)) for branch in branches * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [branch[b"n"] for branch in branches] == [b"100"] * 3
    assert db[b"n"] == b"100"


def test_branches_stay_when_the_store_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with plimsoll.open(path, memory="16MiB", retention="latest") as db:
        first = db.put(b"a", b"1")
        draft = db.create_branch("draft")
        draft[b"a"] = b"2"
        fork = draft.fork
        second = db.create_branch("second", draft)
        past = db.create_branch("past", "draft", at=first)
        assert (draft.parent, draft.fork, second.parent) == ("main", first, "draft")
        assert isinstance(draft.fork_time, datetime) and draft.fork_time.tzinfo == timezone.utc
        # Before its fork, a branch is what its parent was.
        assert past[b"a"] == b"1" and past.parent == "main"
        draft[b"a"] = b"3"
        db[b"a"] = b"4"
        db.rename_branch("draft", "proposal")
        assert (draft.name, second.parent, draft[b"a"]) == ("draft", "proposal", b"3")
        db.flush()
        db.compact()
    with plimsoll.open(path, memory="16MiB") as db:
        names = [(info.name, info.parent) for info in db.branches()]
        assert names == [("past", "main"), ("proposal", "main"), ("second", "proposal")]
        info = db.branches()[1]
        assert info.fork == fork and isinstance(info.fork_time, datetime)
        assert repr(info) == f'<plimsoll branch "proposal", which left main at GLSN {fork}>'
        proposal, second = db.branch("proposal"), db.branch("second")
        assert (proposal[b"a"], second[b"a"], db.branch("past")[b"a"], db[b"a"]) == (b"3", b"2", b"1", b"4")
        db.delete_branch("proposal")
        assert second.parent is None and second[b"a"] == b"2"
        for use in (
            lambda: proposal[b"a"],
            lambda: proposal.put(b"a", b"5"),
            lambda: proposal.fork,
            lambda: db.branch("proposal"),
            lambda: db.delete_branch("proposal"),
            lambda: db.create_branch("x", "proposal"),
        ):
            with pytest.raises(plimsoll.InvalidInput, match='no branch "(draft|proposal)"'):
                use()
    with pytest.raises(plimsoll.Closed):
        second[b"a"]


def test_main_is_the_store(db: plimsoll.Db) -> None:
    main = db.main
    main[b"a"] = b"1"
    assert db[b"a"] == b"1" and db.branch("main")[b"a"] == b"1"
    assert (main.name, main.parent, main.fork, main.fork_time) == ("main", None, None, None)
    assert main.add(b"n", 1) == 1 and db.add(b"n", 1) == 2
    assert db.branches() == []
    for name in ["main", "", "12", "yesterday", "a..b", "a@{1}", "x" * 256]:
        with pytest.raises(plimsoll.InvalidInput, match="branch"):
            db.create_branch(name)
    with pytest.raises(plimsoll.InvalidInput, match="branch main always exists"):
        db.delete_branch("main")
    db.create_branch("draft")
    with pytest.raises(plimsoll.InvalidInput, match='branch "draft" exists'):
        db.create_branch("draft")
    with pytest.raises(TypeError, match="a branch must be a name"):
        db.create_branch("x", 1)  # type: ignore[arg-type]
    with pytest.raises(plimsoll.InvalidInput, match="4,?082"):
        db.branch("draft")[b"k" * 4083] = b""


def test_a_value_on_a_branch_expires(db: plimsoll.Db) -> None:
    db[b"a"] = b"1"
    draft = db.create_branch("draft")
    draft.put(b"a", b"2", ttl=0.2)
    assert draft.ttl(b"a") is not None and db.ttl(b"a") is None
    draft.put(b"b", b"3", ttl=60)
    assert draft.persist(b"b") and draft.ttl(b"b") is None
    time.sleep(0.3)
    # The expired value hides the parent's.
    assert list(draft) == [b"b"] and db[b"a"] == b"1"


def test_a_branch_outlives_the_object_of_its_store(tmp_path: Path) -> None:
    draft = plimsoll.open(tmp_path / "store", memory="16MiB").create_branch("draft")
    draft[b"a"] = b"1"
    assert draft[b"a"] == b"1"
    del draft
    with plimsoll.open(tmp_path / "store", memory="16MiB") as db:
        assert db.branch("draft")[b"a"] == b"1"


def test_a_branch_is_reverted_and_reset(db: plimsoll.Db) -> None:
    db[b"a"] = b"1"
    before = db.newest
    draft = db.create_branch("draft")
    wrong = draft.put_many({b"a": b"2", b"b": b"3"})
    db[b"a"] = b"main"
    on_main = db.newest
    assert sorted(step.key for step in draft.preview_revert(wrong)) == [b"a", b"b"]
    undone = draft.revert(wrong, metadata=b"why")
    assert db.log.commit(undone).metadata == b"why"
    assert dict(draft) == {b"a": b"1"} and draft.revert(wrong) is None
    draft[b"a"], draft.keyspace("other")[b"k"] = b"4", b"5"
    with pytest.raises(plimsoll.MergeConflicts):
        draft.revert(wrong)
    draft.revert(wrong, {"default": lambda key, base, ours, theirs: theirs})
    assert dict(draft) == {b"a": b"1"}
    assert draft.reset_to(wrong, ["default"]) == db.newest
    assert dict(draft) == {b"a": b"2", b"b": b"3"} and dict(draft.keyspace("other"))
    assert [step.action for step in draft.preview_reset(before, ["default"])] == ["put", "delete"]
    draft.reset_to(before)
    assert dict(draft) == {b"a": b"1"} and not dict(draft.keyspace("other"))
    assert dict(db) == {b"a": b"main"}
    with pytest.raises(plimsoll.InvalidInput, match='on branch "draft"'):
        db.revert(wrong)
    with pytest.raises(plimsoll.InvalidInput, match='on branch "main"'):
        draft.revert(on_main)
    assert db.main.reset_to(before) is not None and dict(db) == {b"a": b"1"}


def test_history_and_log_of_a_branch(db: plimsoll.Db) -> None:
    first = db.put(b"a", b"1")
    draft = db.create_branch("draft")
    db[b"a"] = b"9"
    second = draft.put(b"a", b"2")
    gone = draft.delete(b"a")
    versions = list(draft.history(b"a"))
    assert [(version.glsn, version.value()) for version in versions] == [
        (gone, None),
        (second, b"2"),
        (first, b"1"),
    ]
    assert versions[0].deleted and not versions[1].deleted
    assert [version.value() for version in db.main.history(b"a")] == [b"9", b"1"]
    users = draft.keyspace("users")
    in_users = users.put(b"ada", b"Ada")
    assert [version.glsn for version in users.history(b"ada")] == [in_users]
    assert list(db.keyspace("users").history(b"ada")) == []
    log = draft.log()
    assert isinstance(log, plimsoll.BranchLog)
    assert [commit.glsn for commit in log] == [in_users, gone, second, first]
    assert [commit.branch for commit in draft.log()] == ["draft"] * 3 + [None]
    assert len(list(db.main.log())) == 2
    db.delete_branch("draft")
    for use in (lambda: draft.history(b"a"), draft.log, draft.watch):
        with pytest.raises(plimsoll.InvalidInput, match='no branch "draft"'):
            use()


def test_states_of_branches_are_compared(db: plimsoll.Db) -> None:
    before = db.put_many({b"a": b"1", b"b": b"2"})
    draft = db.create_branch("draft")
    on_draft = draft.put(b"a", b"3")
    del draft[b"b"]
    on_main = db.put(b"c", b"4")

    def shown(diff: plimsoll.Diff) -> list[tuple[bytes, bytes | None, bytes | None]]:
        def value(version: plimsoll.Version | None) -> bytes | None:
            return version.value() if version else None

        return [(d.key, value(d.before), value(d.after)) for d in diff]

    there = [(b"a", b"1", b"3"), (b"b", b"2", None), (b"c", b"4", None)]
    back = [(key, after, before) for key, before, after in there]
    assert shown(db.diff(db.main, draft)) == there == shown(draft.diff(db.main, draft))
    assert shown(db.diff(draft, db.main)) == back == shown(db.diff(draft, on_main))
    assert shown(db.diff(db.main, draft, b"b")) == there[1:2]
    assert [d.by for d in db.diff(db.main, draft)][::2] == [on_draft, on_main]
    with draft.snapshot() as snapshot, draft.at(before) as past:
        draft[b"a"] = b"5"
        assert shown(db.diff(snapshot, draft)) == [(b"a", b"3", b"5")]
        assert shown(db.diff(past, snapshot)) == there[:2]
    # Numbers are moments of the branch.
    assert shown(draft.diff(before, on_draft)) == there[:1]
    assert shown(db.diff(before, on_draft)) == [] == shown(db.diff(before, draft.at(before)))
    users = draft.keyspace("users")
    users[b"ada"] = b"Ada"
    assert shown(users.diff(db.main, draft)) == [(b"ada", None, b"Ada")]
    for wrong in ("draft", None, 1.5):
        with pytest.raises(TypeError, match="a state must be"):
            db.diff(0, wrong)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        db.diff(0, -1)
    with pytest.raises(plimsoll.Closed):
        db.diff(0, past)


def test_a_watch_sees_one_branch(db: plimsoll.Db) -> None:
    first = db.put(b"a/0", b"0")
    draft = db.create_branch("draft")
    with draft.watch(b"a/", start=first) as watch, db.watch(b"a/") as on_main:
        draft[b"b"] = b"1"
        draft[b"a/1"] = b"2"
        db[b"a/2"] = b"3"
        del draft[b"a/1"]
        change = watch.next(timeout=60)
        assert change and (change.key, change.value(), change.branch) == (b"a/1", b"2", "draft")
        position = watch.position
        change = watch.next(timeout=60)
        assert change and (change.key, change.deleted, change.expires) == (b"a/1", True, None)
        assert watch.next(timeout=0) is None
        change = on_main.next(timeout=60)
        assert change and (change.key, change.branch) == (b"a/2", None)
        assert on_main.next(timeout=0) is None
    with draft.watch(b"a/", start=position) as watch:
        change = watch.next(timeout=60)
        assert change and change.deleted
        draft.keyspace("users")[b"a/3"] = b"4"
        assert watch.next(timeout=0) is None
        db.delete_branch("draft")
        with pytest.raises(plimsoll.InvalidInput, match='no branch "draft"'):
            watch.next(timeout=60)
