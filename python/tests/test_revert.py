"""Reverts of commits and resets to moments."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import plimsoll


def test_a_revert_restores_and_its_revert_undoes_it(db: plimsoll.Db) -> None:
    db[b"a"] = b"1"
    wrong = db.put_many({b"a": b"2", b"b": b"3"})
    db[b"c"] = b"4"
    undone = db.revert(wrong)
    assert undone == db.newest
    assert dict(db) == {b"a": b"1", b"c": b"4"}
    assert db.log.commit(undone).metadata == b"revert of GLSN %d" % wrong
    assert db.revert(wrong) is None
    again = db.revert(undone, metadata=b"why")
    assert dict(db) == {b"a": b"2", b"b": b"3", b"c": b"4"}
    assert db.log.commit(again).metadata == b"why"


def test_conflicts_are_an_iterator_of_the_exception(db: plimsoll.Db) -> None:
    db.put_many({b"%d" % n: b"theirs" for n in range(100)})
    wrong = db.put_many({b"%d" % n: b"base" for n in range(100)})
    newest = db.put_many({b"%d" % n: b"ours" for n in range(50)})
    with pytest.raises(plimsoll.MergeConflicts, match="nothing was written") as raised:
        db.revert(wrong)
    assert db.newest == newest
    conflicts = list(raised.value.conflicts)
    assert len(conflicts) == 50
    for conflict in conflicts:
        assert (conflict.action, conflict.keyspace) == ("conflict", "default")
        values = conflict.base(), conflict.ours(), conflict.theirs(), conflict.merged()
        assert values == (b"base", b"ours", b"theirs", None)
    assert repr(conflicts[0]) == "<plimsoll merge step: conflict \"0\" in \"default\">"
    actions = [step.action for step in db.preview_revert(wrong)]
    assert actions.count("conflict") == actions.count("put") == 50


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("ours", b"1\n2\nIII\n"),
        ("theirs", b"1\n2\n3\n"),
        ("text", b"1\n2\nIII\n"),
        (lambda key, base, ours, theirs: b"|".join([key, base, ours, theirs]), b"k|I\n2\n3\n|1\n2\nIII\n|1\n2\n3\n"),
        (lambda key, base, ours, theirs: bytearray(theirs), b"1\n2\n3\n"),
        (lambda *_: None, None),
    ],
)
def test_rules(db: plimsoll.Db, rule: Any, value: bytes | None) -> None:
    notes = db.keyspace("notes")
    notes[b"k"] = b"1\n2\n3\n"
    wrong = notes.put(b"k", b"I\n2\n3\n")
    notes[b"k"] = b"1\n2\nIII\n" if rule == "ours" or callable(rule) else b"I\n2\nIII\n"
    expected = value
    for keyspace in ("notes", notes):
        steps = list(db.preview_revert(wrong, {keyspace: rule}))
        assert [step.action for step in steps] == ([] if rule == "ours" else ["delete" if value is None else "put"])
        assert [step.merged() for step in steps] == ([] if rule == "ours" else [expected])
    db.revert(wrong, {"notes": rule})
    assert notes.get(b"k") == expected


def test_a_counter_keeps_later_additions(db: plimsoll.Db) -> None:
    db.add(b"n", 5)
    wrong = db.newest
    db.add(b"n", 2)
    db.revert(wrong, {"default": "counter"})
    assert db.add(b"n", 0) == 2


def test_a_function_may_refuse_or_raise(db: plimsoll.Db) -> None:
    db[b"a"] = b"1"
    wrong = db.put(b"a", b"2")
    newest = db.put(b"a", b"3")
    with pytest.raises(plimsoll.MergeConflicts):
        db.revert(wrong, {"default": lambda *_: NotImplemented})
    with pytest.raises(ZeroDivisionError):
        db.revert(wrong, {"default": lambda *_: 1 // 0})
    with pytest.raises(TypeError, match="bytes, not str"):
        db.revert(wrong, {"default": lambda *_: "text"})
    with pytest.raises(ZeroDivisionError):
        next(db.preview_revert(wrong, {"default": lambda *_: 1 // 0}))
    assert db.newest == newest


def test_reset_goes_back_to_a_glsn_or_time(db: plimsoll.Db) -> None:
    before = db.put(b"a", b"1")
    db.put_many({b"a": b"2", b"b": b"3"})
    other = db.keyspace("other")
    other[b"k"] = b"v"
    assert [(step.action, step.key) for step in db.preview_reset(before, ["default"])] == [("put", b"a"), ("delete", b"b")]
    last = db.reset_to(before, [db.keyspace("default")], metadata=b"why")
    assert (dict(db), dict(other)) == ({b"a": b"1"}, {b"k": b"v"})
    assert db.log.commit(last).metadata == b"why"
    assert db.reset_to(before) == db.newest
    assert dict(other) == {}
    assert db.reset_to(before) is None
    assert db.reset_to(datetime.now(timezone.utc) + timedelta(days=1)) is None
    db.reset_to(last)
    assert dict(other) == {b"k": b"v"}


def test_a_revert_of_one_keyspace_leaves_the_others(db: plimsoll.Db) -> None:
    other = db.keyspace("other")
    with db.transaction() as tx:
        tx[b"a"] = b"1"
        tx.keyspace(other)[b"b"] = b"2"
    assert tx.glsn is not None
    assert [step.keyspace for step in db.preview_revert(tx.glsn, keyspaces=["other"])] == ["other"]
    assert [step.keyspace for step in db.preview_revert(tx.glsn, exclude=[other])] == ["default"]
    assert len(list(db.preview_revert(tx.glsn, exclude=[]))) == 2
    undone = db.revert(tx.glsn, exclude=["default"])
    assert (dict(db), dict(other)) == ({b"a": b"1"}, {})
    assert undone is not None
    db.revert(undone)
    db.revert(tx.glsn, keyspaces=[other])
    assert (dict(db), dict(other)) == ({b"a": b"1"}, {})
    db.revert(tx.glsn)
    assert dict(db) == {}


def test_a_keyspace_that_does_not_retain_the_state_is_named(db: plimsoll.Db) -> None:
    latest = db.keyspace("latest", retention="latest")
    glsn = latest.put(b"a", b"1")
    for _ in range(50):
        latest[b"a"] = b"2"
    db.compact()
    with pytest.raises(plimsoll.Trimmed, match="in the keyspace `latest`") as refused:
        db.revert(glsn + 1)
    assert refused.value.keyspace == "latest"
    with pytest.raises(plimsoll.Trimmed) as refused:
        db.at(glsn).keyspace("latest")[b"a"]
    assert refused.value.keyspace is None


def test_bad_input(db: plimsoll.Db, tmp_path: Path) -> None:
    glsn = db.put(b"a", b"1")
    with pytest.raises(plimsoll.NotYet):
        db.revert(glsn + 1)
    with pytest.raises(plimsoll.InvalidInput, match="is not a commit"):
        db.revert(0)
    db.keyspace("cats")
    with pytest.raises(plimsoll.InvalidInput, match=r"changed no keys.*Db.drop_keyspace"):
        db.revert(db.newest)
    with pytest.raises(ValueError, match='not "latest"'):
        db.revert(glsn, {"default": "latest"})
    with pytest.raises(TypeError, match="name of a rule"):
        db.revert(glsn, {"default": 1})
    with pytest.raises(plimsoll.NoKeyspace):
        db.revert(glsn, {"none": "ours"})
    with pytest.raises(TypeError, match="not a str"):
        db.reset_to(glsn, "default")
    with pytest.raises(ValueError, match="is empty"):
        db.reset_to(glsn, [])
    with pytest.raises(plimsoll.NoKeyspace):
        db.reset_to(glsn, ["none"])
    path = str(tmp_path / "other")
    with plimsoll.open(path, memory="16MiB") as store:
        glsn = store.put(b"a", b"1")
    with plimsoll.open(path, memory="16MiB", read_only=True) as store:
        assert [step.action for step in store.preview_revert(glsn)] == ["delete"]
        with pytest.raises(plimsoll.ReadOnly):
            store.revert(glsn)
        with pytest.raises(plimsoll.ReadOnly):
            store.reset_to(0)
    steps = db.preview_reset(0)
    db.close()
    with pytest.raises(plimsoll.Closed):
        next(steps)
    with pytest.raises(plimsoll.Closed):
        db.revert(glsn)


def test_rules_run_while_other_threads_use_the_interpreter(db: plimsoll.Db) -> None:
    db.put_many({b"%d" % n: b"theirs" for n in range(500)})
    wrong = db.put_many({b"%d" % n: b"base" for n in range(500)})
    db.put_many({b"%d" % n: b"ours" for n in range(500)})
    ends, counted = threading.Event(), [0]

    def count() -> None:
        while not ends.is_set():
            counted[0] += 1
            db.get(b"1")

    thread = threading.Thread(target=count)
    thread.start()
    try:
        db.revert(wrong, {"default": lambda key, base, ours, theirs: theirs + ours})
    finally:
        ends.set()
        thread.join()
    assert set(db.values()) == {b"theirsours"}
    assert counted[0] > 0
