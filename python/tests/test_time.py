"""Earlier moments, history, differences, retention."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

import plimsoll


def test_every_moment_can_be_read(db: plimsoll.Db) -> None:
    glsns = [db.put(b"count", b"%d" % number) for number in range(50)]
    for number, glsn in enumerate(glsns):
        with db.at(glsn) as then:
            assert then[b"count"] == b"%d" % number and then.glsn == glsn
    assert b"count" not in db.at(glsns[0] - 1)


def test_a_time_is_a_moment_with_and_without_a_zone(db: plimsoll.Db) -> None:
    db[b"tea"] = b"3.10"
    time.sleep(0.01)
    between = datetime.now(timezone.utc)
    time.sleep(0.01)
    db[b"tea"] = b"3.20"
    local = between.astimezone().replace(tzinfo=None)
    for moment in (between, local):
        assert db.at(moment)[b"tea"] == b"3.10"
    written = db.at(db.newest).time
    assert written is not None and written.tzinfo is timezone.utc and abs(written - between) < timedelta(seconds=10)
    for early in (datetime(1969, 1, 1, tzinfo=timezone.utc), datetime(2001, 1, 1, tzinfo=timezone.utc)):
        with pytest.raises(plimsoll.InvalidInput, match="is before the first commit"):
            db.at(early)


def test_an_early_time_on_a_trimmed_log_is_refused_with_a_moment_that_can_be_read(db: plimsoll.Db) -> None:
    db[b"tea"] = b"3.10"
    newest = db.newest
    db.log.trim(newest + 1)
    with pytest.raises(plimsoll.Trimmed, match="times before .* can no longer be looked up") as caught:
        db.at(datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert (caught.value.asked, caught.value.first) == (None, newest)
    assert db.at(caught.value.first)[b"tea"] == b"3.10"


def test_versions_of_a_dropped_keyspace_are_read(db: plimsoll.Db) -> None:
    rows = db.keyspace("rows")
    first = rows.put(b"tea", b"3.10")
    db.drop_keyspace("rows")
    rows = db.keyspace("rows")
    second = rows.put(b"tea", b"3.20")
    assert [version.value() for version in rows.history(b"tea")] == [b"3.20", None, b"3.10"]
    (changed,) = rows.diff(first, second)
    assert changed.before is not None and changed.after is not None
    assert (changed.before.value(), changed.after.value()) == (b"3.10", b"3.20")


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "America/New_York", None, "fixed"])
def test_the_first_and_the_last_datetime_are_moments_in_every_zone(
    db: plimsoll.Db, monkeypatch: pytest.MonkeyPatch, zone: str | None
) -> None:
    db[b"a"] = b"1"
    for local in ("Pacific/Kiritimati", "Etc/GMT+12"):
        monkeypatch.setenv("TZ", local)
        time.tzset()
        tz = None if zone is None else timezone(timedelta(hours=-23, minutes=-59)) if zone == "fixed" else ZoneInfo(zone)
        with pytest.raises(plimsoll.InvalidInput, match="before the first commit"):
            db.at(datetime.min.replace(tzinfo=tz))
        assert db.at(datetime.max.replace(tzinfo=tz))[b"a"] == b"1"
    monkeypatch.undo()
    time.tzset()
    with pytest.raises(plimsoll.InvalidInput, match="that large"):
        db.at(10**5000)


def test_moments_that_do_not_exist_say_so(db: plimsoll.Db) -> None:
    newest = db.put(b"a", b"1")
    with pytest.raises(plimsoll.NotYet) as caught:
        db.at(newest + 1)
    assert (caught.value.asked, caught.value.newest) == (newest + 1, newest)
    for wrong in (b"yesterday", 1.5, True, None):
        with pytest.raises(TypeError, match="moment"):
            db.at(wrong)  # type: ignore[arg-type]
    for wrong in (-1, 2**64):
        with pytest.raises(plimsoll.InvalidInput, match=rf"from 0 to 2\*\*64 - 1, not {wrong}"):
            db.at(wrong)
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    assert db.at(tomorrow).glsn == newest


def test_history_and_differences_name_their_commits(db: plimsoll.Db) -> None:
    first = db.put(b"tea", b"3.10")
    second = db.delete(b"tea")
    third = db.put(b"tea", b"3.20" * 1000)
    versions = list(db.history(b"tea"))
    assert [version.glsn for version in versions] == [third, second, first]
    assert [version.deleted for version in versions] == [False, True, False]
    assert [version.size for version in versions] == [4000, None, 4]
    assert [version.value() for version in versions] == [b"3.20" * 1000, None, b"3.10"]
    assert all(version.key == b"tea" and version.time is not None for version in versions)
    (difference,) = db.diff(first, third)
    assert (difference.key, difference.by) == (b"tea", third)
    assert difference.before is not None and difference.before.value() == b"3.10"
    assert list(db.diff(first, third, b"coffee")) == []
    (gone,) = db.diff(first, second)
    assert gone.after is None and gone.by == second


def test_the_versions_of_open_snapshots_have_values(db: plimsoll.Db) -> None:
    sessions = db.keyspace("sessions", retention="latest")
    sessions.put(b"a", b"0")
    with db.snapshot() as snapshot:
        for number in range(1, 9):
            sessions.put(b"a", b"%d" % number)
        db.flush()
        db.compact()
        assert [version.value() for version in sessions.history(b"a")] == [b"8", b"0"]
        assert snapshot.keyspace("sessions")[b"a"] == b"0"


def test_a_keyspace_with_retention_latest_refuses_earlier_moments(db: plimsoll.Db) -> None:
    sessions = db.keyspace("sessions", retention="latest")
    first = sessions.put(b"a", b"1")
    sessions.put(b"a", b"2")
    db.flush()
    db.compact()
    with pytest.raises(plimsoll.Trimmed) as caught:
        db.at(first).keyspace("sessions")[b"a"]
    assert caught.value.asked == first < caught.value.first


@pytest.mark.parametrize("retention", ["forever", "latest", 1000, timedelta(days=30)])
def test_retentions_come_back_as_they_were_given(db: plimsoll.Db, retention: str | int | timedelta) -> None:
    space = db.keyspace("space", retention=retention)  # type: ignore[arg-type]
    assert space.retention == retention
    other = "latest" if retention != "latest" else 7
    with pytest.raises(plimsoll.InvalidInput):
        db.keyspace("space", retention=other)  # type: ignore[arg-type]
    space.retention = other  # type: ignore[assignment]
    assert space.retention == other
    for wrong in ("sometimes", -1, 1.5, True):
        with pytest.raises((plimsoll.InvalidInput, OverflowError), match="retention|convert"):
            db.set_retention("space", wrong)  # type: ignore[arg-type]


def test_a_snapshot_holds_its_moment_until_it_is_closed(db: plimsoll.Db) -> None:
    latest = db.keyspace("latest", retention="latest")
    latest[b"a"] = b"1"
    snapshot = db.snapshot()
    then = snapshot.keyspace("latest")
    latest[b"a"] = b"2"
    db.flush()
    db.compact()
    assert then[b"a"] == b"1" and latest[b"a"] == b"2"
    snapshot.close()
    snapshot.close()
    for use in (lambda: then[b"a"], lambda: list(snapshot), lambda: snapshot.time):
        with pytest.raises(plimsoll.Closed):
            use()


def _rewrite_all(space: plimsoll.Keyspace, db: plimsoll.Db, rounds: int = 2) -> None:
    """Drops the versions that the retention does not keep."""
    for _ in range(rounds):
        space.put_many((b"x%d" % number, b"y") for number in range(50))
        db.flush()
        db.compact()


def test_the_newest_version_is_read_with_retention_latest(db: plimsoll.Db) -> None:
    latest = db.keyspace("latest", retention="latest")
    latest[b"tea"] = b"3.10"
    _rewrite_all(latest, db)
    history = latest.history(b"tea")
    version = next(history)
    assert version.value() == b"3.10"
    # An open iterator retains its moment.
    latest[b"tea"] = b"3.20"
    _rewrite_all(latest, db)
    assert version.value() == b"3.10"
    assert [found.value() for found in latest.history(b"tea")][0] == b"3.20"


def test_the_version_current_at_the_start_of_the_retention_is_read(db: plimsoll.Db) -> None:
    space = db.keyspace("space", retention=20)
    space[b"tea"] = b"1"
    for number in range(100):
        space[b"x%d" % number] = b"y"
    before = db.newest
    after = space.put(b"tea", b"2")
    third = space.put(b"tea", b"3")
    _rewrite_all(space, db)
    assert [version.value() for version in space.history(b"tea")] == [b"3", b"2", b"1"]
    (found,) = space.diff(before, after)
    assert found.before is not None and found.after is not None
    assert (found.before.value(), found.after.value()) == (b"1", b"2")
    (back,) = space.diff(third, before)
    assert back.before is not None and back.after is not None
    assert (back.before.value(), back.after.value()) == (b"3", b"1")
