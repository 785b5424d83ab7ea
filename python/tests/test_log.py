"""Streams of the log, commits, followers, watches."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import plimsoll


def test_streams_and_commits_have_one_order(db: plimsoll.Db) -> None:
    first, last = db.log.append(7, b"a", bytearray(b"b"))
    glsn = db.put(b"key", b"value")
    db.log.append(8, b"c")
    assert (last, glsn) == (first + 1, last + 1)
    assert [entry.payload for entry in db.log.scan(stream=7)] == [b"a", b"b"]
    entries = list(db.log.scan(first))
    assert [(entry.glsn - first, entry.stream) for entry in entries] == [(0, 7), (1, 7), (2, 0), (3, 8)]
    assert [entry.glsn for entry in db.log.scan(first, last)] == [first]
    entry = db.log.read(first)
    assert (entry.payload, entry.stream, entry.time.tzinfo is not None) == (b"a", 7, True)
    assert db.log.commit(first) is None
    bounds = db.log.bounds
    assert bounds.next == first + 4 and bounds.durable == first + 3


def test_scans_cross_batches(db: plimsoll.Db) -> None:
    for _ in range(5):
        db.log.append(1, *(b"%d" % number for number in range(1000)))
    assert sum(1 for _ in db.log.scan(stream=1)) == 5_000


def test_commits_are_read_back_with_their_changes(db: plimsoll.Db) -> None:
    start = db.newest + 1
    with db.transaction(metadata=b"why") as tx:
        tx[b"a"] = b"1"
        tx[b"big"] = b"x" * 100_000
    db.delete(b"a")
    first, second = db.log.commits(start)
    assert first.metadata == b"why" and [change.key for change in first] == [b"a", b"big"]
    assert [change.size for change in first.changes()] == [1, 100_000]
    assert [change.value() for change in first][1] == b"x" * 100_000
    (change,) = second
    assert change.deleted and change.size is None and change.value() is None and change.keyspace == "default"
    feed = db.log.commits(start, keyspace="default", prefix=b"b")
    assert [[change.key for change in commit] for commit in feed] == [[b"big"]]
    assert feed.next(timeout=0) is None
    with pytest.raises(plimsoll.InvalidInput):
        db.log.commits(prefix=b"b")


def test_a_feed_waits_and_continues(db: plimsoll.Db) -> None:
    feed = db.log.commits(db.newest + 1)
    assert list(feed) == []
    thread = threading.Timer(0.2, lambda: db.put(b"later", b""))
    thread.start()
    commit = feed.next(timeout=60)
    thread.join()
    assert commit is not None and [change.key for change in commit] == [b"later"]
    assert feed.position == db.newest + 1


def test_followers_wake_and_time_out(db: plimsoll.Db) -> None:
    follow = db.log.follow(stream=2)
    started = time.monotonic()
    assert follow.next(timeout=0.2) is None and time.monotonic() - started >= 0.2
    thread = threading.Timer(0.1, lambda: db.log.append(2, b"entry"))
    thread.start()
    assert next(follow).payload == b"entry"
    thread.join()


def test_cursors_retain_the_log(db: plimsoll.Db) -> None:
    start = db.log.cursor("mailer", 1)
    for number in range(3):
        db[b"%d" % number] = b""
    assert start == 1 and db.log.cursors() == {"mailer": 1}
    db.log.advance_cursor("mailer", 3)
    assert db.log.cursor("mailer") == 3
    assert db.log.trim(db.newest) <= 3
    db.log.drop_cursor("mailer")
    assert db.log.cursors() == {}


def test_a_watch_gives_each_change_once_in_order(db: plimsoll.Db) -> None:
    with db.watch(b"user/") as watch:
        db.update({b"user/a": b"1", b"other": b"", b"user/b": b"2"})
        db.delete(b"user/a")
        seen = [next(watch) for _ in range(3)]
        assert [(change.key, change.value()) for change in seen] == [
            (b"user/a", b"1"),
            (b"user/b", b"2"),
            (b"user/a", None),
        ]
        assert watch.next(timeout=0) is None
        again = db.watch(b"user/", start=seen[0].glsn)
        assert next(again).key == b"user/a" and again.position == seen[0].glsn
        assert next(again).key == b"user/b" and again.position == seen[0].glsn + 1
    with pytest.raises(plimsoll.Closed):
        watch.next()
    assert list(watch) == []


def test_a_watch_with_expiries_returns_them_among_the_changes(db: plimsoll.Db) -> None:
    with db.watch(b"user/", expiries=True) as watch, db.watch(b"user/") as without:
        put = db.put(b"user/a", b"1", ttl=0.2)
        db.put(b"user/b", b"2", ttl=0.2)
        db.persist(b"user/b")
        seen = [watch.next(timeout=60) for _ in range(4)]
        assert [(change.key, change.expired) for change in seen if change] == [
            (b"user/a", False),
            (b"user/b", False),
            (b"user/b", False),
            (b"user/a", True),
        ]
        expiry = seen[3]
        assert expiry is not None
        assert (expiry.glsn, expiry.deleted, expiry.value(), expiry.size) == (put, True, None, None)
        assert expiry.time == expiry.expires and "expired" in repr(expiry)
        assert watch.next(timeout=0) is None
        assert [without.next(timeout=0) is None for _ in range(4)] == [False, False, False, True]
        assert watch.position == without.position
    with pytest.raises(plimsoll.InvalidInput, match="only for keys of one keyspace on main"):
        db.create_branch("draft").watch(expiries=True)


def test_an_asyncio_watch_returns_expiries(db: plimsoll.Db) -> None:
    async def expired_key() -> bytes:
        async with db.watch_async(expiries=True) as watch:
            db.put(b"a", b"1", ttl=0.1)
            async for change in watch:
                if change.expired:
                    return change.key
        return b""

    assert asyncio.run(expired_key()) == b"a"


def test_closing_a_watch_ends_its_waiters(db: plimsoll.Db) -> None:
    watch = db.watch()
    timer = threading.Timer(0.2, watch.close)
    timer.start()
    assert list(watch) == []
    timer.join()


def test_closing_the_store_ends_a_watch(path: str) -> None:
    db = plimsoll.open(path, memory="16MiB")
    watch = db.watch()
    timer = threading.Timer(0.2, db.close)
    timer.start()
    with pytest.raises(plimsoll.Closed):
        next(watch)
    timer.join()


def test_an_asyncio_watch_loses_no_change_if_a_task_is_cancelled(db: plimsoll.Db) -> None:
    async def main() -> list[bytes]:
        seen = []
        async with db.watch_async(b"k") as watch:
            for number in range(20):
                waiting = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0.01)
                if number % 3 == 0:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                    await asyncio.to_thread(db.put, b"k%02d" % number, b"")
                    await asyncio.sleep(0.01)
                    seen.append((await anext(watch)).key)
                else:
                    await asyncio.to_thread(db.put, b"k%02d" % number, b"")
                    seen.append((await waiting).key)
        return seen

    assert asyncio.run(main()) == [b"k%02d" % number for number in range(20)]


def test_a_second_task_waiting_for_a_watch_gets_an_error(db: plimsoll.Db) -> None:
    async def main() -> list[bytes]:
        async with db.watch_async() as watch:
            first, second = (asyncio.ensure_future(anext(watch)) for _ in range(2))
            with pytest.raises(RuntimeError, match="another task"):
                await asyncio.wait_for(second, 60)
            await asyncio.to_thread(db.put, b"a", b"")
            seen = [(await asyncio.wait_for(first, 60)).key]
            first.cancel()
            await asyncio.to_thread(db.put, b"b", b"")
            return [*seen, (await asyncio.wait_for(anext(watch), 60)).key]

    assert asyncio.run(main()) == [b"a", b"b"]


def test_the_event_loop_runs_while_a_watch_waits(db: plimsoll.Db) -> None:
    async def main() -> int:
        ticks = 0
        async with db.watch_async() as watch:
            waiting = asyncio.ensure_future(anext(watch))
            while not waiting.done() and ticks < 20:
                await asyncio.sleep(0.01)
                ticks += 1
            db[b"a"] = b"1"
            assert (await waiting).key == b"a"
        return ticks

    assert asyncio.run(main()) == 20


def test_asyncio_watches_use_no_threads_of_the_pool(db: plimsoll.Db) -> None:
    async def main() -> list[bytes]:
        go_on = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(pool)
            # The only thread of the pool is busy.
            busy = loop.run_in_executor(None, go_on.wait)
            watches = [db.watch_async(b"%d/" % number) for number in range(40)]
            waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
            await asyncio.sleep(0)
            for number in range(40):
                db[b"%d/" % number] = b"1"
            try:
                return [change.key for change in await asyncio.wait_for(asyncio.gather(*waiting), 60)]
            finally:
                go_on.set()
                await busy

    assert asyncio.run(main()) == [b"%d/" % number for number in range(40)]


def test_the_thread_of_a_watch_ends_with_it(db: plimsoll.Db) -> None:
    def waiting() -> int:
        return sum(thread.name == "plimsoll-watch" for thread in threading.enumerate())

    async def look() -> None:
        async for _ in db.watch_async():
            pass

    async def main() -> None:
        task = asyncio.create_task(look())
        while not waiting():
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    began = time.monotonic()
    while waiting():
        gc.collect()
        assert time.monotonic() - began < 60
        time.sleep(0.01)


def test_several_threads_wait_on_one_watch(db: plimsoll.Db) -> None:
    watch = db.watch()
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(next, watch) for _ in range(2)]
        # Ends although another one waits without end.
        assert pool.submit(watch.next, timeout=0.05).result() is None
        assert watch.next(timeout=0.05) is None
        assert watch.position == db.newest + 1
        db.put_many([(b"a", b"1"), (b"b", b"2")])
        assert {change.result(60).key for change in found} == {b"a", b"b"}
        last = pool.submit(next, watch, None)
        watch.close()
        assert last.result(60) is None


@pytest.mark.parametrize("shared", [False, True])
def test_a_waiter_sleeps_until_a_change_arrives(path: str, shared: bool) -> None:
    # Threads that other tests have left are not counted.
    others = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}

    def switches() -> int:
        """Voluntary context switches of this thread and the store's threads."""
        lines: list[str] = []
        for thread in set(os.listdir("/proc/self/task")) - others:
            # The thread may have ended.
            with suppress(FileNotFoundError, ProcessLookupError):
                lines += Path(f"/proc/self/task/{thread}/status").read_text().split("\n")
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))

    # The pool is closed last: once the store is closed, none of its threads waits.
    with ThreadPoolExecutor(1) as pool, plimsoll.open(path, memory="16MiB", shared=shared) as db, db.watch() as watch:
        waiting = pool.submit(db.log.follow().next)
        before = switches()
        assert watch.next(timeout=3) is None
        # Polling ten times a second would take sixty.
        assert switches() - before < 40
        db[b"a"] = b"1"
        entry = waiting.result(60)
        assert entry is not None and entry.glsn == db.newest


