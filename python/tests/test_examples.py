"""The examples run, twice over the same folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("example", sorted(file.name for file in FOLDER.glob("*.py")))
def test_an_example_runs(example: str, tmp_path: Path) -> None:
    for _ in range(2 if example != "change_feed.py" else 1):
        # Pyramid imports what warns that it is deprecated.
        warnings = "ignore" if example == "pyramid_bank.py" else "error"
        command = [sys.executable, "-W", warnings, str(FOLDER / example), str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout
