"""ZODB's own race tests, on the storage itself and on the adapter that ZODB puts around a storage
without snapshots.

PLIMSOLL_RACE_ROUNDS=20 runs each of them 20 times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ZODB
from ZODB import interfaces
from ZODB.Connection import TransactionMetaData
from ZODB.DemoStorage import DemoStorage
from ZODB.tests import racetest
from ZODB.tests.MinPO import MinPO
from ZODB.tests.StorageTestBase import zodb_pickle
from ZODB.utils import load_current, z64
from zope.interface import directlyProvides, providedBy

from plimsoll.zodb import PlimsollStorage

ROUNDS = int(os.environ.get("PLIMSOLL_RACE_ROUNDS", "3"))

LOCAL = "_check_race_loadopen_vs_local_invalidate"
EXTERNAL = "_check_race_load_vs_external_invalidate"
DISCONNECT = "_check_race_external_invalidate_vs_disconnect"
MODELS = (racetest.T2ObjectsInc, racetest.T2ObjectsInc2Phase)

pytestmark = [
    pytest.mark.timeout(600),
    # ZEO closes some of its sockets only when they are collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Case(racetest.RaceTests):  # type: ignore[misc, unused-ignore]
    """The part of a `unittest.TestCase` that the race tests use."""

    def __init__(self, storage: Any, new_client: Callable[[], Any]) -> None:
        self._storage, self._new_storage_client = storage, new_client

    def fail(self, message: str) -> None:
        """Fails the test."""
        pytest.fail(message)


class WithoutSnapshots:
    """A storage that does not declare its snapshots, so that ZODB puts its `MVCCAdapter` around
    it."""

    def __init__(self, storage: PlimsollStorage) -> None:
        self._inner = storage
        hidden = (interfaces.IMVCCStorage, interfaces.IMVCCPrefetchStorage, interfaces.IMVCCAfterCompletionStorage)
        directlyProvides(self, *(one for one in providedBy(storage).flattened() if one not in hidden))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)


def plain(path: Path) -> PlimsollStorage:
    """The storage itself."""
    return PlimsollStorage(path, memory="32MB")


STORAGES: dict[str, Callable[[Path], Any]] = {
    "plain": plain,
    "no history": lambda path: PlimsollStorage(path, memory="32MB", keep_history=False),
    "shared": lambda path: PlimsollStorage(path, memory="32MB", shared=True),
    "MVCCAdapter": lambda path: WithoutSnapshots(plain(path)),
    "DemoStorage": lambda path: DemoStorage(changes=plain(path)),
    "DemoStorage of two": lambda path: DemoStorage(base=plain(path / "base"), changes=plain(path / "changes")),
    "DemoStorage twice": lambda path: DemoStorage(base=plain(path / "base"), changes=plain(path / "between")).push(plain(path / "changes")),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", STORAGES)
def test_no_connection_sees_half_of_a_local_commit(tmp_path: Path, kind: str, model: type[Any]) -> None:
    for number in range(ROUNDS):
        path = tmp_path / str(number)
        path.mkdir()
        getattr(Case(STORAGES[kind](path), lambda: None), LOCAL)(model())


@pytest.mark.parametrize("check", [EXTERNAL, DISCONNECT])
@pytest.mark.parametrize("kind", ["plain", "no history", "shared"])
def test_no_connection_sees_half_of_the_commit_of_another_storage(tmp_path: Path, kind: str, check: str) -> None:
    for number in range(ROUNDS):
        path = tmp_path / str(number)
        path.mkdir()
        kept = STORAGES[kind](path)
        getattr(Case(None, lambda: STORAGES[kind](path)), check)(racetest.T2ObjectsInc2Phase())
        kept.close()


@contextmanager
def served(path: Path, folder: Path) -> Iterator[Any]:
    """The address of a ZEO server over a store."""
    zeo = pytest.importorskip("ZEO")
    before = os.getcwd()
    os.chdir(folder)
    try:
        address, stop = zeo.server(storage_conf=f"%import plimsoll.zodb\n<plimsoll>\n  path {path}\n  memory 32MB\n</plimsoll>", port=0)
    finally:
        os.chdir(before)
    try:
        yield address
    finally:
        stop()


@pytest.mark.parametrize("check", [LOCAL, EXTERNAL, DISCONNECT])
def test_no_client_of_a_zeo_server_sees_half_of_a_commit(tmp_path: Path, check: str) -> None:
    zeo = pytest.importorskip("ZEO")
    for number in range(ROUNDS):
        with served(tmp_path / str(number), tmp_path) as address:
            new_client = lambda address=address: zeo.client(address, wait_timeout=60)  # noqa: E731
            getattr(Case(new_client() if check == LOCAL else None, new_client), check)(racetest.T2ObjectsInc2Phase())


def test_last_transaction_is_told_after_its_callback(tmp_path: Path) -> None:
    storage = plain(tmp_path / "data")
    seen: list[tuple[bytes, bytes, bytes]] = []

    def commit(number: int) -> bytes:
        transaction = TransactionMetaData()
        storage.tpc_begin(transaction)
        serial = seen[-1][0] if seen else z64
        storage.store(z64, serial, zodb_pickle(MinPO(number)), "", transaction)
        storage.tpc_vote(transaction)
        tid: bytes = storage.tpc_finish(
            transaction, lambda tid: seen.append((tid, storage.lastTransaction(), load_current(storage, z64)[1]))
        )
        assert storage.lastTransaction() == tid
        return tid

    tids = [commit(number) for number in range(3)]
    # A caller invalidates in the callback: before, no new connection may begin at the new tid, and
    # afterwards, one that begins there must find the new data.
    assert seen == list(zip(tids, [z64, *tids], tids, strict=False))
    storage.close()


def test_a_failing_callback_leaves_a_commit_that_is_read(tmp_path: Path) -> None:
    storage = plain(tmp_path / "data")
    transaction = TransactionMetaData()
    storage.tpc_begin(transaction)
    storage.store(z64, z64, zodb_pickle(MinPO(1)), "", transaction)
    storage.tpc_vote(transaction)

    def fail(_tid: bytes) -> None:
        raise ValueError("callback")

    with pytest.raises(ValueError, match="callback"):
        storage.tpc_finish(transaction, fail)
    assert storage.lastTransaction() == load_current(storage, z64)[1]
    ZODB.DB(storage).close()
