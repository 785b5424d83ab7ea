"""Merges of branches."""

import pytest

import plimsoll


@pytest.fixture
def db():
    with plimsoll.in_memory() as db:
        db[b"tea"] = b"3.00"
        yield db


def test_a_merge_applies_what_changed_on_the_branch(db):
    draft = db.create_branch("draft")
    draft[b"cocoa"] = b"4.00"
    del draft[b"tea"]
    db[b"milk"] = b"1.00"
    steps = [(step.action, step.keyspace, step.key) for step in db.preview_merge(draft)]
    assert steps == [("put", "default", b"cocoa"), ("delete", "default", b"tea")]
    glsn = db.merge("draft", metadata=b"by hand")
    assert db.log.commit(glsn).metadata == b"by hand"
    assert dict(db) == {b"cocoa": b"4.00", b"milk": b"1.00"}
    assert db.merge(draft) is None
    assert db.merge("main", into=draft) is not None
    assert dict(draft) == dict(db)


def test_a_conflict_is_raised_and_decided_by_a_rule(db):
    draft = db.create_branch("draft")
    draft[b"tea"], db[b"tea"] = b"2.50", b"3.10"
    with pytest.raises(plimsoll.MergeConflicts) as raised:
        db.merge(draft)
    (conflict,) = raised.value.conflicts
    assert (conflict.base(), conflict.ours(), conflict.theirs()) == (b"3.00", b"3.10", b"2.50")
    seen = []

    def both(key, base, ours, theirs):
        seen.append((key, base))
        return ours + b"/" + theirs

    db.merge(draft, rules={"default": both})
    assert db[b"tea"] == b"3.10/2.50"
    assert set(seen) == {(b"tea", b"3.00")}


def test_what_cannot_be_merged_is_refused(db):
    draft = db.create_branch("draft")
    draft[b"tea"], db[b"tea"] = b"2.50", b"3.10"
    with pytest.raises(ZeroDivisionError):
        db.merge(draft, rules={"default": lambda *_: 1 // 0})
    with pytest.raises(ValueError, match="itself"):
        db.merge(draft, into="draft")
    with pytest.raises(plimsoll.Error, match="no branch"):
        db.merge("none")
    assert db[b"tea"] == b"3.10"
