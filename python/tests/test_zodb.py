"""The ZODB storage: guarantees beyond ZODB's own test cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import transaction
import ZODB
from persistent.mapping import PersistentMapping
from ZODB import config
from ZODB.blob import Blob
from ZODB.Connection import TransactionMetaData
from ZODB.FileStorage import FileStorage
from ZODB.POSException import ConflictError, POSKeyError, ReadOnlyError, StorageError, StorageTransactionError
from zodburi import resolve_uri

import plimsoll
from plimsoll.zodb import PlimsollStorage


def fill(db: Any, count: int = 20) -> None:
    """Stores some objects, one transaction each."""
    for number in range(count):
        with db.transaction(f"number {number}") as connection:
            connection.root()[f"key {number}"] = PersistentMapping({"number": number})


def numbers(db: Any) -> list[int]:
    """The objects that `fill` stored."""
    with db.transaction() as connection:
        return sorted(value["number"] for value in connection.root().values())


def records(storage: Any) -> list[Any]:
    """All records of a storage."""
    return [
        (txn.tid, txn.user, txn.description, txn.extension_bytes, sorted((record.oid, record.tid, record.data) for record in txn))
        for txn in storage.iterator()
    ]


@pytest.mark.parametrize("keep_history", [True, False])
def test_a_database_is_the_same_after_it_was_closed(tmp_path: Path, keep_history: bool) -> None:
    for _ in range(2):
        db = ZODB.DB(PlimsollStorage(tmp_path / "data", keep_history=keep_history))
        if not numbers(db):
            fill(db)
        assert numbers(db) == list(range(20))
        db.close()


def test_a_transaction_survives_a_kill_after_tpc_finish(tmp_path: Path) -> None:
    program = """
import sys, transaction, ZODB
from plimsoll.zodb import PlimsollStorage
db = ZODB.DB(PlimsollStorage(sys.argv[1]))
connection = db.open()
for number in range(10**9):
    connection.root()["number"] = number
    connection.root()["twice"] = 2 * number
    transaction.commit()
    print(number, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = -1
    while told < 50:
        told = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in child.stdout if line.endswith("\n"))])
    child.wait()
    child.stdout.close()
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    with db.transaction() as connection:
        found = connection.root()["number"]
        assert found >= told
        assert connection.root()["twice"] == 2 * found
    db.close()


