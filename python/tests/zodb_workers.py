"""Functions that the child processes of `test_zodb_processes.py` run: a bank, kept by several
processes on one store."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import transaction
import ZODB
from BTrees.Length import Length
from persistent import Persistent
from persistent.mapping import PersistentMapping
from ZODB.POSException import ConflictError

from plimsoll.zodb import PlimsollStorage

ACCOUNTS = 40
BALANCE = 1_000


def storage(path: str, **options: Any) -> PlimsollStorage:
    """The storage as each process opens it."""
    return PlimsollStorage(path, shared=True, memory_total="256MiB", **options)


class Note(Persistent):  # type: ignore[misc, unused-ignore]
    """The process that created it. If two processes were assigned one oid, they would disagree on it."""

    def __init__(self, writer: int, number: int) -> None:
        self.writer, self.number = writer, number


def make_bank(path: str) -> None:
    """Accounts, notes of each writer, and a count of all transfers that merges conflicts."""
    db = ZODB.DB(storage(path))
    with db.transaction() as connection:
        root = connection.root()
        root["accounts"] = PersistentMapping()
        for number in range(ACCOUNTS):
            root["accounts"][number] = PersistentMapping(balance=BALANCE)
        root["notes"] = PersistentMapping((writer, PersistentMapping()) for writer in range(8))
        root["transfers"] = Length()
    db.close()


def check_bank(root: Any) -> int:
    """Checks the invariants of a state; returns the number of transfers."""
    total = sum(account["balance"] for account in root["accounts"].values())
    assert total == ACCOUNTS * BALANCE, total
    notes = 0
    for writer, made in root["notes"].items():
        for number, note in made.items():
            assert (note.writer, note.number) == (writer, number)
            notes += 1
    transfers: int = root["transfers"]()
    # A note is made with each transfer, in one transaction.
    assert notes == transfers, (notes, transfers)
    return transfers


def write(path: str, writer: int, seed: int, acknowledged: Any) -> None:
    """Moves money until it is killed; reports each commit that has returned."""
    random.seed(seed)
    db = ZODB.DB(storage(path))
    connection = db.open()
    root = connection.root()
    number = max(root["notes"][writer], default=-1)
    while True:
        number += 1
        while True:
            try:
                first, second = (root["accounts"][key] for key in random.sample(range(ACCOUNTS), 2))
                amount = random.randrange(100)
                first["balance"] -= amount
                second["balance"] += amount
                root["notes"][writer][number] = Note(writer, number)
                root["transfers"].change(1)
                transaction.get().note(f"{writer}/{number}")
                transaction.commit()
                break
            except ConflictError:
                transaction.abort()
        note = root["notes"][writer][number]
        # After a pack that this process was too slow for, it is a ghost, which has no serial.
        note._p_activate()
        acknowledged.send((number, note._p_serial))


def read(path: str, seed: int, seen: Any) -> None:
    """Reads whole states until it is killed, through a long-lived connection and through new
    ones."""
    random.seed(seed)
    db = ZODB.DB(storage(path))
    connection = db.open()
    last = 0
    while True:
        connection.sync()
        transfers = check_bank(connection.root())
        assert transfers >= last, "a later state has all that an earlier one had"
        last = transfers
        with db.transaction() as other:
            assert check_bank(other.root()) >= last
        seen.send(last)
        if random.random() < 0.2:
            connection.cacheMinimize()


def add_objects(path: str, writer: int, count: int, results: Any) -> None:
    """Stores its own objects at the same time as the other processes; reports their oids and the
    tids."""
    db = ZODB.DB(storage(path))
    for number in range(count):
        while True:
            try:
                with db.transaction() as connection:
                    notes = connection.root()["notes"][writer]
                    made = notes[number] = [Note(writer, number) for _ in range(20)]
                    connection.add(made[0])
                break
            except ConflictError:
                continue
        with db.transaction() as connection:
            made = connection.root()["notes"][writer][number]
            results.put(([note._p_oid for note in made], connection.root()["notes"][writer]._p_serial))
    db.close()


def hold_a_vote(path: str, voted: Any) -> None:
    """Votes, and is killed before it finishes."""
    db = ZODB.DB(storage(path))
    connection = db.open()
    connection.root()["transfers"].change(1)
    current = transaction.get()
    vote = db.storage.__class__.tpc_vote

    def wait(self: Any, of: Any) -> Any:
        result = vote(self, of)
        voted.set()
        time.sleep(60)
        return result

    db.storage.__class__.tpc_vote = wait
    current.commit()
    os._exit(1)


def store_blob(path: str, blobs: str, data: bytes) -> None:
    """Stores a blob."""
    from ZODB.blob import Blob

    db = ZODB.DB(storage(path, blob_dir=blobs))
    with db.transaction() as connection:
        connection.root()["blob"] = Blob(data)
    db.close()


def open_new(path: str, barrier: Any) -> None:
    """Opens a storage that does not exist yet, at the same time as other processes, and writes into
    its root."""
    barrier.wait(60)
    db = ZODB.DB(storage(path))
    while True:
        try:
            with db.transaction() as connection:
                connection.root()[os.getpid()] = 1
            break
        except ConflictError:
            continue
    db.close()
