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


def test_json_sets_and_the_newest_value_are_rules(db):
    docs, tags = db.keyspace("docs"), db.keyspace("tags")
    docs[b"a"], tags[b"t"] = b'{"x":1,"y":1}', b"[1,2]"
    draft = db.create_branch("draft")
    draft.keyspace("docs")[b"a"], draft.keyspace("tags")[b"t"] = b'{"x":2,"y":1}', b"[2]"
    docs[b"a"], tags[b"t"] = b'{"x":1,"y":1.50}', b"[1,2,3]"
    draft[b"tea"] = b"draft"
    del db[b"tea"]
    with pytest.raises(ValueError, match="json-set"):
        db.merge(draft, rules={"docs": "yaml"})
    db.merge(draft, rules={"docs": "json", "tags": "json-set", "default": "newest"})
    assert (docs[b"a"], tags[b"t"], b"tea" in db) == (b'{"x":2,"y":1.50}', b"[2,3]", False)


def test_a_commit_is_picked_into_a_branch(db):
    draft, release = db.create_branch("draft"), db.create_branch("release")
    draft[b"cocoa"] = b"4.00"
    with draft.transaction(metadata=b"sale") as tx:
        tx[b"tea"] = b"2.50"
    assert [step.key for step in db.preview_cherry_pick(tx.glsn, "release")] == [b"tea"]
    picked = db.cherry_pick(tx.glsn, release)
    assert dict(release) == {b"tea": b"2.50"} and dict(db) == {b"tea": b"3.00"}
    assert db.log.commit(picked).metadata == b"sale\n\n(cherry-pick of GLSN %d)" % tx.glsn
    assert db.cherry_pick(tx.glsn, "release") is None
    db[b"tea"] = b"3.10"
    with pytest.raises(plimsoll.MergeConflicts) as raised:
        db.cherry_pick(tx.glsn)
    (conflict,) = raised.value.conflicts
    assert (conflict.base(), conflict.ours(), conflict.theirs()) == (b"3.00", b"3.10", b"2.50")
    db.cherry_pick(tx.glsn, rules={"default": "theirs"}, metadata=b"mine")
    assert db[b"tea"] == b"2.50" and db.log.commit(db.newest).metadata == b"mine"
    assert db.cherry_pick(tx.glsn, keyspaces=["default"]) is None
    with pytest.raises(plimsoll.InvalidInput, match="no branch"):
        db.cherry_pick(tx.glsn, "none")


def test_equal_states_have_one_hash(db):
    draft = db.create_branch("draft")
    first = db.snapshot().state_hash()
    assert len(first) == 64 and draft.snapshot().state_hash() == first
    draft.keyspace("other")[b"k"] = b"v"
    changed = draft.snapshot().state_hash()
    assert changed != first and db.snapshot().state_hash() == first
    db.merge(draft)
    assert db.snapshot().state_hash() == changed
    with plimsoll.in_memory() as other:
        other.keyspace("other")[b"k"] = b"v"
        other[b"tea"] = b"3.00"
        assert other.snapshot().state_hash() == changed
    with db.snapshot() as snapshot:
        pass
    with pytest.raises(plimsoll.Closed):
        snapshot.state_hash()
