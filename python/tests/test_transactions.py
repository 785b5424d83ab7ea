"""Transactions: one commit or none, conflicts, retries."""

from __future__ import annotations

import asyncio
import threading

import pytest

import plimsoll


def test_a_block_is_one_commit(db: plimsoll.Db) -> None:
    before = db.newest
    with db.transaction(metadata=b"by Ada") as tx:
        tx[b"a"] = b"1"
        tx.update({b"b": b"2"})
        assert tx[b"a"] == b"1" and b"a" not in db and tx.glsn is None and tx.at == before
    assert tx.glsn == db.newest == before + 1 and dict(db) == {b"a": b"1", b"b": b"2"}
    commit = db.log.commit(before + 1)
    assert commit is not None and commit.metadata == b"by Ada" and commit.read_at == before


def test_an_exception_in_a_block_writes_nothing(db: plimsoll.Db) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx[b"a"] = b"1"
        1 / 0  # noqa: B018
    assert len(db) == 0 and tx.glsn is None


def test_a_later_change_of_read_data_is_a_conflict(db: plimsoll.Db) -> None:
    db[b"seat"] = b"free"
    tx = db.transaction()
    assert tx[b"seat"] == b"free"
    by = db.put(b"seat", b"taken")
    tx[b"other"] = b"1"
    with pytest.raises(plimsoll.Conflict) as caught:
        tx.commit()
    assert (caught.value.key[-4:], caught.value.at, caught.value.by) == (b"seat", by - 1, by)
    assert b"other" not in db


def test_a_range_that_was_read_conflicts_with_a_new_key_in_it(db: plimsoll.Db) -> None:
    tx = db.transaction()
    assert tx.count(prefix=b"order/") == 0
    db[b"order/1"] = b""
    tx[b"total"] = b"0"
    with pytest.raises(plimsoll.Conflict):
        tx.commit()


def test_a_transaction_that_has_ended_says_so(db: plimsoll.Db) -> None:
    committed, aborted = db.transaction(), db.transaction()
    committed.commit()
    aborted.abort()
    aborted.abort()
    for tx, how in ((committed, "committed"), (aborted, "aborted")):
        for use in (lambda: tx[b"a"], lambda: tx.put(b"a", b"1"), tx.commit, lambda: list(tx)):  # noqa: B023
            with pytest.raises(plimsoll.TransactionEnded, match=how):
                use()


