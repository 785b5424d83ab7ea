"""Archives: each moment comes back, and what is wrong is told."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import plimsoll
import pytest


def test_any_archived_moment_is_restored(tmp_path: Path) -> None:
    store, url = tmp_path / "store", f"file://{tmp_path}/archive"
    with plimsoll.open(store, memory="16MiB") as db:
        first = db.put(b"a", b"one")
        assert plimsoll.archive(db, url).with_index
        time = datetime.datetime.now(datetime.timezone.utc)
        last = db.put(b"a", b"two")
        report = plimsoll.archive(db, tmp_path / "archive")
        assert (report.glsn, report.with_index, report.damage) == (last, False, [])
        assert plimsoll.archive(db, url).objects == 0
    for number, (at, value) in enumerate([(None, b"two"), (first, b"one"), (time, b"one")]):
        new = tmp_path / f"new{number}"
        restored = plimsoll.restore_archive(new, url, at=at, memory="16MiB")
        assert (restored.whole, restored.damage, restored.problems) == (True, [], [])
        with plimsoll.open(new, memory="16MiB", create=False) as db:
            assert (db.newest, db[b"a"]) == (restored.glsn, value)


def test_a_verification_names_damage(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    with plimsoll.open(store, memory="16MiB") as db:
        glsn = db.put(b"a", b"one")
        plimsoll.archive(db, archive)
    seen: list[tuple[int, int]] = []
    report = plimsoll.verify_archive(archive, progress=lambda done, total: seen.append((done, total)))
    assert report.ok and report.restorable == [(0, glsn)] and report.objects > 0 and seen
    segment = next((archive / "segments").iterdir())
    segment.write_bytes(segment.read_bytes()[:-1])
    report = plimsoll.verify_archive(archive)
    assert not report.ok and [name for name, _ in report.damage] == [f"segments/{segment.name}"]


def test_wrong_places_and_moments_are_refused(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    with plimsoll.open(store, memory="16MiB") as db:
        glsn = db.put(b"a", b"one")
        plimsoll.archive(db, archive)
        with pytest.raises(plimsoll.InvalidInput, match="inside the store"):
            plimsoll.archive(db, store / "archive")
        with pytest.raises(plimsoll.InvalidInput, match="--features cloud"):
            plimsoll.archive(db, "s3://bucket/archive")
    with plimsoll.open(tmp_path / "other", memory="16MiB") as other:
        with pytest.raises(plimsoll.InvalidInput, match="of another store"):
            plimsoll.archive(other, archive)
    with pytest.raises(plimsoll.InvalidInput, match="in memory"):
        plimsoll.archive(plimsoll.in_memory(), archive)
    new = tmp_path / "new"
    with pytest.raises(plimsoll.InvalidInput, match="no archive here"):
        plimsoll.restore_archive(new, tmp_path / "none")
    with pytest.raises(plimsoll.InvalidInput, match="not in the archive"):
        plimsoll.restore_archive(new, archive, at=glsn + 1)
    with pytest.raises(TypeError, match="tags"):
        plimsoll.restore_archive(new, archive, at="v1")  # type: ignore[arg-type]
    with pytest.raises(plimsoll.InvalidInput, match="destination exists"):
        plimsoll.restore_archive(store, archive)
    assert not new.exists()


def test_the_time_to_keep_is_a_timedelta(tmp_path: Path) -> None:
    with plimsoll.open(tmp_path / "store", memory="16MiB") as db:
        for number in range(3):
            db.put(b"a", b"%d" % number)
            report = plimsoll.archive(db, tmp_path / "archive", keep=datetime.timedelta(days=30))
        with pytest.raises(TypeError):
            plimsoll.archive(db, tmp_path / "archive", keep=30)  # type: ignore[arg-type]
        assert report.glsn == db.newest
    assert plimsoll.verify_archive(tmp_path / "archive").restorable == [(0, report.glsn)]


def test_other_threads_go_on_meanwhile(tmp_path: Path) -> None:
    with plimsoll.open(tmp_path / "store", memory="16MiB") as db:
        db.put_many((b"%d" % key, b"x" * 1000) for key in range(20_000))
        thread = threading.Thread(target=plimsoll.archive, args=(db, tmp_path / "archive"))
        thread.start()
        for key in range(100):
            db.put(b"beside", b"%d" % key)
        thread.join()
    assert plimsoll.verify_archive(tmp_path / "archive").ok
