"""A Pyramid application under four worker processes, one of which is killed while clients send
requests."""

from __future__ import annotations

import http.client
import itertools
import random
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import ZODB

import plimsoll
from plimsoll.zodb import PlimsollStorage

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

with warnings.catch_warnings():
    # Pyramid imports a deprecated module, which warns.
    warnings.simplefilter("ignore")
    import pyramid_bank
    from pyramid_bank import ACCOUNTS, START, Worker

CLIENTS, REQUESTS = 8, 250
"""The number of requests of each client, which continues until all kills are done. Every third
request pays."""


@pytest.fixture
def workers(path: str) -> Iterator[list[Worker]]:
    """Four of them on one bank."""
    pyramid_bank.make_bank(path)
    started = [Worker(path) for _ in range(4)]
    yield started
    for worker in started:
        worker.end()


class Client:
    """Sends requests to any worker, and records the answers."""

    def __init__(self, number: int, workers: list[Worker], killed: list[Worker], enough: threading.Event) -> None:
        self.number, self.workers, self.random = number, workers, random.Random(number)
        self.killed, self.enough = killed, enough
        self.answered = self.unanswered = 0
        self.paid: list[str] = []
        self.unsure: list[str] = []
        """Payments whose worker was killed before it answered."""
        self.totals: set[int] = set()
        self.notes: list[int] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Sends the requests."""
        for number in itertools.count():
            if number >= REQUESTS and self.enough.is_set():
                return
            worker = self.random.choice(self.workers)
            source, target = self.random.sample(range(ACCOUNTS), 2)
            note = f"{self.number}-{number}"
            try:
                if number % 3 == 0:
                    worker.ask("POST", f"/{source}/pay?to={target}&amount={self.random.randrange(20)}&note={note}")
                    self.paid.append(note)
                elif number % 3 == 1:
                    answer = worker.ask("GET", "/")
                    self.totals.add(answer["total"])
                    self.notes.append(answer["notes"])
                else:
                    worker.ask("GET", f"/{source}")
                self.answered += 1
            except (OSError, http.client.HTTPException):
                if worker not in self.killed:
                    raise
                # Another worker replaces it soon.
                self.unanswered += 1
                if number % 3 == 0:
                    self.unsure.append(note)
                time.sleep(0.05)


def test_the_total_is_preserved_while_workers_are_killed(path: str, workers: list[Worker]) -> None:
    killed: list[Worker] = []
    enough = threading.Event()
    clients = [Client(number, workers, killed, enough) for number in range(CLIENTS)]
    for client in clients:
        client.thread.start()
    try:
        for kill in range(3):
            while sum(client.answered for client in clients) <= 150 * (kill + 1):
                assert any(client.thread.is_alive() for client in clients)
                time.sleep(0.02)
            killed.append(workers[kill])
            workers[kill].end()
            workers[kill] = Worker(path)
    finally:
        enough.set()
        for client in clients:
            client.thread.join()

    assert all(client.answered + client.unanswered >= REQUESTS for client in clients)
    assert any(client.unanswered for client in clients), "some asked a worker that was killed"
    assert set().union(*(client.totals for client in clients)) == {ACCOUNTS * START}, "a state between two payments was seen"

    for worker in workers:
        worker.end()
    db = ZODB.DB(PlimsollStorage(path, shared=True, memory="32MB"))
    with db.transaction() as connection:
        bank = connection.root()["bank"]
        notes = dict(bank.notes)
        balances = {name: account.balance for name, account in bank.items()}
    paid = {note for client in clients for note in client.paid}
    unsure = {note for client in clients for note in client.unsure}
    assert paid <= set(notes) <= paid | unsure, "what was answered is there, and nothing else"
    expected = dict.fromkeys(balances, START)
    for source, target, amount in notes.values():
        expected[source] -= amount
        expected[target] += amount
    assert balances == expected
    db.close()
    with plimsoll.open(path, memory="32MiB") as store:
        assert store.verify().ok