@pytest.mark.parametrize("keep_history", [True, False])
def test_concurrent_transfers_preserve_the_total(tmp_path: Path, keep_history: bool) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", keep_history=keep_history))
    with db.transaction() as connection:
        for account in range(5):
            connection.root()[account] = PersistentMapping(balance=100)
    wrong: list[Any] = []
    conflicts = [0]

    def move(seed: int) -> None:
        manager = transaction.TransactionManager()
        connection = db.open(manager)
        try:
            for step in range(60):
                while True:
                    manager.begin()
                    root = connection.root()
                    if sum(root[account]["balance"] for account in range(5)) != 500:
                        wrong.append((seed, step))
                    root[(seed + step) % 5]["balance"] -= 1
                    root[(seed * step + 1) % 5]["balance"] += 1
                    try:
                        manager.commit()
                        break
                    except ConflictError:
                        conflicts[0] += 1
                        manager.abort()
        except Exception as error:
            wrong.append(error)
        finally:
            manager.abort()
            connection.close()

    threads = [threading.Thread(target=move, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        db.pack()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert not wrong
    with db.transaction() as connection:
        assert sum(connection.root()[account]["balance"] for account in range(5)) == 500
    db.close()


def test_a_connection_reads_one_moment_and_then_the_next(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    fill(db, 1)
    manager = transaction.TransactionManager()
    reader = db.open(manager)
    assert reader.root()["key 0"]["number"] == 0
    reader.cacheMinimize()
    with db.transaction() as connection:
        connection.root()["key 0"]["number"] = 7
    assert reader.root()["key 0"]["number"] == 0
    manager.begin()
    assert reader.root()["key 0"]["number"] == 7
    reader.close()
    db.close()


def disk_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("keep_history", [True, False])
def test_a_pack_reclaims_disk_space(tmp_path: Path, keep_history: bool, shared: bool) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", keep_history=keep_history, shared=shared, memory="32MiB"))
    with db.transaction() as connection:
        for key in range(500):
            connection.root()[key] = PersistentMapping()
    for _ in range(20):
        with db.transaction() as connection:
            for key in range(500):
                connection.root()[key]["data"] = os.urandom(1500)
    before = disk_bytes(tmp_path / "data")
    db.pack()
    after = disk_bytes(tmp_path / "data")
    # The current revisions are 0.8 MB, and a log that is empty has a segment.
    assert before > 14_000_000 and after < 4_000_000, (before, after)
    with db.transaction() as connection:
        assert all(len(connection.root()[key]["data"]) == 1500 for key in range(500))
    db.close()


def test_a_pack_succeeds_even_if_its_space_cannot_be_reclaimed(tmp_path: Path, around: Any) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    fill(db)
    shared = storage._shared
    real, asked = shared.db, []

    def compact() -> None:
        asked.append("compact")
        raise plimsoll.NotKeeper("the keeper is being closed")

    shared.db = around(real, compact=compact)
    db.pack()
    shared.db = real
    assert asked == ["compact"] and len(storage.history(b"\0" * 8, size=100)) == 1 and numbers(db) == list(range(20))
    db.close()


def test_a_connection_that_slept_through_a_pack_drops_its_cache(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    fill(db, 1)
    other = storage.new_instance()
    assert other.poll_invalidations() == []
    fill(db, 3)
    assert other.poll_invalidations()
    fill(db, 4)
    db.pack()
    assert other.poll_invalidations() is None
    other.release()
    db.close()


def test_history_is_read_through_historical_connections(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    fill(db, 3)
    tid = db.lastTransaction()
    fill(db, 9)
    past = db.open(at=tid)
    assert len(past.root()) == 3
    past.close()
    db.close()


def test_an_undone_blob_has_its_file_also_when_its_origin_was_packed(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", blob_dir=tmp_path / "blobs"))
    for content in (b"one", b"two"):
        with db.transaction() as connection:
            root = connection.root()
            blob = root.setdefault("blob", Blob())
            with blob.open("w") as file:
                file.write(content)

    def undo() -> None:
        db.undo(db.undoInfo()[0]["id"])
        transaction.commit()

    def content() -> bytes:
        with db.transaction() as connection, connection.root()["blob"].open() as file:
            return bytes(file.read())

    undo()
    assert content() == b"one"
    db.pack()
    assert content() == b"one"
    with db.transaction() as connection, connection.root()["blob"].open("w") as file:
        file.write(b"three")
    undo()
    assert content() == b"one"
    with db.transaction() as connection:
        del connection.root()["blob"]
    db.pack()
    assert not [name for _, _, names in os.walk(tmp_path / "blobs") for name in names if name.endswith(".blob")]
    db.close()


def test_an_oid_is_not_assigned_twice_after_a_pack(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    fill(db, 5)
    with db.transaction() as connection:
        oid = connection.root()["key 4"]._p_oid
        del connection.root()["key 4"]
    db.pack()
    db.close()
    storage = PlimsollStorage(tmp_path / "data")
    with pytest.raises(POSKeyError):
        storage.load(oid)
    assert storage.new_oid() > oid
    storage.close()


def test_a_storage_refuses_mismatched_options_with_a_reason(tmp_path: Path) -> None:
    PlimsollStorage(tmp_path / "data").close()
    with pytest.raises(StorageError, match="keeps history"):
        PlimsollStorage(tmp_path / "data", keep_history=False)
    storage = PlimsollStorage(tmp_path / "data", read_only=True)
    with pytest.raises(ReadOnlyError):
        storage.new_oid()
    with pytest.raises(ReadOnlyError):
        PlimsollStorage(tmp_path / "data")
    storage.close()


def test_a_tid_that_does_not_rise_is_refused(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    with pytest.raises(StorageError, match="is not above"):
        storage.tpc_begin(transaction.Transaction(), tid=storage.lastTransaction())
    fill(db, 1)
    db.close()


def test_zconfig_opens_one(tmp_path: Path) -> None:
    db = config.databaseFromString(f"""
%import plimsoll.zodb
<zodb>
  <plimsoll>
    path {tmp_path}/data
    memory 32MB
    blob-dir {tmp_path}/blobs
    keep-history off
  </plimsoll>
</zodb>
""")
    fill(db, 2)
    assert numbers(db) == [0, 1]
    assert not db.supportsUndo()
    assert db.storage.temporaryDirectory().startswith(str(tmp_path / "blobs"))
    db.close()


def test_zconfig_and_zodburi_open_one_that_is_shared(tmp_path: Path) -> None:
    text = f"%import plimsoll.zodb\n<plimsoll>\n  path {tmp_path}/data\n  shared on\n  warm off\n  memory-total 64MiB\n</plimsoll>"
    storage = config.storageFromString(text)
    (member,) = plimsoll.members(tmp_path / "data")
    assert member.pid == os.getpid() and member.memory_bytes == 64 << 20
    storage.close()
    factory, _ = resolve_uri(f"plimsoll://{tmp_path}/data?shared=1&warm=0&memory_total=80MiB")
    storage = factory()
    (member,) = plimsoll.members(tmp_path / "data")
    assert member.memory_bytes == 80 << 20
    storage.close()


def test_a_transaction_has_the_turn_from_its_vote_on(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    other = storage.new_instance()
    waiting = transaction.Transaction()
    other.tpc_begin(waiting)
    oid = other.new_oid()
    other.store(oid, b"\0" * 8, b"cpersistent\nPersistent\nq\x01.N.", "", waiting)
    # It has stored but not voted, so others can commit.
    fill(db, 1)
    other.tpc_vote(waiting)
    with storage._shared.turn.hold(0) as is_free:
        assert not is_free
    tid = other.tpc_finish(waiting)
    with storage._shared.turn.hold(0) as is_free:
        assert is_free
    tids = [record.tid for record in storage.iterator()]
    assert storage.load(oid)[1] == tid and tids == sorted(tids) and tids[-1] == tid
    other.release()
    db.close()


def test_a_transaction_that_is_larger_than_what_is_kept_until_the_vote_is_whole(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", memory="32MB"))
    with db.transaction() as connection:
        for number in range(30):
            connection.root()[number] = PersistentMapping(data=b"x" * 700_000, number=number)
    with db.transaction() as connection:
        assert [connection.root()[number]["number"] for number in range(30)] == list(range(30))
    db.close()


@pytest.mark.parametrize("keep_history", [True, False])
def test_two_databases_with_large_transactions_do_not_wait_for_each_other(tmp_path: Path, keep_history: bool) -> None:
    storages = [PlimsollStorage(tmp_path / name, memory="32MB", keep_history=keep_history) for name in "ab"]
    storages.sort(key=lambda storage: storage.sortKey())
    both_stored = threading.Barrier(2)
    rows = {}

    def commit(large: int) -> None:
        """Commits like the package `transaction`: stores in all databases, in their order, then
        votes in all of them."""
        txn = transaction.Transaction()
        parts = [storage.new_instance() for storage in storages]
        for number, part in enumerate(parts):
            part.tpc_begin(txn)
            for _ in range(20):
                oid = part.new_oid()
                rows[number, oid] = os.urandom(500_000 if number == large else 5)
                part.store(oid, b"\0" * 8, rows[number, oid], "", txn)
        both_stored.wait(60)
        for part in parts:
            part.tpc_vote(txn)
        for part in parts:
            part.tpc_finish(txn)
            part.release()

    threads = [threading.Thread(target=commit, args=(large,), daemon=True) for large in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(storages[number].load(oid)[0] == data for (number, oid), data in rows.items()) and len(rows) == 80
    for storage in storages:
        storage.close()


def test_an_interrupted_copy_releases_the_turn(tmp_path: Path) -> None:
    source = PlimsollStorage(tmp_path / "source", blob_dir=tmp_path / "source blobs")
    db = ZODB.DB(source)
    for number in range(5):
        with db.transaction() as connection:
            connection.root()[number] = Blob(b"%d" % number)
    for name in ("restore", "tpc_vote"):
        for blob_dir in (None, tmp_path / f"{name} blobs"):
            storage = PlimsollStorage(tmp_path / f"{name} {blob_dir is None}", blob_dir=blob_dir)
            calls = iter(range(1_000))
            whole = getattr(storage, name)

            def broken(*args: Any, whole: Any = whole, calls: Any = calls) -> Any:
                if next(calls) == 3:
                    raise InterruptedError
                return whole(*args)

            setattr(storage, name, broken)
            with pytest.raises(InterruptedError):
                storage.copyTransactionsFrom(source)
            with storage._shared.turn.hold(0) as is_free:
                assert is_free
            setattr(storage, name, whole)
            assert len(records(storage)) < len(records(source))
            storage.zap_all()
            storage.copyTransactionsFrom(source)
            assert records(storage) == records(source)
            storage.close()
    db.close()


def test_a_pack_within_a_commit_is_refused(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    fill(db, 1)
    txn = transaction.Transaction()
    storage.tpc_begin(txn)
    storage.tpc_vote(txn)
    for whole in (lambda: storage.pack(time.time(), None), storage.zap_all):
        with pytest.raises(StorageTransactionError):
            whole()
    storage.tpc_abort(txn)
    assert numbers(db) == [0]
    db.close()


def test_zodburi_opens_one(tmp_path: Path) -> None:
    factory, rest = resolve_uri(f"plimsoll://{tmp_path}/data?memory=32MB&pack_gc=0&connection_pool_size=3")
    assert rest["pool_size"] == 3
    db = ZODB.DB(factory(), **rest)
    fill(db, 2)
    assert numbers(db) == [0, 1]
    db.close()


def test_a_copy_goes_from_a_filestorage_and_back(tmp_path: Path) -> None:
    """Does the same as RelStorage's `zodbconvert`: opens both storages from ZConfig, with an empty
    destination, then calls `copyTransactionsFrom`."""
    db = ZODB.DB(FileStorage(str(tmp_path / "first.fs")))
    fill(db)
    db.undo(db.undoInfo()[0]["id"])
    transaction.commit()
    first = records(db.storage)
    db.close()
    ours = f"%import plimsoll.zodb\n<plimsoll>\n  path {tmp_path}/data\n</plimsoll>"
    for source_section, destination_section in [
        (f"<filestorage>\n  path {tmp_path}/first.fs\n</filestorage>", ours),
        (ours, f"<filestorage>\n  path {tmp_path}/second.fs\n</filestorage>"),
    ]:
        source, destination = config.storageFromString(source_section), config.storageFromString(destination_section)
        assert not list(destination.iterator())
        destination.copyTransactionsFrom(source)
        destination.close()
        source.close()
    second = FileStorage(str(tmp_path / "second.fs"), read_only=True)
    assert records(second) == first
    assert len(first) == 22
    second.close()


class Unsynced:
    """A transaction of the store that waits for the test after ordering its commit and before the
    sync."""

    def __init__(self, tx: Any) -> None:
        self.tx, self.go_on, self.ordered = tx, threading.Event(), threading.Event()

    def commit_submit(self) -> Any:
        """Orders the commit."""
        self.ticket = self.tx.commit_submit()
        self.ordered.set()
        return self

    def wait(self) -> None:
        """Waits for the test, then for the commit."""
        self.go_on.wait(60)
        self.ticket.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)


def test_a_retry_does_not_conflict_again_with_a_commit_that_is_not_durable_yet(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    first, second = (transaction.TransactionManager(explicit=True) for _ in range(2))
    one, other = db.open(first), db.open(second)
    for number in range(5):
        first.begin(), second.begin()
        one.root()["one"], other.root()["other"] = number, number
        # The first one is between the order of its commit and the sync when the second one votes.
        storage = one._storage
        slow: list[Unsynced] = []
        vote = storage.tpc_vote

        def vote_slowly(
            transaction: Any, storage: Any = storage, vote: Any = vote, slow: list[Unsynced] = slow
        ) -> Any:
            result = vote(transaction)
            storage._commit.tx = Unsynced(storage._commit.tx)
            slow.append(storage._commit.tx)
            return result

        storage.tpc_vote = vote_slowly
        committing = threading.Thread(target=first.commit)
        committing.start()
        while not slow:
            time.sleep(0.001)
        assert slow[0].ordered.wait(60)
        with pytest.raises(ConflictError):
            second.commit()
        second.abort()
        second.begin()
        other.root()["other"] = number
        second.commit()
        slow[0].go_on.set()
        committing.join()
        del storage.tpc_vote
    one.close(), other.close()
    db.close()


def test_the_blob_of_a_transaction_that_a_signal_interrupts_after_its_commit_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: Any
) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", blob_dir=tmp_path / "blobs"))
    connection = db.open()
    storage = connection._storage
    finish = storage.tpc_finish

    def finish_interrupted(*arguments: Any) -> bytes:
        storage._commit.tx = interrupted(storage._commit.tx)
        tid: bytes = finish(*arguments)
        return tid

    connection.root()["blob"] = Blob(b"kept")
    with monkeypatch.context() as patched:
        patched.setattr(storage, "tpc_finish", finish_interrupted)
        with pytest.raises(KeyboardInterrupt):
            transaction.commit()
    transaction.abort()
    # A later transaction that is aborted removes only its own files.
    aborted = TransactionMetaData()
    storage.tpc_begin(aborted)
    storage.tpc_abort(aborted)
    storage._shared.wait_until_durable()
    with db.transaction() as other, other.root()["blob"].open() as file:
        assert file.read() == b"kept"
    connection.close()
    db.close()


def test_a_blob_that_cannot_be_named_leaves_no_files_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", blob_dir=tmp_path / "blobs"))
    connection = db.open()
    storage = connection._storage
    store = storage._blob_storeblob
    calls = []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("no space left")
        store(*arguments)

    for number in range(4):
        connection.root()[f"blob {number}"] = Blob(b"%d" % number)
    with monkeypatch.context() as patched:
        patched.setattr(storage, "_blob_storeblob", fail)
        with pytest.raises(OSError, match="no space left"):
            transaction.commit()
    transaction.abort()
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file() and not path.name.startswith(".")] == []
    connection.close()
    db.close()
