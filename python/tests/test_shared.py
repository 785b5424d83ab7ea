"""Several processes on one store, started as programs start them: by "spawn" and by "forkserver"."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import plimsoll

sys.path.insert(0, str(Path(__file__).parent))
import shared_workers

METHODS = ["spawn", "forkserver"]


@pytest.fixture(params=METHODS)
def start(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A way to start processes. Those still alive at the end are killed."""
    context = multiprocessing.get_context(request.param)
    yield context
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def run(context: Any, function: Any, *arguments: Any) -> Any:
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def test_processes_count_together_and_lose_nothing(start: Any, path: str) -> None:
    barrier = start.Barrier(4)
    processes = [run(start, shared_workers.count, path, 100, barrier) for _ in range(3)]
    with shared_workers.open_shared(path) as db:
        barrier.wait(60)
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert db[b"count"] == b"300"
        seen = [int(value) for key, value in db.items() if key != b"count"]
        assert sorted(seen) == list(range(1, 301))
    with plimsoll.open(path, memory="16MiB") as db:
        assert db.verify().ok


def test_a_commit_of_another_process_is_visible_at_once_to_every_read_call(start: Any, path: str) -> None:
    questions, answers = start.Queue(), start.Queue()
    with shared_workers.open_shared(path) as db:
        child = run(start, shared_workers.answer, path, questions, answers)
        pid = answers.get(timeout=60)
        members = {member.pid: member for member in db.members()}
        assert set(members) == {os.getpid(), pid} and members[os.getpid()].is_here and not members[pid].is_here
        assert [member.is_keeper for member in db.members()] == [True, False]
        assert [member.memory_bytes for member in db.members()] == [48 << 20, 48 << 20]
        assert abs(members[pid].since - datetime.now(timezone.utc)) < timedelta(minutes=2)
        assert "follower" in repr(members[pid])
        for number in range(50):
            value = b"%d" % number
            glsn = db.put(b"key", value)
            questions.put(b"key")
            found, is_there, newest = answers.get(timeout=60)
            assert (found, is_there) == ([value] * 5, True) and newest >= glsn
        del db[b"key"]
        questions.put(b"key")
        assert answers.get(timeout=60)[:2] == ([None] * 5, False)
        questions.put(None)
        child.join(60)
        assert child.exitcode == 0
        assert len(db.members()) == 1
    assert plimsoll.members(path) == []


def test_a_killed_process_keeps_what_it_acknowledged_and_blocks_nobody(start: Any, path: str) -> None:
    acknowledged = start.Queue()
    # It is the keeper; a remaining process takes over.
    writer = run(start, shared_workers.write_until_killed, path, acknowledged)
    assert acknowledged.get(timeout=60) == 0
    with shared_workers.open_shared(path) as db:
        last = 0
        while last < 200:
            last = acknowledged.get(timeout=60)
        writer.kill()
        writer.join(60)
        while not acknowledged.empty():
            last = acknowledged.get()
        assert db.count(prefix=b"k/") >= last + 1
        db[b"after"] = b"1"
        deadline = time.monotonic() + 60
        while not db.members()[0].is_keeper or len(db.members()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        db.compact()
        assert db.verify().ok


def test_a_watch_returns_changes_of_other_processes(start: Any, path: str) -> None:
    ready, found = start.Event(), start.Queue()
    with shared_workers.open_shared(path) as db:
        child = run(start, shared_workers.wait_for_one, path, ready, found)
        assert ready.wait(60)
        glsn = db.put(b"news/1", b"rain")
        assert found.get(timeout=60) == (b"news/1", b"rain", glsn)
        child.join(60)
        assert child.exitcode == 0


def test_large_commits_of_another_process_are_applied_while_this_one_reads(path: str) -> None:
    # Buffered commits are visible here once they are durable, at the latest when the other process
    # has closed the store.
    program = """
import sys, plimsoll
with plimsoll.open(sys.argv[1], shared=True, memory_total="96MiB", durability="buffered") as db:
    for turn in range(20):
        db.put_many((b"%06d" % number, b"%02d" % turn + b"x" * 200) for number in range(2_000))
"""
    with shared_workers.open_shared(path) as db:
        db[b"mine"] = b"1"
        with subprocess.Popen([sys.executable, "-c", program, path]) as child:
            while child.poll() is None:
                db.get(b"000000"), db.newest, db.get(b"mine")
                db.snapshot().close()
            assert child.returncode == 0
        assert {value[:2] for _, value in db.items(prefix=b"0")} == {b"19"}


def test_exclusive_and_shared_opens_exclude_each_other(path: str) -> None:
    open_it = "import sys, plimsoll\ntry:\n    plimsoll.open(sys.argv[1], memory='16MiB', shared=sys.argv[2] == '1')\n"
    open_it += "except plimsoll.Locked as error:\n    print(error.pid, error)\n"

    def other(shared: int) -> str:
        command = [sys.executable, "-c", open_it, path, str(shared)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with plimsoll.open(path, memory="16MiB", shared=True):
        assert str(os.getpid()) in other(0) and other(1) == ""
    with plimsoll.open(path, memory="16MiB"):
        assert str(os.getpid()) in other(1)


def test_a_process_beyond_the_memory_total_is_refused(path: str) -> None:
    program = "import sys, plimsoll\nplimsoll.open(sys.argv[1], shared=True, memory_total='30MiB')"
    with plimsoll.open(path, shared=True, memory_total="30MiB"):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
        assert "InvalidInput" in done.stderr and "give a larger total" in done.stderr


def test_an_ordered_transaction_waits_for_no_sync_of_others(path: str) -> None:
    # Writers that serialize on a lock, like ZODB, release it before the commit is durable.
    turn = threading.Lock()
    with shared_workers.open_shared(path) as db:

        def work() -> None:
            for _ in range(100):
                with turn:
                    tx = db.transaction(ordered=True)
                    tx[b"count"] = b"%d" % (int(tx.get(b"count", b"0")) + 1)
                    ticket = tx.commit_submit()
                ticket.wait()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert db[b"count"] == b"400"
