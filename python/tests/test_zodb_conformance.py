"""ZODB's own cases for storages.

They are in `shared/conformance` beside the repository, which exists where changes are checked.
Elsewhere these tests are skipped, and only those of `test_zodb` run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = "shared/conformance/zodb_conformance.py"
FOLDER = next((above / CASES for above in HERE.resolve().parents if (above / CASES).exists()), None)

pytestmark = [pytest.mark.skipif(FOLDER is None, reason=f"{CASES} is not beside the repository"), pytest.mark.timeout(600)]

NEED_HISTORY = {
    "testPackAllRevisions",
    "testPackAllRevisionsNoGC",
    "testPackJustOldRevisions",
    "testPackOnlyOneObject",
    "testRestoreAcrossPack",
    "testRestoreWithMultipleObjectsInUndoRedo",
    "testRestoreWithMultipleUndoRedo",
    "blob_packing.txt",
    "IExternalGC.test",
}
"""Cases that need earlier revisions, but are not in a group marked so."""


def run(adapter: str, folder: Path) -> str:
    """Runs all cases; returns their output."""
    assert FOLDER is not None
    paths = os.pathsep.join([str(HERE), str(FOLDER.parent)])
    environment = {**os.environ, "CONF_STORAGE": f"zodb_adapter:{adapter}", "PYTHONPATH": paths, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "unittest", "zodb_conformance"]
    if os.geteuid() == 0 and (setpriv := shutil.which("setpriv")):
        # One case expects that a file without permissions cannot be written.
        command = [setpriv, "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False)
    return done.stderr


def test_all_cases_pass_with_history(tmp_path: Path) -> None:
    output = run("History", tmp_path)
    assert re.search(r"^Ran 139 tests in .*\n\nOK$", output, re.MULTILINE), output[-8000:]


def test_all_cases_pass_in_a_store_that_is_shared(tmp_path: Path) -> None:
    output = run("Shared", tmp_path)
    assert re.search(r"^Ran 139 tests in .*\n\nOK$", output, re.MULTILINE), output[-8000:]


def test_without_history_only_what_needs_it_fails(tmp_path: Path) -> None:
    output = run("NoHistory", tmp_path)
    failed = {re.split(r"[ /]", name)[0 if "(" in name else -1] for name in re.findall(r"^(?:FAIL|ERROR): (.*)$", output, re.MULTILINE)}
    assert failed == NEED_HISTORY, output[-8000:]
    assert re.search(r"^Ran 134 tests in .*\n\nFAILED \(failures=2, errors=7, skipped=40\)$", output, re.MULTILINE), output[-2000:]
