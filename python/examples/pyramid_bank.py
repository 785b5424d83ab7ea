"""A Pyramid application with traversal over one ZODB, in four worker processes. Run: python pyramid_bank.py [FOLDER].

    pip install './python[zodb]' zodburi pyramid pyramid-zodbconn pyramid-tm pyramid-retry waitress
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import sys
from typing import Any

import waitress
from BTrees.OOBTree import OOBTree
from persistent import Persistent
from persistent.mapping import PersistentMapping
from pyramid.config import Configurator
from pyramid_zodbconn import get_connection
from ZODB import DB

from plimsoll.zodb import PlimsollStorage

ACCOUNTS, START, WORKERS = 20, 100, 4


class Bank(PersistentMapping):
    """The root of the site, with accounts by name: /ada"""

    __parent__ = __name__ = None

    def __init__(self) -> None:
        super().__init__()
        self.notes = OOBTree()


class Account(Persistent):
    """An account of the bank."""

    def __init__(self, bank: Bank, name: str) -> None:
        self.__parent__, self.__name__, self.balance = bank, name, START


def make_bank(folder: str) -> None:
    """Creates the bank, if it does not exist."""
    db = DB(PlimsollStorage(folder, shared=True, memory="32MB"))
    with db.transaction() as connection:
        root = connection.root()
        if "bank" not in root:
            root["bank"] = bank = Bank()
            bank.update({name: Account(bank, name) for name in map(str, range(ACCOUNTS))})
    db.close()


def show_bank(bank: Bank, request: Any) -> dict[str, int]:
    """GET /"""
    return {"total": sum(account.balance for account in bank.values()), "notes": len(bank.notes)}


def show_account(account: Account, request: Any) -> dict[str, int]:
    """GET /3"""
    return {"balance": account.balance}


def pay(account: Account, request: Any) -> dict[str, int]:
    """POST /3/pay?to=5&amount=10&note=rent: a transaction that is retried after a conflict."""
    bank, target, amount = account.__parent__, request.params["to"], int(request.params["amount"])
    account.balance -= amount
    bank[target].balance += amount
    bank.notes[request.params["note"]] = account.__name__, target, amount
    return {"balance": account.balance}


def make_application(folder: str) -> Any:
    """The application, for `paster` or a WSGI server."""
    settings = {
        "zodbconn.uri": f"plimsoll://{os.path.abspath(folder)}?shared=1&memory_total=128MB",
        "tm.manager_hook": "pyramid_tm.explicit_manager",
        "retry.attempts": "50",
    }
    with Configurator(settings=settings, root_factory=lambda request: get_connection(request).root()["bank"]) as config:
        for package in ("pyramid_retry", "pyramid_tm", "pyramid_zodbconn"):
            config.include(package)
        config.add_view(show_bank, context=Bank, renderer="json")
        config.add_view(show_account, context=Account, renderer="json")
        config.add_view(pay, context=Account, name="pay", request_method="POST", renderer="json")
        return config.make_wsgi_app()


def work(folder: str, told: Any) -> None:
    """A worker: prints its port, and serves until it is killed."""
    server = waitress.create_server(make_application(folder), host="127.0.0.1", port=0, threads=8)
    told.send(server.effective_port)
    server.run()


class Worker:
    """A worker process and its port."""

    def __init__(self, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        pipe, end = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(folder, end), daemon=True)
        self.process.start()
        end.close()
        self.port: int = pipe.recv()

    def ask(self, method: str, path: str) -> Any:
        """Sends a request and returns the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{method} {path}: {answer.status} {body[:200]!r}")
            return json.loads(body)
        finally:
            connection.close()

    def end(self) -> None:
        """Kills the worker at any point."""
        self.process.kill()
        self.process.join()


def main() -> None:
    """Pays through each worker, and reads through another one."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "pyramid.plimsoll"
    make_bank(folder)
    workers = [Worker(folder) for _ in range(WORKERS)]
    try:
        for number, worker in enumerate(workers):
            paid = worker.ask("POST", f"/{number}/pay?to={number + 1}&amount=5&note={os.getpid()}-{number}")
            seen = workers[number - 1].ask("GET", f"/{number}")
            assert paid == seen, "the others see what has been answered"
        print(workers[0].ask("GET", "/"))
        assert workers[0].ask("GET", "/")["total"] == ACCOUNTS * START
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    main()
