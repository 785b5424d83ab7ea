"""Fixtures of all tests: a path for a store, an open store, and an open cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import plimsoll

# Use the same examples in each run, so that a failure is caused by a change. PLIMSOLL_RANDOM=1
# generates new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
if not os.environ.get("PLIMSOLL_RANDOM"):
    settings.load_profile("fixed")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A path at which a store can be created."""
    return str(tmp_path / "store")


@pytest.fixture
def db(path: str) -> Iterator[plimsoll.Db]:
    """An open store."""
    with plimsoll.open(path, memory="16MiB") as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[plimsoll.Cache]:
    """An open cache."""
    with plimsoll.Cache(tmp_path / "cache", memory="16MiB") as opened:
        yield opened
        assert opened.check() == []


class Around:
    """A wrapper around an object that replaces some of its attributes."""

    def __init__(self, inner: Any, **own: Any) -> None:
        self.inner = inner
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _interrupted(transaction: Any) -> Any:
    def commit_submit() -> None:
        transaction.commit_submit()
        raise KeyboardInterrupt

    return Around(transaction, commit_submit=commit_submit)


@pytest.fixture
def around() -> type[Around]:
    """`Around`."""
    return Around


@pytest.fixture
def interrupted() -> Callable[[Any], Any]:
    """Wraps a transaction of a store so that a signal interrupts it right after its commit is
    ordered."""
    return _interrupted
