"""A ZODB that several processes have open at once."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transaction
import ZODB
from ZODB.POSException import POSKeyError, ReadOnlyError

import plimsoll
from plimsoll.zodb import PlimsollStorage

sys.path.insert(0, str(Path(__file__).parent))
import zodb_workers
from zodb_workers import check_bank, make_bank, storage

CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Kills the processes of a test that ends."""
    transaction.abort()
    yield
    transaction.abort()
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def run(*calls: tuple[Any, ...]) -> None:
    """Runs calls, each in a process of its own, to their ends."""
    processes = [CONTEXT.Process(target=function, args=arguments) for function, *arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0


class Worker:
    """A process that is killed and restarted repeatedly, and the messages it has sent."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.told: list[Any] = []
        self.start()

    def start(self) -> None:
        """Starts it again."""
        self.pipe, end = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=self.function, args=(*self.arguments, random.randrange(1 << 30), end))
        self.process.start()
        end.close()

    def listen(self) -> None:
        """Receives its messages."""
        try:
            while self.pipe.poll():
                self.told.append(self.pipe.recv())
        except EOFError:
            pass

    def kill(self) -> None:
        """Kills it at an arbitrary point."""
        assert self.process.exitcode is None, "it ended by itself: see its output"
        self.process.kill()
        self.process.join()
        self.listen()
        self.pipe.close()


def test_writers_and_readers_in_many_processes_that_are_killed_keep_a_bank_in_order(path: str) -> None:
    random.seed(17)
    make_bank(path)
    writers = [Worker(zodb_workers.write, path, writer) for writer in range(4)]
    readers = [Worker(zodb_workers.read, path) for _ in range(4)]
    db = ZODB.DB(storage(path))
    connection = db.open()
    kills, packs, start = 0, 0, time.monotonic()
    while kills < 14 or min(len(worker.told) for worker in writers + readers) < 20:
        assert time.monotonic() - start < 240
        time.sleep(0.3)
        victim = random.choice(writers + readers)
        # Kill a process that has committed since it was started.
        if victim.pipe.poll():
            victim.kill()
            victim.start()
            kills += 1
        connection.sync()
        check_bank(connection.root())
        if kills >= 5 * (packs + 1):
            db.pack(time.time() - 1)
            packs += 1
        for worker in writers + readers:
            worker.listen()
    for worker in writers + readers:
        worker.kill()
    assert packs >= 2

    connection.sync()
    root = connection.root()
    transfers = check_bank(root)
    acknowledged = sum(len(writer.told) for writer in writers)
    # All acknowledged commits are readable, and at most one more of each killed process.
    assert acknowledged <= transfers <= acknowledged + kills + len(writers)
    for number, writer in enumerate(writers):
        for note, tid in writer.told:
            assert root["notes"][number][note].number == note and tid
    tids = [tid for writer in writers for _, tid in writer.told]
    assert len(set(tids)) == len(tids)
    of_each = [[tid for _, tid in writer.told] for writer in writers]
    assert all(numbers == sorted(numbers) for numbers in of_each)
    # The history that the packs kept is complete.
    seen = [record.tid for record in db.storage.iterator() if list(record) is not None]
    assert seen == sorted(set(seen))
    db.close()
    with plimsoll.open(path, memory="32MiB") as store:
        assert store.verify().ok


def test_oids_and_tids_of_several_processes_are_all_different(path: str) -> None:
    make_bank(path)
    results = CONTEXT.Queue()
    run(*[(zodb_workers.add_objects, path, writer, 30, results) for writer in range(4)])
    stored = [results.get(timeout=60) for _ in range(120)]
    oids = [oid for made, _ in stored for oid in made]
    assert len(set(oids)) == len(oids) == 120 * 20
    tids = [tid for _, tid in stored]
    assert len(set(tids)) == len(tids)
    with plimsoll.open(path, memory="32MiB") as store:
        assert len(store.keyspace("zodb.objects")) >= 120 * 20


def test_a_connection_sees_changes_of_another_process(path: str) -> None:
    make_bank(path)
    db = ZODB.DB(storage(path))
    connection = db.open()
    notes = connection.root()["notes"]
    before = {writer: len(made) for writer, made in notes.items()}
    results = CONTEXT.Queue()
    run((zodb_workers.add_objects, path, 3, 2, results))
    # A transaction goes on in the state in which it began.
    assert {writer: len(made) for writer, made in notes.items()} == before
    untouched, changed = connection.root()["accounts"], notes[3]
    untouched[0], changed.get(0)
    transaction.abort()
    connection.sync()
    assert changed._p_state == -1 and untouched._p_state == 0, "only what has changed is loaded again"
    assert len(notes[3]) == 2
    db.close()


def test_a_process_killed_between_vote_and_finish_leaves_nothing_and_blocks_nobody(path: str) -> None:
    make_bank(path)
    voted = CONTEXT.Event()
    process = CONTEXT.Process(target=zodb_workers.hold_a_vote, args=(path, voted))
    process.start()
    assert voted.wait(60)
    db = ZODB.DB(storage(path))
    with db.transaction() as connection:
        assert connection.root()["transfers"]() == 0
    process.kill()
    process.join()
    with db.transaction() as connection:
        connection.root()["transfers"].change(5)
    with db.transaction() as connection:
        assert connection.root()["transfers"]() == 5
    db.close()


def test_an_undo_and_a_pack_see_what_other_processes_have_committed(path: str) -> None:
    make_bank(path)
    db = ZODB.DB(storage(path))
    results = CONTEXT.Queue()
    run((zodb_workers.add_objects, path, 1, 3, results))
    log = db.undoLog(0, 1)
    db.undo(log[0]["id"])
    transaction.commit()
    with db.transaction() as connection:
        assert sorted(connection.root()["notes"][1]) == [0, 1]
        oids = [note._p_oid for note in connection.root()["notes"][1][0]]
    gone = [results.get(timeout=60) for _ in range(3)][2][0]
    time.sleep(0.01)
    db.pack(time.time())
    load = db.storage.load
    assert all(load(oid)[0] for oid in oids)
    # They were not stored again by the undo, and nothing refers to them any more.
    for oid in gone:
        with pytest.raises(POSKeyError):
            load(oid)
    db.close()


def test_a_blob_of_another_process_is_read_and_packed(path: str, tmp_path: Path) -> None:
    make_bank(path)
    blobs = str(tmp_path / "blobs")
    run((zodb_workers.store_blob, path, blobs, b"first"))
    db = ZODB.DB(storage(path, blob_dir=blobs))
    with db.transaction() as connection, connection.root()["blob"].open() as file:
        assert file.read() == b"first"
    run((zodb_workers.store_blob, path, blobs, b"second"))
    with db.transaction() as connection, connection.root()["blob"].open() as file:
        assert file.read() == b"second"
    assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 2
    time.sleep(0.01)
    db.pack(time.time())
    assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 1
    db.close()


def test_processes_that_create_a_database_at_once_get_the_same_one(path: str) -> None:
    barrier = CONTEXT.Barrier(4)
    run(*[(zodb_workers.open_new, path, barrier)] * 4)
    db = ZODB.DB(storage(path))
    with db.transaction() as connection:
        assert len(connection.root()) == 4
    db.close()


@pytest.mark.parametrize("keep_history", [True, False])
def test_creating_an_existing_database_keeps_its_contents(
    path: str, keep_history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = storage(path, keep_history=keep_history)
    vote = PlimsollStorage.tpc_vote

    def fill_first(instance: PlimsollStorage, transaction: Any) -> Any:
        monkeypatch.setattr(PlimsollStorage, "tpc_vote", vote)
        first = ZODB.DB(storage(path, keep_history=keep_history))
        with first.transaction() as connection:
            connection.root()["first"] = 1
        first.close()
        return vote(instance, transaction)

    monkeypatch.setattr(PlimsollStorage, "tpc_vote", fill_first)
    db = ZODB.DB(late)
    with db.transaction() as connection:
        connection.root()["late"] = 2
    with db.transaction() as connection:
        assert dict(connection.root()) == {"first": 1, "late": 2}
    db.close()


def test_a_read_only_storage_of_a_shared_store_follows_the_others(path: str) -> None:
    make_bank(path)
    results = CONTEXT.Queue()
    writer = CONTEXT.Process(target=zodb_workers.add_objects, args=(path, 2, 3, results))
    db = ZODB.DB(storage(path, read_only=True))
    with db.transaction() as connection:
        assert len(connection.root()["notes"][2]) == 0
    writer.start()
    deadline = time.monotonic() + 60
    while True:
        with db.transaction() as connection:
            if len(connection.root()["notes"][2]) == 3:
                break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    writer.kill()
    with pytest.raises(ReadOnlyError), db.transaction() as connection:
        connection.root()["x"] = 1
    db.close()


FORK = """
import gc, os, sys, transaction, warnings
import ZODB, plimsoll
from ZODB.POSException import ConflictError
from plimsoll.zodb import PlimsollStorage

warnings.simplefilter("ignore", DeprecationWarning)
open_storage = lambda: PlimsollStorage(sys.argv[1], shared=True, memory="16MiB")
db = ZODB.DB(open_storage())
connection = db.open()
connection.root()["parent"] = 0
transaction.commit()

# The parent holds the commit turn and a snapshot while it forks.
connection.root()["parent"] = 1
storage, voting = connection._storage, transaction.get()
storage.tpc_begin(voting)
storage.store(connection.root()._p_oid, connection.root()._p_serial, storage.load(connection.root()._p_oid)[0], "", voting)
storage.tpc_vote(voting)
child = os.fork()
if child == 0:
    uses = [
        lambda: storage.load(b"\\0" * 8), lambda: storage.poll_invalidations(), lambda: storage.tpc_finish(voting), lambda: storage.new_instance().load(b"\\0" * 8),
        lambda: db.open().root(), lambda: db.undoLog(0, 1), lambda: len(storage),
    ]
    for number, use in enumerate(uses):
        try:
            use()
        except plimsoll.UsedAfterFork as error:
            assert "spawn" in str(error)
        else:
            os._exit(number + 1)
    own = ZODB.DB(open_storage())
    # Waits until the parent has released the turn, and then may have to retry.
    while True:
        try:
            with own.transaction() as child_connection:
                child_connection.root()["child"] = child_connection.root()["parent"]
            break
        except ConflictError:
            pass
    own.close()
    del connection, storage, voting
    gc.collect()
    os._exit(0)
pid, status = os.waitpid(child, os.WNOHANG)
assert pid == 0, os.waitstatus_to_exitcode(status)
storage.tpc_finish(voting)
transaction.abort()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
connection.sync()
assert dict(connection.root()) == {"parent": 0, "child": 0}
with db.transaction() as again:
    again.root()["parent"] = 2
connection.close()
db.close()
"""


def test_a_forked_child_must_open_its_own_storage(path: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, path], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    db = ZODB.DB(storage(path))
    with db.transaction() as connection:
        assert dict(connection.root()) == {"parent": 2, "child": 0}
    db.close()
