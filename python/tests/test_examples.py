"""The examples run, twice over the same folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("example", sorted(file.name for file in FOLDER.glob("*.py")))
def test_an_example_runs(example: str, tmp_path: Path) -> None:
    for _ in range(2 if example != "change_feed.py" else 1):
        # Pyramid imports a deprecated module, which warns.
        warnings = "ignore" if example == "pyramid_bank.py" else "error"
        command = [sys.executable, "-W", warnings, str(FOLDER / example), str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout


def test_an_example_does_not_open_the_folder_of_another_or_of_the_documentation() -> None:
    texts = [*FOLDER.glob("*.py"), FOLDER.parent / "README.md"]
    folders = [(folder, text.name) for text in texts for folder in set(re.findall(r'"(\w+\.plimsoll)"', text.read_text()))]
    assert len(folders) > 3 and len({folder for folder, _ in folders}) == len(folders), folders


def test_the_examples_of_the_readme_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (FOLDER.parent / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    command = [sys.executable, "-c", "\n".join(blocks)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert "b'user/ada' b'Ada Lovelace'" in done.stdout


def test_the_notebook_runs_and_draws_what_it_says(tmp_path: Path) -> None:
    cells = json.loads((FOLDER / "memory.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    program += "\nassert curve[0] > 0.05 and all(more <= less + 0.01 for less, more in zip(curve, curve[1:])), curve\nassert len(samples) > 10 and max(counted) > LIMIT / 2\n"
    environment = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stderr