def test_a_watch_gives_a_commit_that_could_not_be_read_at_first(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", warm=False) as db:
        start = db.newest + 1
        with db.transaction() as tx:
            tx.put_many((b"%05d" % number, b"x" * 100) for number in range(30_000))
        db[b"later"] = b""
    blob = max(Path(path, "log").glob("*.blob"), key=lambda file: file.stat().st_size)
    whole = blob.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    with plimsoll.open(path, memory="16MiB", warm=False) as db:
        blob.write_bytes(damaged)
        watch, other = db.watch(start=start), db.watch_async(start=start)

        async def fails() -> None:
            with pytest.raises(plimsoll.Corrupt):
                await anext(other)

        for _ in range(2):
            with pytest.raises(plimsoll.Corrupt):
                watch.next(timeout=0)
            asyncio.run(fails())
            assert (watch.position, other.position) == (start, start)
        blob.write_bytes(whole)

        async def first() -> plimsoll.Change:
            return await anext(other)

        assert asyncio.run(first()).key == b"00000"
        assert [watch.next(timeout=0).key for _ in range(30_001)] == [b"%05d" % number for number in range(30_000)] + [b"later"]  # type: ignore[union-attr]
        assert watch.position == start + 2
        other.close()


def test_a_scan_gives_the_entries_before_damage(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", warm=False) as db:
        first = min(db.log.append(1, *(b"%d" % number * 20 for number in range(300)))[0] for _ in range(5))
    with plimsoll.open(path, memory="16MiB", warm=False) as db:
        (segment,) = Path(path, "log").glob("*.seg")
        bytes_of = bytearray(segment.read_bytes())
        bytes_of[40_000] ^= 1
        segment.write_bytes(bytes_of)
        scan = db.log.scan(stream=1)
        found = []
        for _ in range(2):
            with pytest.raises(plimsoll.Corrupt) as caught:
                for entry in scan:
                    found.append(entry.glsn)
        assert caught.value.glsn is not None
        assert found == list(range(first, caught.value.glsn)) != []
