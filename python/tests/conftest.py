"""What all tests share: a path for a store, and an open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import plimsoll

# The same examples each time: a run tells about a change, not about luck. PLIMSOLL_RANDOM=1 looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
if not os.environ.get("PLIMSOLL_RANDOM"):
    settings.load_profile("fixed")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a store can be made."""
    return str(tmp_path / "store")


@pytest.fixture
def db(path: str) -> Iterator[plimsoll.Db]:
    """An open store."""
    with plimsoll.open(path, memory="16MiB") as opened:
        yield opened


class Around:
    """Another object, with some attributes of its own."""

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
    """Makes of a transaction of a store one that a signal interrupts right after its commit is ordered."""
    return _interrupted
