"""The storage under the wrappers `BlobStorage` and `DemoStorage`, and under a ZEO server."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import transaction
import ZODB
from BTrees.Length import Length
from persistent.mapping import PersistentMapping
from ZODB import config
from ZODB.blob import Blob, BlobStorage
from ZODB.Connection import TransactionMetaData
from ZODB.DemoStorage import DemoStorage
from ZODB.POSException import (
    ConflictError,
    MultipleUndoErrors,
    POSKeyError,
    ReadConflictError,
    StorageError,
    StorageTransactionError,
    UndoError,
)
from ZODB.serialize import referencesf
from ZODB.tests.MinPO import MinPO
from ZODB.tests.StorageTestBase import zodb_pickle
from ZODB.utils import load_current, z64

from plimsoll.zodb import PlimsollStorage

# ZEO closes some of its sockets only when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def begin(storage: Any, number: int, serial: bytes = z64) -> TransactionMetaData:
    """A transaction that has stored the root and voted."""
    current = TransactionMetaData()
    storage.tpc_begin(current)
    storage.store(z64, serial, zodb_pickle(MinPO(number)), "", current)
    storage.tpc_vote(current)
    return current


def blob_data(blob: Blob) -> bytes:
    """The data of a blob."""
    with blob.open("r") as file:
        data: bytes = file.read()
    return data


@contextmanager
def served(folder: Path, options: str = "", **server: Any) -> Iterator[Any]:
    """The address of a ZEO server over a store in `folder`."""
    zeo = pytest.importorskip("ZEO")
    before = os.getcwd()
    os.chdir(folder)
    try:
        section = f"%import plimsoll.zodb\n<plimsoll>\n  path {folder}/data\n  memory 32MB\n{options}</plimsoll>"
        address, stop = zeo.server(storage_conf=section, port=0, **server)
    finally:
        os.chdir(before)
    try:
        yield address
    finally:
        stop()


# BlobStorage


@pytest.mark.parametrize("way", ["code", "ZConfig"])
def test_a_blob_stored_through_a_blobstorage_is_refused_with_the_remedy(tmp_path: Path, way: str) -> None:
    if way == "code":
        db = ZODB.DB(BlobStorage(str(tmp_path / "blobs"), PlimsollStorage(tmp_path / "data")))
    else:
        db = config.databaseFromString(
            "%import plimsoll.zodb\n"
            f"<zodb>\n<blobstorage>\nblob-dir {tmp_path}/blobs\n<plimsoll>\npath {tmp_path}/data\n</plimsoll>\n</blobstorage>\n</zodb>\n"
        )
    with pytest.raises(AttributeError, match="blob_dir"), db.transaction() as connection:
        connection.root()["blob"] = Blob(b"precious")
    # Neither the blob nor the transaction is stored, and the next transaction succeeds.
    with db.transaction() as connection:
        assert "blob" not in connection.root()
        connection.root()["number"] = 1
    assert not [name for _, _, names in os.walk(tmp_path / "blobs") for name in names if name.endswith(".blob")]
    db.close()


def test_a_copy_with_blobs_into_a_blobstorage_is_refused(tmp_path: Path) -> None:
    source = PlimsollStorage(tmp_path / "source", blob_dir=tmp_path / "source-blobs")
    db = ZODB.DB(source)
    with db.transaction() as connection:
        connection.root()["blob"] = Blob(b"precious")
    target = BlobStorage(str(tmp_path / "blobs"), PlimsollStorage(tmp_path / "data"))
    with pytest.raises(AttributeError, match="blob_dir"):
        target.copyTransactionsFrom(source)
    db.close()
    target.close()


def test_blobs_of_a_demostorage_over_two_stores_are_read(tmp_path: Path) -> None:
    base = PlimsollStorage(tmp_path / "base", blob_dir=tmp_path / "base-blobs")
    with ZODB.DB(base).transaction() as connection:
        connection.root()["old"] = Blob(b"old")
    changes = PlimsollStorage(tmp_path / "changes", blob_dir=tmp_path / "changes-blobs")
    db = ZODB.DB(DemoStorage(base=base, changes=changes))
    with db.transaction() as connection:
        connection.root()["new"] = Blob(b"new")
    with db.transaction() as connection:
        assert [blob_data(connection.root()[name]) for name in ("old", "new")] == [b"old", b"new"]
    db.close()


# Pack


def test_a_pack_waits_for_a_transaction_of_another_thread_through_the_same_instance(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    voted, finish = threading.Event(), threading.Event()

    def commit() -> None:
        current = begin(storage, 1)
        voted.set()
        finish.wait(60)
        storage.tpc_finish(current)

    writer = threading.Thread(target=commit)
    writer.start()
    voted.wait(60)
    threading.Timer(0.3, finish.set).start()
    begun = time.monotonic()
    storage.pack(time.time() + 1, referencesf)
    storage.pack(time.time() + 1, referencesf)
    assert finish.is_set() or time.monotonic() - begun < 0.3
    writer.join()
    current = begin(storage, 2, load_current(storage, z64)[1])
    with pytest.raises(StorageTransactionError):
        storage.pack(time.time() + 1, referencesf)
    storage.tpc_abort(current)
    storage.close()


def test_packs_and_commits_through_one_instance(tmp_path: Path) -> None:
    storage = PlimsollStorage(tmp_path / "data")
    db = ZODB.DB(DemoStorage(changes=storage))
    stop = threading.Event()
    failed: list[Exception] = []

    def commit(name: str) -> None:
        try:
            while not stop.is_set():
                try:
                    with db.transaction() as connection:
                        values = connection.root().setdefault(name, PersistentMapping())
                        values["number"] = values.get("number", 0) + 1
                except ConflictError:
                    continue
        except Exception as error:
            failed.append(error)

    writers = [threading.Thread(target=commit, args=(f"writer {number}",)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(20):
            storage.pack(time.time() + 1, referencesf, gc=False)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failed
    db.close()


# Idle connections


def disk_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("shared", [True, False])
def test_a_pack_reclaims_disk_space_despite_an_idle_connection(tmp_path: Path, shared: bool) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", shared=shared, memory="32MiB"))

    def write(rounds: int) -> None:
        for _ in range(rounds):
            with db.transaction() as connection:
                for key in range(500):
                    connection.root().setdefault(key, PersistentMapping())["data"] = os.urandom(4000)

    write(10)
    idle = db.open(transaction.TransactionManager())
    assert len(idle.root()) == 500
    write(10)
    before = disk_bytes(tmp_path / "data")
    db.pack()
    after = disk_bytes(tmp_path / "data")
    # The current revisions are 2 MB, and the last commit has the ones before them, too.
    assert before > 30_000_000 and after < 8_000_000, (before, after)
    idle.close()
    db.close()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("keep_history", [True, False])
def test_a_pack_keeps_one_old_state_for_an_idle_transaction(tmp_path: Path, keep_history: bool, shared: bool) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data", keep_history=keep_history, shared=shared, memory="64MiB"))

    def write() -> None:
        with db.transaction() as connection:
            connection.root().setdefault("large", PersistentMapping())["data"] = os.urandom(6_000_000)

    write()
    manager = transaction.TransactionManager()
    idle = db.open(manager)
    manager.begin()
    data = idle.root()["large"]["data"]
    for _ in range(20):
        write()
    db.pack()
    used = disk_bytes(tmp_path / "data")
    assert used < 14_000_000, "the object as it is, and as the transaction reads it"
    idle.cacheMinimize()
    assert idle.root()["large"]["data"] == data
    idle.close()
    write()
    db.pack()
    used = disk_bytes(tmp_path / "data")
    assert used < 8_000_000, "the object as it is"
    db.close()


def test_a_connection_without_begin_reads_one_state(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    with db.transaction() as connection:
        for key in ("read", "changed", "deleted"):
            connection.root()[key] = PersistentMapping(number=1)
    reader = db.open(transaction.TransactionManager())
    reader.cacheMinimize()
    root = reader.root()
    assert root["read"]["number"] == 1
    with db.transaction() as connection:
        connection.root()["changed"]["number"] = 2
        deleted, new = connection.root()["deleted"], PersistentMapping(number=2)
        deleted._p_activate()
        connection.root()["changed"]["new"] = new
    oid, serial = deleted._p_oid, deleted._p_serial
    storage = db.storage.new_instance()
    current = TransactionMetaData()
    storage.tpc_begin(current)
    storage.deleteObject(oid, serial, current)
    storage.tpc_vote(current)
    storage.tpc_finish(current)
    storage.release()
    reader.cacheMinimize()
    assert [root[key]["number"] for key in ("read", "changed", "deleted")] == [1, 1, 1]
    assert "new" not in root["changed"]
    with pytest.raises(POSKeyError):
        reader.get(new._p_oid)._p_activate()
    # Unchanged objects are still read after a pack; what it has removed is a conflict, so the reader tries again.
    db.pack()
    reader.cacheMinimize()
    assert root["read"]["number"] == 1
    with pytest.raises(ReadConflictError):
        root["changed"]["number"]
    reader.transaction_manager.abort()
    assert root["changed"]["number"] == 2
    reader.close()
    db.close()


def test_a_begun_transaction_reads_its_state_after_a_pack(tmp_path: Path) -> None:
    db = ZODB.DB(PlimsollStorage(tmp_path / "data"))
    with db.transaction() as connection:
        connection.root()["changed"] = PersistentMapping(number=1)
    manager = transaction.TransactionManager()
    reader = db.open(manager)
    manager.begin()
    with db.transaction() as connection:
        connection.root()["changed"]["number"] = 2
    db.pack()
    reader.cacheMinimize()
    assert reader.root()["changed"]["number"] == 1
    reader.close()
    db.close()


# ZEO


def test_a_zeo_client_gets_an_undo_error(tmp_path: Path) -> None:
    zeo = pytest.importorskip("ZEO")
    with served(tmp_path) as address:
        db = ZODB.DB(zeo.client(address))
        for number in range(3):
            with db.transaction() as connection:
                connection.root()["number"] = number
        first = db.undoLog(0, 20)[1]["id"]
        for id in (first, base64.b64encode(b"\0" * 8)):
            with pytest.raises(UndoError) as raised:
                db.undo(id, transaction.get())
                transaction.commit()
            transaction.abort()
            assert isinstance(raised.value, MultipleUndoErrors) and str(raised.value).startswith("Undo error")
        db.undo(db.undoLog(0, 1)[0]["id"], transaction.get())
        transaction.commit()
        with db.transaction() as connection:
            assert connection.root()["number"] == 1
        db.pack()
        db.close()


@pytest.mark.parametrize("at_client", [False, True])
def test_conflicts_of_zeo_clients_are_resolved(tmp_path: Path, at_client: bool) -> None:
    zeo = pytest.importorskip("ZEO")
    with served(tmp_path, zeo_conf={"client_conflict_resolution": at_client}) as address:
        first = ZODB.DB(zeo.client(address))
        with first.transaction() as connection:
            for key in range(12):
                connection.root()[key] = Length()
            connection.root()["plain"] = PersistentMapping()
        second = ZODB.DB(zeo.client(address))
        one, two = transaction.TransactionManager(), transaction.TransactionManager()
        slow, quick = first.open(one), second.open(two)
        for key in range(12):
            slow.root()[key].change(1)
            quick.root()[key].change(10)
        two.commit()
        one.commit()
        assert [slow.root()[key]() for key in range(12)] == [11] * 12
        slow.root()["plain"]["a"] = 1
        quick.root()["plain"]["b"] = 1
        two.commit()
        with pytest.raises(ConflictError):
            one.commit()
        one.abort()
        slow.close()
        quick.close()
        first.close()
        second.close()


def test_a_pack_of_a_zeo_server_beside_committing_clients(tmp_path: Path) -> None:
    zeo = pytest.importorskip("ZEO")
    blobs = tmp_path / "blobs"
    with served(tmp_path, f"  blob-dir {blobs}\n") as address:
        # Create the database first. Otherwise several clients would find it empty, and each would
        # create the root.
        ZODB.DB(zeo.client(address)).close()
        stop = threading.Event()
        failed: list[Exception] = []

        def commit(name: str) -> None:
            db = ZODB.DB(zeo.client(address, blob_dir=str(tmp_path / name)))
            try:
                while not stop.is_set():
                    try:
                        with db.transaction() as connection:
                            values = connection.root().setdefault(name, PersistentMapping())
                            number = values.get("number", 0) + 1
                            values["number"], values["blob"] = number, Blob(b"%d" % number)
                        with db.transaction() as connection:
                            values = connection.root()[name]
                            assert blob_data(values["blob"]) == b"%d" % values["number"]
                    except ConflictError:
                        continue
            except Exception as error:
                failed.append(error)
            finally:
                db.close()

        clients = [threading.Thread(target=commit, args=(f"client-{number}",)) for number in range(3)]
        for client in clients:
            client.start()
        packer = zeo.client(address)
        try:
            for _ in range(10):
                packer.pack(time.time() + 1, wait=True)
        finally:
            stop.set()
            for client in clients:
                client.join()
            packer.close()
        assert not failed


# Cleanup, and the place of a transaction in the store


def test_cleanup_removes_what_the_storage_made_and_nothing_else(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "data", tmp_path / "blobs"
    for shared in (False, True):
        storage = PlimsollStorage(folder, blob_dir=blobs, shared=shared)
        other = PlimsollStorage(folder, shared=shared)
        db = ZODB.DB(storage)
        with db.transaction() as connection:
            connection.root()["blob"] = Blob(b"data")
        db.close()
        with pytest.raises(StorageError, match="open in this process"):
            storage.cleanup()
        other.close()
        if shared:
            (folder / "notes.txt").write_text("mine")
        storage.cleanup()
        storage.cleanup()
        assert [name for _, _, names in os.walk(blobs) for name in names if name.endswith(".blob")] == []
        assert (os.listdir(folder) == ["notes.txt"]) if shared else not folder.exists()


def test_cleanup_through_a_demostorage(tmp_path: Path) -> None:
    storage = DemoStorage(base=PlimsollStorage(tmp_path / "base"), changes=PlimsollStorage(tmp_path / "changes"))
    ZODB.DB(storage).close()
    storage.cleanup()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep_history", [True, False])
def test_a_tid_is_mapped_to_its_glsn_and_back_also_after_packs(tmp_path: Path, keep_history: bool) -> None:
    storage = PlimsollStorage(tmp_path / "data", keep_history=keep_history)
    db = ZODB.DB(storage)
    tids = []
    for number in range(10):
        with db.transaction() as connection:
            connection.root()[number] = PersistentMapping()
        tids.append(db.lastTransaction())
        storage.db.put(b"another commit", b"")
    glsns = [storage.glsn_of(tid) for tid in tids]
    assert glsns == sorted(set(glsns))
    assert [storage.db.log.commit(glsn).glsn for glsn in glsns] == glsns
    for _ in range(2):
        assert [storage.tid_at(glsn) for glsn in glsns] == tids
        assert [storage.tid_at(glsn + 1) for glsn in glsns] == tids
        assert [storage.tid_at(glsn - 1) for glsn in glsns[1:]] == tids[:-1]
        assert storage.tid_at(0) == z64 and storage.tid_at(storage.db.newest) == tids[-1]
        db.pack()
        kept = [record.tid for record in storage.iterator()]
        assert {tid: storage.glsn_of(tid) for tid in tids if tid in kept} == {
            tid: glsn for tid, glsn in zip(tids, glsns, strict=True) if tid in kept
        }
        assert tids[-1] in kept and len(kept) > 5
        tids, glsns = map(list, zip(*((tid, glsn) for tid, glsn in zip(tids, glsns, strict=True) if tid in kept), strict=True))
        glsns = list(glsns)
    with pytest.raises(POSKeyError):
        storage.glsn_of(b"\0" * 7 + b"\1")
    db.close()
