"""Runs the tests of diskcache's source package against `plimsoll.cache`, and compares the counts
with those in `docs/cache.md`: `../run-tests --diskcache`.

The tests are those of the package, unchanged, with a module `diskcache` that imports the names from
Plimsoll. They run twice: with `disk=Disk` and `serializer="pickle"`, which store keys and values as
diskcache does, and with the default options. This program creates the other files that they need (a
model and settings for Django).

    python diskcache_suite.py SOURCE            diskcache-5.6.3.tar.gz, or the folder that it unpacks to
    python diskcache_suite.py SOURCE --failed   with what failed, and how
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree

MODULES = ("core", "deque", "index", "fanout", "recipes", "djangocache")
"""The modules with tests of the cache. `test_doctest` is left out, because it tests diskcache's
documentation."""

SHIM = '''
import os
import sys

from plimsoll import Cache, Deque, Disk, FanoutCache, Index, JSONDisk, Timeout, disk, memoize_stampede
from plimsoll.cache import DEFAULT_SETTINGS
from plimsoll.cache import ENOVAL, UNKNOWN
from plimsoll.cache.recipes import Averager, BoundedSemaphore, Lock, RLock

if os.environ["LIKE_DISKCACHE"]:
    Cache.__init__.__defaults__ = (None, 60, Disk)
    FanoutCache.__init__.__defaults__ = (None, 8, 0.010, Disk)
    for made in (Cache, FanoutCache):
        made.__init__.__kwdefaults__["serializer"] = "pickle"

EVICTION_POLICY = {}


class EmptyDirWarning(UserWarning):
    pass


class UnknownFileWarning(UserWarning):
    pass


# The tests replace `open` in diskcache.core; here the module of the disks calls it.
core = sys.modules["diskcache.core"] = disk


def __getattr__(name):
    if name == "DjangoCache":
        from plimsoll.django import PlimsollCache

        return PlimsollCache
    raise AttributeError(name)
'''

MODELS = '''
from django.db import models
from django.utils import timezone


def expensive_calculation():
    expensive_calculation.num_runs += 1
    return timezone.now()


class Poll(models.Model):
    question = models.CharField(max_length=200)
    answer = models.CharField(max_length=200)
    pub_date = models.DateTimeField("date published", default=expensive_calculation)
'''

SETTINGS = '''
CACHES = {"default": {"BACKEND": "diskcache.DjangoCache", "LOCATION": "unused"}}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = ["tests"]
SECRET_KEY = "of a test"
USE_TZ = False
'''

CONFTEST = '''
import pytest


@pytest.fixture(scope="session", autouse=True)
def tables():
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    setup_test_environment()
    call_command("migrate", run_syncdb=True, verbosity=0)
'''


def prepare(source: Path, work: Path) -> None:
    """Prepares a folder with the tests and their imports."""
    if source.is_file():
        with tarfile.open(source) as archive:
            archive.extractall(work / "source", filter="data")
        (source,) = (work / "source").iterdir()
    tests = work / "tests"
    tests.mkdir()
    for module in MODULES:
        shutil.copy(source / "tests" / f"test_{module}.py", tests)
    (tests / "__init__.py").touch()
    (tests / "models.py").write_text(MODELS)
    (tests / "settings.py").write_text(SETTINGS)
    (tests / "conftest.py").write_text(CONFTEST)
    (work / "diskcache").mkdir()
    (work / "diskcache" / "__init__.py").write_text(SHIM)
    (work / "pytest.ini").write_text("[pytest]\n")


def run(work: Path, *, like_diskcache: bool) -> tuple[int, dict[str, str]]:
    """Returns the number of tests that ran, and the failed ones, each with the last line of its
    error."""
    report = work / "report.xml"
    temporary = work / "temporary"
    temporary.mkdir()
    environment = {
        **os.environ,
        "LIKE_DISKCACHE": "1" if like_diskcache else "",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TMPDIR": str(temporary),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120", f"--junitxml={report}", "tests"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    failed = {}
    cases = ElementTree.parse(report).findall(".//testcase")
    for case in cases:
        problem = next((found for found in case if found.tag in ("failure", "error")), None)
        if problem is not None:
            name = case.get("classname", "").removeprefix("tests.test_").split(".")[0] + "." + case.get("name", "")
            failed[name] = (problem.get("message") or "").splitlines()[0][:160]
    shutil.rmtree(temporary)
    return len(cases), failed


def promised(text: str) -> tuple[int, list[int]]:
    """Returns the documented number of tests, and how many pass in each of the two runs."""
    found = re.search(r"^\| together \| (\d+) \| (\d+) \([^|]*\| (\d+) \(", text, re.MULTILINE)
    if found is None:
        raise SystemExit("docs/cache.md has no row with the numbers")
    cases, *passes = map(int, found.groups())
    return cases, passes


def main() -> None:
    """Runs the tests both ways, and fails if fewer pass than documented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--failed", action="store_true")
    arguments = parser.parse_args()
    cases, passes = promised((Path(__file__).parent.parent / "docs" / "cache.md").read_text())
    fewer = False
    for like_diskcache, least in zip((True, False), passes):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            prepare(arguments.source.resolve(), work)
            ran, failed = run(work, like_diskcache=like_diskcache)
        passed = ran - len(failed)
        how = 'disk=Disk, serializer="pickle"' if like_diskcache else "by default"
        print(f"{how}: {passed} of {ran} pass ({passed / ran:.1%}), docs/cache.md says {least} of {cases}", flush=True)
        for name, message in sorted(failed.items()):
            print(f"  {name}: {message}" if arguments.failed else f"  {name}")
        fewer |= passed < least or ran != cases
    sys.exit(int(fewer))


if __name__ == "__main__":
    main()
