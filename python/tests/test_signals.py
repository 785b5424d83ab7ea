"""A signal handler may raise at any point where Python runs handlers. The writer turn is released
even then."""

from __future__ import annotations

import collections
import contextlib
import dis
import gc
import inspect
import itertools
import operator
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import ZODB
from persistent.mapping import PersistentMapping
from ZODB.Connection import TransactionMetaData

import plimsoll
from plimsoll.cache import _store
from plimsoll.zodb import PlimsollStorage

OURS = (str(Path(plimsoll.__file__).parent), contextlib.__file__)


class Interrupted(Exception):
    """Raised by the signal handler."""


class Handler:
    """A handler that raises at the `number`th place where Python would run it: at the start of a
    function, when a generator resumes, and after a call."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.last: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            # If a generator resumes, an exception raised here would bypass its handlers.
            if not _is_generator(frame.f_code):
                self.at_a_place()
        elif event == "opcode":
            before = self.last.get(frame)
            self.last[frame] = frame.f_lasti
            goes_on = _is_generator(frame.f_code) and _name(frame.f_code, frame.f_lasti) == "RESUME"
            if goes_on or (before is not None and _name(frame.f_code, before).startswith("CALL")):
                self.at_a_place()
        return self.trace

    def at_a_place(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted


def _name(code: CodeType, at: int) -> str:
    return dis.opname[code.co_code[at]]


def _is_generator(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_GENERATOR)


def interrupted_everywhere(work: Callable[[], object], least: int = 30) -> Iterator[bool]:
    """Repeats `work` with a handler that raises one place later each time, until the place is not
    reached. Yields whether it raised."""
    number = 0
    while True:
        number += 1
        handler = Handler(number)
        previous = sys.gettrace()
        # Keep the exception with its frames, as an interactive interpreter does.
        kept: Interrupted | None = None
        # No garbage collection in `work`: it would free objects of other tests, and an exception in
        # a `__del__` is lost.
        gc.disable()
        sys.settrace(handler.trace)
        try:
            work()
        except Interrupted as error:
            kept = error
        finally:
            sys.settrace(previous)
            gc.enable()
        raised = kept is not None
        yield raised
        if handler.left > 0:
            # All of it, without an interruption.
            assert number > least and not raised
            return


def done_by_another_thread(work: Callable[[], object]) -> bool:
    """Whether another thread can do `work` without waiting."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


@contextlib.contextmanager
def interrupted_soon(seconds: float = 0.02) -> Iterator[None]:
    """A signal after this time must end the block."""

    def handler(_number: int, _frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_signal_ends_a_read_of_many_keys(db: plimsoll.Db) -> None:
    keys = itertools.repeat(b"a", 3_000_000)
    with interrupted_soon():
        db.get_many(keys)
    assert operator.length_hint(keys) > 0


def test_a_signal_ends_an_iteration_over_differences(db: plimsoll.Db) -> None:
    db.put_many((b"%d" % number, b"1") for number in range(100_000))
    differences = db.diff(0, db.newest)
    with interrupted_soon():
        collections.deque(differences, maxlen=0)
    assert next(differences, None) is not None


def test_a_signal_ends_an_iteration_over_a_history(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", durability="buffered") as db:
        for number in range(60_000):
            db[b"a"] = b"%d" % number
        history = db.history(b"a")
        # All of it takes some 20 ms.
        with interrupted_soon(0.002):
            collections.deque(history, maxlen=0)
        assert next(history, None) is not None


@pytest.mark.parametrize("feed", ["watch()", "log.follow(stream=7)"])
def test_a_waiting_thread_ends_quietly_at_interpreter_exit(path: str, feed: str) -> None:
    program = f"""
import sys, threading, time, plimsoll
db = plimsoll.open(sys.argv[1], memory="16MiB")
waits = threading.Event()
def follow():
    feed = db.{feed}
    waits.set()
    for _ in feed:
        pass
threading.Thread(target=follow, daemon=True).start()
waits.wait()
time.sleep(0.1)
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shared", [True, False])
def test_a_cache_is_free_after_an_interrupted_write(path: str, shared: bool) -> None:
    cache = plimsoll.Cache(path, memory="16MiB", shared=shared)
    count = 0

    def write() -> None:
        cache.set("key", count)

    for _ in interrupted_everywhere(write):
        count += 1
        assert done_by_another_thread(lambda: cache.set("other", count, retry=True)), count
        assert cache["other"] == count
    assert cache["key"] == count - 1 and len(cache) == 2 and cache.check() == []
    cache.close()
    assert _store._stores == {}, "the interrupted writes do not count as under way"


def test_a_cache_whose_close_was_interrupted_is_written_to(path: str) -> None:
    cache = plimsoll.Cache(path, memory="16MiB")
    cache.set("key", 0)
    for count, _ in enumerate(interrupted_everywhere(cache.close, 10)):
        assert done_by_another_thread(lambda: cache.set("key", count, retry=True)), count  # noqa: B023
        assert cache["key"] == count
    assert len(cache) == 1 and cache.check() == []
    cache.close()
    assert _store._stores == {}, "the interrupted closes and opens do not count as users"


def test_a_close_that_was_interrupted_is_done_by_the_next_one(path: str) -> None:
    cache = plimsoll.Cache(path, memory="16MiB")
    cache.set("key", 0)
    for _ in interrupted_everywhere(cache.close, 10):
        cache.close()
        assert _store._stores == {}
        assert cache["key"] == 0
    cache.close()


def test_a_cache_whose_opening_was_interrupted_is_closed_by_its_close(path: str) -> None:
    cache = plimsoll.Cache(path, memory="16MiB")
    cache.set("key", 0)
    cache.close()
    for _ in interrupted_everywhere(lambda: cache["key"]):
        assert cache["key"] == 0
        cache.close()
        assert _store._stores == {}


def test_counters_are_right_after_an_interrupted_abort(path: str) -> None:
    cache = plimsoll.Cache(path, memory="16MiB", shared=False)
    cache.set("key", 0)

    def write_in_vain() -> None:
        with contextlib.suppress(ZeroDivisionError), cache.transact():
            cache.set("other", 0)
            raise ZeroDivisionError

    for _ in interrupted_everywhere(write_in_vain):
        assert done_by_another_thread(lambda: cache.set("key", 1, retry=True))
        assert len(cache) == 1 and cache.check() == []
    cache.close()


def test_a_zodb_is_free_after_an_interrupted_commit_was_aborted(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    with db.transaction() as connection:
        connection.root()["other"] = PersistentMapping()
    oid = storage.new_oid()
    data = storage.load(b"\0" * 8)[0]
    serial = b"\0" * 8
    txn = TransactionMetaData()
    tids = []

    def write() -> None:
        storage.tpc_begin(txn)
        storage.store(oid, serial, data, "", txn)
        storage.tpc_vote(txn)
        tids.append(storage.tpc_finish(txn))

    def write_other() -> None:
        with db.transaction() as connection:
            connection.root()["other"][0] = len(tids)

    for count, raised in enumerate(interrupted_everywhere(write)):
        if raised:
            storage.tpc_abort(txn)
        assert done_by_another_thread(write_other), count
        txn = TransactionMetaData()
        with contextlib.suppress(KeyError):
            serial = storage.load(oid)[1]
    assert storage.load(oid)[1] == tids[-1]
    db.close()