def test_transact_counts_right_from_many_threads(db: plimsoll.Db) -> None:
    def add(tx: plimsoll.Transaction, key: bytes, amount: int) -> int:
        total = int(tx.get(key, b"0")) + amount
        tx[key] = b"%d" % total
        return total

    def work() -> None:
        for _ in range(25):
            db.transact(add, b"total", amount=2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db[b"total"] == b"200"


def test_transact_passes_exceptions_on_and_refuses_coroutines(db: plimsoll.Db) -> None:
    def fails(tx: plimsoll.Transaction) -> None:
        tx[b"a"] = b"1"
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        db.transact(fails)

    async def waits(tx: plimsoll.Transaction) -> None:
        tx[b"a"] = b"1"

    with pytest.raises(TypeError, match="event loop"), pytest.warns(RuntimeWarning, match="never awaited"):
        db.transact(waits)
    assert len(db) == 0


def test_transactions_span_keyspaces(db: plimsoll.Db) -> None:
    cats = db.keyspace("cats")
    with db.transaction() as tx:
        tx[b"a"] = b"1"
        tx.keyspace(cats)[b"tom"] = b"grey"
        assert list(tx.keyspace("cats")) == [b"tom"]
    assert cats[b"tom"] == b"grey" and b"tom" not in db
    with pytest.raises(plimsoll.NoKeyspace, match="dogs"):
        db.transaction().keyspace("dogs")


def test_an_iterator_of_a_transaction_returns_keys_written_ahead_of_it(db: plimsoll.Db) -> None:
    db.put_many((b"%04d" % number, b"") for number in range(2_000))
    tx = db.transaction()
    walk = iter(tx)
    assert [next(walk) for _ in range(3)] == [b"0000", b"0001", b"0002"]
    tx[b"1999+"] = b""
    del tx[b"1998"]
    assert list(walk)[-2:] == [b"1999", b"1999+"] and tx.count() == 2_000


def test_tickets_are_waited_for_by_threads_and_by_tasks(db: plimsoll.Db) -> None:
    async def together() -> list[int]:
        tickets = []
        for number in range(5):
            tx = db.transaction()
            tx[b"%d" % number] = b""
            tickets.append(tx.commit_submit())
        return list(await asyncio.gather(*tickets))

    glsns = asyncio.run(together())
    assert glsns == sorted(glsns) and db.count() == 5
    ticket = db.log.append_submit(3, b"entry")
    assert ticket.wait() == ticket.glsn == ticket.wait() and ticket.is_durable


def test_a_transaction_larger_than_memory_is_one_commit(db: plimsoll.Db) -> None:
    before = db.newest
    with db.transaction() as tx:
        for number in range(40):
            tx[b"%02d" % number] = bytes([number]) * (1 << 20)
        assert tx[b"07"] == b"\7" * (1 << 20)
    assert db.newest == before + 1 and db[b"39"] == b"\x27" * (1 << 20)
    stats = db.stats()["memory"]
    assert stats["peak_bytes"] <= stats["limit_bytes"] == 16 << 20


def test_a_new_keyspace_is_created_once_by_two_threads(db: plimsoll.Db) -> None:
    made: list[plimsoll.Keyspace] = []
    threads = [threading.Thread(target=lambda: made.append(db.keyspace("both"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made[0][b"a"] = b"1"
    assert len(made) == 8 and all(space[b"a"] == b"1" for space in made)


def test_a_ticket_says_durable_only_when_it_is(path: str) -> None:
    with plimsoll.open(path, memory="16MiB", durability="buffered") as db:
        tx = db.transaction()
        tx[b"a"] = b"1"
        ticket = tx.commit_submit()
        assert ticket.wait() == ticket.glsn
        assert ticket.is_durable == (db.log.bounds.durable >= ticket.glsn)
        db.sync()
        assert ticket.is_durable


def test_all_waiters_of_a_ticket_wait_until_it_is_durable(db: plimsoll.Db) -> None:
    early = []

    def wait(ticket: plimsoll.Ticket) -> None:
        if ticket.wait() > db.log.bounds.durable:
            early.append(ticket)

    for number in range(100):
        tx = db.transaction()
        tx[b"a"] = b"%d" % number * 1_000
        ticket = tx.commit_submit()
        threads = [threading.Thread(target=wait, args=(ticket,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait(ticket)
        assert ticket.is_durable
        for thread in threads:
            thread.join()
    assert early == []


def test_updates_of_one_key_do_not_conflict() -> None:
    db = plimsoll.in_memory()
    one, other = db.transaction(), db.transaction()
    for tx in (one, other):
        assert tx.add(b"n", 2) is None
        assert tx.append(b"text", b"x") is None
        assert tx.set_bit(b"bits", 1) is None
    one.commit()
    other.commit()
    assert int.from_bytes(db[b"n"], "little", signed=True) == 4
    assert (db[b"text"], db[b"bits"]) == (b"xx", b"\x02")
    assert len(list(db.history(b"bits"))) == 1


def test_refused_update_writes_nothing() -> None:
    db = plimsoll.in_memory()
    db[b"text"] = b"abc"
    with pytest.raises(ValueError, match="has 3 bytes"):
        db.add(b"text")
    db.add(b"n", 2**63 - 1)
    with pytest.raises(ValueError, match="does not fit"):
        db.add(b"n")
    with pytest.raises(ValueError, match="overflow is"):
        db.add(b"n", overflow="none")  # type: ignore[arg-type]
    assert db.add(b"n", overflow="saturating") == 2**63 - 1
    assert db.add(b"n", overflow="wrapping") == -(2**63)
    tx = db.transaction()
    tx[b"other"] = b"1"
    tx.compare_and_swap(b"text", b"abd", None)
    with pytest.raises(ValueError, match="not the expected one"):
        tx.commit()
    assert b"other" not in db


def test_modify_calls_its_function_with_the_value() -> None:
    db = plimsoll.in_memory()
    assert db.modify(b"a", lambda old: (old or b"") + b"x") == b"x"
    with db.transaction() as tx:
        assert tx.modify(b"a", lambda old: (old or b"") + b"y") == b"xy"
    assert db.modify(b"a", lambda old: None) is None
    assert b"a" not in db
    with pytest.raises(ZeroDivisionError):
        db.modify(b"a", lambda old: b"%d" % (1 // 0))


def test_threads_that_add_to_one_counter_lose_nothing() -> None:
    db = plimsoll.in_memory()
    threads = [threading.Thread(target=lambda: [db.add(b"n") for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.add(b"n", 0) == 1600
