"""What all tests share: a path for a store, and an open one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import plimsoll


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a store can be made."""
    return str(tmp_path / "store")


@pytest.fixture
def db(path: str) -> Iterator[plimsoll.Db]:
    """An open store."""
    with plimsoll.open(path, memory="16MiB") as opened:
        yield opened
