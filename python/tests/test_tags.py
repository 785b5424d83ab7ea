"""Tags: named moments that stay readable."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

import plimsoll


def test_a_tagged_moment_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with plimsoll.open(path, memory="16MiB") as db:
        prices = db.keyspace("prices", retention="latest")
        first = db.put(b"x", b"1")
        prices[b"tea"] = b"1"
        tag = db.tag("v1")
        assert (tag.name, tag.glsn) == ("v1", first + 1)
        assert isinstance(tag.time, datetime) and tag.time.tzinfo == timezone.utc
        assert repr(tag) == f'<plimsoll tag "v1" at GLSN {tag.glsn}>'
        for number in range(10):
            prices[b"tea"] = b"%d" % number
        db.flush()
        db.compact()
        again = db.tag("v2", "v1")
        assert (again.glsn, again.time) == (tag.glsn, tag.time)
    with plimsoll.open(path, memory="16MiB") as db:
        assert [tag.name for tag in db.tags()] == ["v1", "v2"]
        assert db.at("v1").keyspace("prices")[b"tea"] == b"1"
        assert db.reset_to("v1") == db.newest
        assert db.keyspace("prices")[b"tea"] == b"1"
        assert list(db.preview_reset("v1")) == []
        db.delete_tag("v1")
        with pytest.raises(plimsoll.InvalidInput, match=r'no tag "v1"; create it by Db.tag'):
            db.at("v1")
        with pytest.raises(plimsoll.InvalidInput, match="no tag"):
            db.delete_tag("v1")


def test_tags_that_cannot_be_made(db: plimsoll.Db) -> None:
    db[b"a"] = b"1"
    for name in ["", "12", "2024-01-31", "yesterday", "a\n", "x" * 256]:
        with pytest.raises(plimsoll.InvalidInput, match="invalid tag name"):
            db.tag(name)
    db.tag("v1", datetime.now())
    with pytest.raises(plimsoll.InvalidInput, match="exists, at GLSN 1"):
        db.tag("v1")
    with pytest.raises(plimsoll.NotYet):
        db.tag("v2", 99)
    with pytest.raises(TypeError, match="name of a tag"):
        db.at(b"v1")  # type: ignore[arg-type]
