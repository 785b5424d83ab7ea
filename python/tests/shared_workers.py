"""What the child processes of `test_shared.py` run: functions of a module that they can import."""

from __future__ import annotations

import os
from typing import Any

import plimsoll

TOTAL = "96MiB"


def open_shared(path: str) -> plimsoll.Db:
    """A store that shares its memory with the others."""
    return plimsoll.open(path, shared=True, memory_total=TOTAL)


def count(path: str, rounds: int, start: Any) -> None:
    """Counts up one number together with the others, and writes keys of its own."""
    with open_shared(path) as db:
        start.wait(60)

        def one_more(tx: plimsoll.Transaction) -> int:
            number = int(tx.get(b"count", b"0")) + 1
            tx[b"count"] = b"%d" % number
            return number

        for number in range(rounds):
            seen = db.transact(one_more)
            db[b"%d/%04d" % (os.getpid(), number)] = b"%d" % seen
            # What anybody has acknowledged is here.
            assert int(db[b"count"]) >= seen


def answer(path: str, questions: Any, answers: Any) -> None:
    """Tells what it reads, each time that it is asked, in every way to read."""
    with open_shared(path) as db:
        assert b"key" not in db
        answers.put(os.getpid())
        while (key := questions.get(timeout=60)) is not None:
            with db.snapshot() as snapshot:
                found = [snapshot.get(key)]
            found += [db.get(key), db.get_many([key])[0], db.transaction().get(key), dict(db.items(prefix=key)).get(key)]
            answers.put((found, key in db, db.newest))


def write_until_killed(path: str, acknowledged: Any) -> None:
    """Writes one key after the other, and says which are committed."""
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
