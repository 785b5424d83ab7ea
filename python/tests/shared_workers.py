"""Functions that the child processes of `test_shared.py` run, in a module that they can import."""

from __future__ import annotations

import os
from typing import Any

import plimsoll

TOTAL = "96MiB"


def open_shared(path: str) -> plimsoll.Db:
    """Opens a store that shares its memory with the other processes."""
    return plimsoll.open(path, shared=True, memory_total=TOTAL)


def count(path: str, rounds: int, start: Any) -> None:
    """Increments a number that all processes increment, and writes keys of its own."""
    with open_shared(path) as db:
        start.wait(60)

        def one_more(tx: plimsoll.Transaction) -> int:
            number = int(tx.get(b"count", b"0")) + 1
            tx[b"count"] = b"%d" % number
            return number

        for number in range(rounds):
            seen = db.transact(one_more)
            db[b"%d/%04d" % (os.getpid(), number)] = b"%d" % seen
            # Every acknowledged commit is present.
            assert int(db[b"count"]) >= seen


def answer(path: str, questions: Any, answers: Any) -> None:
    """On each request, reads by every read call and reports the results."""
    with open_shared(path) as db:
        assert b"key" not in db
        answers.put(os.getpid())
        while (key := questions.get(timeout=60)) is not None:
            with db.snapshot() as snapshot:
                found = [snapshot.get(key)]
            found += [db.get(key), db.get_many([key])[0], db.transaction().get(key), dict(db.items(prefix=key)).get(key)]
            answers.put((found, key in db, db.newest))


def write_until_killed(path: str, acknowledged: Any) -> None:
    """Writes one key after the other, and reports the committed ones."""
    db = open_shared(path)
    for number in range(10_000_000):
        db[b"k/%08d" % number] = b"x" * 100
        acknowledged.put(number)


def wait_for_one(path: str, ready: Any, found: Any) -> None:
    """Waits for a change of another process."""
    with open_shared(path) as db, db.watch(b"news/") as watch:
        ready.set()
        change = watch.next(timeout=60)
        assert change is not None
        found.put((change.key, change.value(), change.glsn))
