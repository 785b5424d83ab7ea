"""What all tests share: a path for a store, and an open one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
