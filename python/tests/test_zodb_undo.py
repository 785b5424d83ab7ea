"""Undo and deletion: together with other changes in one transaction, and over several databases."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transaction
import ZODB
from BTrees.Length import Length
from persistent.mapping import PersistentMapping
from ZODB.blob import Blob
from ZODB.Connection import TransactionMetaData
from ZODB.FileStorage import FileStorage
from ZODB.POSException import ConflictError, POSKeyError, StorageTransactionError, UndoError
from ZODB.serialize import ObjectWriter

from plimsoll.zodb import PlimsollStorage

Work = Callable[["Steps"], object]


def load_state(storage: Any, oid: bytes) -> Any:
    """The state of an object without references."""
    unpickler = pickle.Unpickler(io.BytesIO(storage.load(oid)[0]))
    unpickler.load()
    return unpickler.load()


class Steps:
    """The steps of one transaction on a number that was 1, then 3, then 7."""

    def __init__(self, storage: Any, kind: type[Any]) -> None:
        self.storage, self.kind = storage, kind
        db = ZODB.DB(storage)
        self.serials = []
        for value in (1, 3, 7):
            with db.transaction() as connection:
                made = connection.root().setdefault("number", self.kind())
                made.__setstate__(self.state(value))
                made._p_changed = True
            self.oid = made._p_oid
            self.serials.append(storage.load(self.oid)[1])
        self.ids = [entry["id"] for entry in storage.undoLog(0, 3)][::-1]

    def state(self, value: int) -> Any:
        return value if self.kind is Length else {"data": {"value": value}}

    def store(self, value: int, read: int = 2) -> None:
        """Stores it, as read in the revision `read`."""
        made = self.kind()
        made.__setstate__(self.state(value))
        self.storage.store(self.oid, self.serials[read], ObjectWriter().serialize(made), "", self.txn)

    def undo(self, number: int) -> None:
        self.storage.undo(self.ids[number], self.txn)

    def check(self, read: int) -> None:
        self.storage.checkCurrentSerialInTransaction(self.oid, self.serials[read], self.txn)

    def delete(self, read: int) -> None:
        self.storage.deleteObject(self.oid, self.serials[read], self.txn)

    def outcome(self, work: Work) -> Any:
        """The number afterwards, or the error."""
        self.txn = TransactionMetaData()
        self.storage.tpc_begin(self.txn)
        try:
            work(self)
            self.storage.tpc_vote(self.txn)
            self.storage.tpc_finish(self.txn)
            state = load_state(self.storage, self.oid)
            return state if self.kind is Length else state["data"]["value"]
        except (ConflictError, POSKeyError, StorageTransactionError, UndoError) as error:
            self.storage.tpc_abort(self.txn)
            # `FileStorage` has a class of its own for several of them.
            return "UndoError" if isinstance(error, UndoError) else type(error).__name__


CASES: dict[str, tuple[Work, Any, Any]] = {
    "an undo": (lambda steps: steps.undo(2), 3, 3),
    "an undo of what was changed since": (lambda steps: steps.undo(1), 5, "UndoError"),
    "two undos": (lambda steps: (steps.undo(2), steps.undo(1)), 1, 1),
    "an undo of an undo's other half": (lambda steps: (steps.undo(1), steps.undo(2)), 1, "UndoError"),
    "a change, then an undo of what it is of": (lambda steps: (steps.store(10), steps.undo(2)), 6, "UndoError"),
    "an undo, then a change": (lambda steps: (steps.undo(2), steps.store(10)), 10, 10),
    "an undo, then a change of an older revision": (lambda steps: (steps.undo(2), steps.store(10, read=1)), 14, "ConflictError"),
    "two changes of an older revision": (lambda steps: (steps.store(8, read=1), steps.store(10, read=1)), 14, "ConflictError"),
    "an undo, then a check": (lambda steps: (steps.undo(2), steps.check(2)), 3, 3),
    "an undo, then a check of an older revision": (lambda steps: (steps.undo(2), steps.check(1)), "ReadConflictError", "ReadConflictError"),
    "an undo, then a deletion": (lambda steps: (steps.undo(2), steps.delete(2)), "POSKeyError", "POSKeyError"),
    "a change, then a deletion": (lambda steps: (steps.store(10), steps.delete(2)), "POSKeyError", "POSKeyError"),
    "a deletion, then a change": (lambda steps: (steps.delete(2), steps.store(10)), 10, 10),
    "a deletion of an older revision": (lambda steps: steps.delete(1), "ConflictError", "ConflictError"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [Length, PersistentMapping])
def test_a_transaction_has_the_same_outcome_as_in_a_filestorage(tmp_path: Path, kind: type[Any], case: str) -> None:
    work, merged, plain = CASES[case]
    outcomes = []
    for storage in (PlimsollStorage(tmp_path / "data"), FileStorage(str(tmp_path / "data.fs"))):
        outcomes.append(Steps(storage, kind).outcome(work))
        storage.close()
    assert outcomes == [merged if kind is Length else plain] * 2


def test_an_undo_beside_a_change_of_another_object(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    steps = Steps(storage, Length)
    oid = storage.new_oid()
    assert steps.outcome(lambda steps: (steps.storage.store(oid, b"\0" * 8, storage.load(steps.oid)[0], "", steps.txn), steps.undo(2))) == 3
    assert load_state(storage, oid) == 7
    storage.close()


def test_an_undo_of_an_unknown_transaction_is_refused_at_once(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    ZODB.DB(storage)
    txn = TransactionMetaData()
    storage.tpc_begin(txn)
    for unknown in (b"x", b"AAAAAAAAAAE="):
        with pytest.raises(UndoError):
            storage.undo(unknown, txn)
    storage.tpc_abort(txn)
    storage.close()


def test_nothing_keeps_others_from_committing_before_the_vote(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data", blob_dir=tmp_path / "blobs")
    steps = Steps(storage, Length)
    blob = tmp_path / "blob"
    blob.write_bytes(b"kept")
    waiting = storage.new_instance()
    txn = TransactionMetaData()
    waiting.tpc_begin(txn)
    waiting.undo(steps.ids[2], txn)
    other, deleted = storage.new_oid(), storage.new_oid()
    data = storage.load(steps.oid)[0]
    # Deleted by the one that waits, and made before it votes.
    made = TransactionMetaData()
    storage.tpc_begin(made)
    storage.store(deleted, b"\0" * 8, data, "", made)
    storage.tpc_vote(made)
    waiting.deleteObject(deleted, storage.tpc_finish(made), txn)
    waiting.restoreBlob(other, b"\0" * 8, ObjectWriter().serialize(Blob()), str(blob), None, txn)
    assert steps.outcome(lambda steps: steps.store(8)) == 8
    waiting.tpc_vote(txn)
    tid = waiting.tpc_finish(txn)
    # 8, merged with what undoing the last 4 leaves.
    assert load_state(storage, steps.oid) == 4
    assert Path(storage.loadBlob(other, tid)).read_bytes() == b"kept"
    with pytest.raises(POSKeyError):
        storage.load(deleted)
    waiting.release()
    storage.close()


@pytest.mark.parametrize("second", ["change", "undo", "change through another connection"])
def test_impossible_combinations_in_one_transaction_are_refused_at_once(tmp_path: Path, second: str) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    manager = transaction.TransactionManager()
    connection = db.open(manager)
    root = connection.root()
    for number in range(3):
        root[number] = number
        manager.commit()
    first_log, second_log = db.undoInfo(0, 2)
    if second == "change through another connection":
        root["one"] = 1
        db.open(manager).root()["other"] = 1
    else:
        db.undo(first_log["id"], manager.get())
        if second == "undo":
            # The same undo twice, because the order in which two undos vote is not fixed.
            db.undo(first_log["id"], manager.get())
        else:
            root["one"] = 1
    with pytest.raises(StorageTransactionError, match="this thread"):
        manager.commit()
    manager.abort()
    # Each operation succeeds in its own transaction.
    db.undoMultiple([first_log["id"], second_log["id"]], manager.get())
    manager.commit()
    root["one"] = 1
    manager.commit()
    assert dict(root) == {0: 0, "one": 1}
    db.close()


def test_a_pack_during_a_commit_of_another_connection_is_refused(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(storage)
    other = storage.new_instance()
    txn = TransactionMetaData()
    other.tpc_begin(txn)
    with pytest.raises(StorageTransactionError, match="this thread"):
        other.tpc_begin(TransactionMetaData())
    other.tpc_vote(txn)
    for whole in (db.pack, storage.zap_all):
        with pytest.raises(StorageTransactionError, match="this thread"):
            whole()
    other.tpc_finish(txn)
    other.release()
    db.pack()
    db.close()


@pytest.mark.parametrize("early", ["undo", "delete"])
def test_two_databases_with_undos_do_not_wait_for_each_other(tmp_path: Path, early: str) -> None:
    storages = [PlimsollStorage(tmp_path / name) for name in "ab"]
    storages.sort(key=lambda storage: storage.sortKey())
    every = [Steps(storage, Length) for storage in storages]
    both_ready = threading.Barrier(2)

    def commit(where: int) -> None:
        """Commits like the package `transaction`: all operations in all databases, in their order,
        then votes in all of them."""
        txn = TransactionMetaData()
        parts = [storage.new_instance() for storage in storages]
        for number, part in enumerate(parts):
            part.tpc_begin(txn)
            if number != where:
                part.store(part.new_oid(), b"\0" * 8, storages[0].load(every[0].oid)[0], "", txn)
            elif early == "undo":
                part.undo(every[number].ids[2], txn)
            else:
                part.deleteObject(every[number].oid, every[number].serials[2], txn)
        both_ready.wait(60)
        for part in parts:
            part.tpc_vote(txn)
        for part in parts:
            part.tpc_finish(txn)
            part.release()

    threads = [threading.Thread(target=commit, args=(where,), daemon=True) for where in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for storage, steps in zip(storages, every, strict=True):
        if early == "undo":
            assert load_state(storage, steps.oid) == 3
        else:
            with pytest.raises(POSKeyError):
                storage.load(steps.oid)
        storage.close()
