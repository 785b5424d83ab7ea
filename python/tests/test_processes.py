"""Forked children, other start methods, Ctrl-C, the interpreter's end, threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import plimsoll


def run(program: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a program in another interpreter, which receives Ctrl-C even if the tests run in a
    shell's background."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-W", "error", "-c", heard + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)  # type: ignore[call-overload]


def test_a_forked_child_cannot_use_the_store_and_does_not_damage_it(path: str) -> None:
    program = """
import gc, os, sys, plimsoll, warnings
warnings.simplefilter("ignore", DeprecationWarning)
db = plimsoll.open(sys.argv[1], memory="16MiB")
db[b"a"] = b"1"
snapshot, walk, tx, watch, ticket = db.snapshot(), db.items(), db.transaction(), db.watch(), db.log.append_submit(1, b"x")
tx[b"b"] = b"2"
child = os.fork()
if child == 0:
    uses = [lambda: db[b"a"], lambda: db.put(b"a", b"2"), lambda: snapshot[b"a"], lambda: next(walk), lambda: tx.commit(),
            lambda: watch.next(0), lambda: ticket.wait(), lambda: db.close(), lambda: db.stats()]
    for number, use in enumerate(uses):
        try:
            use()
        except plimsoll.UsedAfterFork as error:
            assert "spawn" in str(error)
        else:
            os._exit(number + 1)
    with plimsoll.in_memory() as own:
        own[b"c"] = b"3"
        assert own[b"c"] == b"3"
    del db, snapshot, walk, tx, watch, ticket
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tx.commit()
assert dict(db) == {b"a": b"1", b"b": b"2"} and dict(walk) == {b"a": b"1"}
assert db.verify().ok
db.close()
"""
    done = run(program, path)
    assert (done.returncode, done.stderr) == (0, "")
    with plimsoll.open(path, memory="16MiB") as db:
        assert db[b"b"] == b"2" and db.verify().ok


# Written to a file, because children import the program that started them.
POOL = """
import multiprocessing, sys, plimsoll

def in_child(path):
    with plimsoll.open(path, memory="16MiB", read_only=True) as db:
        return db[b"a"]

if __name__ == "__main__":
    path, method = sys.argv[1:]
    with plimsoll.open(path, memory="16MiB") as db:
        db[b"a"] = b"1"
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(in_child, [path] * 4) == [b"1"] * 4
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_starts_children_that_open_the_store_themselves(
    tmp_path: Path, path: str, method: str
) -> None:
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    command = [sys.executable, "-W", "error", str(program), path, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_is_not_sent_to_other_processes(db: plimsoll.Db) -> None:
    import pickle

    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(db)


@pytest.mark.parametrize(
    "wait",
    ["next(db.watch())", "next(db.log.follow())", "db.log.commits(db.newest + 1).next()", "db.log.follow().next(timeout=60)"],
)
def test_ctrl_c_interrupts_a_wait(path: str, wait: str) -> None:
    program = f"""
import os, signal, sys, threading, time, plimsoll
db = plimsoll.open(sys.argv[1], memory="16MiB")
began = time.monotonic()
try:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    {wait}
except KeyboardInterrupt:
    assert time.monotonic() - began < 50
    db[b"a"] = b"1"
    db.close()
    print("interrupted")
"""
    done = run(program, path)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("interrupted", "", 0)


def test_a_change_that_comes_with_a_signal_is_not_lost(path: str) -> None:
    program = """
import os, signal, sys, threading, time, plimsoll
class Stop(Exception): pass
def stop(*_):
    db[b"a"] = b"1"
    raise Stop
signal.signal(signal.SIGUSR1, stop)
db = plimsoll.open(sys.argv[1], memory="16MiB")
def send(go_on):
    go_on.wait()
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGUSR1)
for _ in range(20):
    watch, go_on = db.watch(), threading.Event()
    threading.Thread(target=send, args=(go_on,)).start()
    try:
        go_on.set()
        watch.next()
    except Stop:
        change = watch.next(timeout=60)
        assert change.glsn == db.newest and watch.position == db.newest + 1
        assert watch.next(timeout=0.001) is None
    else:
        assert False
    watch.close()
db.close()
"""
    done = run(program, path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_ctrl_c_interrupts_a_long_load_which_then_commits_nothing(path: str) -> None:
    program = """
import itertools, os, signal, sys, threading, plimsoll
db = plimsoll.open(sys.argv[1], memory="16MiB")
try:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    db.bulk_load((b"%012d" % n, b"x" * 50) for n in itertools.count())
except KeyboardInterrupt:
    print(len(db), db.verify().ok)
db.close()
"""
    done = run(program, path)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("0 True", "", 0)


def test_ctrl_c_ends_the_pass_of_an_archiver(path: str) -> None:
    program = """
import os, pathlib, signal, sys, threading, time, plimsoll
path, archive = sys.argv[1], pathlib.Path(sys.argv[1] + ".archive")
db = plimsoll.open(path, memory="16MiB")
for number in range(20):
    db[b"%d" % number] = os.urandom(1 << 20)
def interrupt():
    while not any(file.is_file() and file.stat().st_size > 500_000 for file in archive.rglob("*")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    plimsoll.archive(db, archive)
except KeyboardInterrupt:
    print("interrupted")
deadline = time.monotonic() + 60
while True:
    try:
        # A pass that had gone on in the background would have sent everything.
        print(plimsoll.archive(db, archive).objects > 0)
        break
    except plimsoll.Locked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
db.close()
print(plimsoll.verify_archive(archive).ok)
"""
    done = run(program, path)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["interrupted", "True", "True"], "", 0)


def test_the_interpreter_ends_cleanly_with_everything_still_open(path: str) -> None:
    program = """
import sys, threading, plimsoll
db = plimsoll.open(sys.argv[1], memory="16MiB")
db[b"a"] = b"1"
keep = [db.snapshot(), db.items(), db.transaction(), db.watch(), db.log.follow(), db.keyspace("k"), db.history(b"a")]
keep[2][b"b"] = b"2"
cache = plimsoll.Cache(sys.argv[1] + ".cache", memory="16MiB")
open_one = cache.transact()
open_one.__enter__()
cache["a"] = 1
def wait():
    try:
        keep[3].next()
    except plimsoll.Closed:
        pass
threading.Thread(target=wait, daemon=True).start()
class Late:
    def __del__(self):
        try:
            db[b"late"]
        except Exception:
            pass
late = Late()
sys.late = late
"""
    for _ in range(5):
        done = run(program, path)
        assert (done.returncode, done.stderr) == (0, "")
    with plimsoll.open(path, memory="16MiB") as db:
        assert dict(db) == {b"a": b"1"} and db.warnings == []


def test_a_killed_process_loses_nothing_that_was_committed(path: str) -> None:
    program = """
import os, sys, plimsoll
db = plimsoll.open(sys.argv[1], memory="16MiB")
for number in range(10_000_000):
    db[b"%08d" % number] = b"x"
    os.write(1, b"%d\\n" % number)
"""
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    last = -1
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            last = int(line)
            if last == 200:
                process.send_signal(signal.SIGKILL)
    with plimsoll.open(path, memory="16MiB") as db:
        assert len(db) in (last + 1, last + 2)


def test_many_threads_share_a_store(db: plimsoll.Db) -> None:
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(200):
                key = b"%d/%03d" % (worker, number)
                db[key] = key
                assert db[key] == key and db.get_many([key]) == [key]
                if number % 50 == 0:
                    assert db.count(prefix=b"%d/" % worker) == number + 1
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and len(db) == 1_200


def test_other_threads_run_while_one_waits_for_the_disk_or_a_change(db: plimsoll.Db) -> None:
    ticks, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    works: dict[str, Callable[[], object]] = {
        "news": lambda: db.log.follow().next(timeout=0.1),
        "a commit": lambda: db.put_many((b"%06d" % number, b"x" * 100) for number in range(20_000)),
        "a compaction": lambda: db.compact(),
    }
    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    # With this interval, other threads run only while this thread has released the GIL.
    sys.setswitchinterval(1_000)
    try:
        thread.start()
        for name, work in works.items():
            before, until = ticks, time.monotonic() + 30
            # On a busy machine the other thread may get no processor the first time.
            while ticks == before and time.monotonic() < until:
                work()
            assert ticks > before, name
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_one_transaction_used_by_several_threads_keeps_all_writes(db: plimsoll.Db) -> None:
    tx = db.transaction()

    def work(worker: int) -> None:
        for number in range(300):
            tx[b"%d/%d" % (worker, number)] = b"x" * 1_000
            assert tx[b"%d/%d" % (worker, number)]

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tx.commit()
    assert len(db) == 1_200


def test_a_fork_in_a_thread_of_a_busy_store_hangs_neither(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", durability="buffered") as db, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                db[b"%d" % (number % 1_000)] = b"x" * 500
                number += 1

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    db[b"1"]
                except plimsoll.UsedAfterFork:
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        thread.join()
        assert db.verify().ok
