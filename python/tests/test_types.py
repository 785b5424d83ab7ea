"""The stubs describe the module, and programs are checked against them."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import plimsoll

PROGRAM = '''
import asyncio
from collections.abc import Mapping, MutableMapping
from datetime import timedelta

import plimsoll

def read(rows: Mapping[bytes, bytes]) -> int:
    return len(rows) + len(rows.get(b"a", b""))

def write(rows: MutableMapping[bytes, bytes]) -> None:
    rows[b"a"] = b"1"
    rows.update({b"b": b"2"})
    rows.setdefault(b"a", rows.pop(b"b"))

cache = plimsoll.Cache()

@cache.memoize(expire=60)
def square(number: int, *, up: bool = False) -> str:
    return str(number * number)

@plimsoll.FanoutCache().memoize()
async def later(number: int) -> float:
    return number * 1.5

@plimsoll.memoize_stampede(cache, expire=60)
def slow(number: int) -> float:
    return number * 1.5

class Shop:
    @cache.memoize(ignore={0})
    def price(self, number: int) -> int:
        return number

text: str = square(3, up=True)
price: int = Shop().price(7)
half: float = slow(3) + asyncio.run(later(3))
cache_key: tuple[object, ...] = square.__cache_key__(3)

with plimsoll.open("store", memory="256MB", retention=timedelta(days=7)) as db:
    value: bytes | None = db.get(b"a")
    there: bytes = db[b"a"]
    pairs: list[tuple[bytes, bytes]] = list(db[b"a":b"b"])
    glsn: int = db.put(bytearray(b"a"), memoryview(b"1"))

    def add(tx: plimsoll.Transaction, key: bytes, *, by: int = 1) -> int:
        maybe: int | None = tx.put(key, b"1")
        return by

    total: int = db.transact(add, b"a", by=2)
    spaces: plimsoll.Keyspace = db.keyspace("k", retention="latest")
    many: list[bytes | str] = db.get_many([b"a"], "none")
    rows: int = read(db) + read(spaces) + read(db.snapshot()) + read(db.at(glsn))
    write(db)
    write(spaces)
    with db.transaction() as tx:
        write(tx)

    async def follow() -> None:
        async for change in db.watch_async(b"a"):
            changed: bytes | None = change.value()

    try:
        pass
    except plimsoll.Conflict as conflict:
        by: int = conflict.by
'''

WRONG = '''
import plimsoll

db = plimsoll.in_memory()
db["text"] = b"1"  # E
db.put(b"a")  # E
plimsoll.open("store", durability="maybe")  # E
db.snapshot()[b"a"] = b"1"  # E
"text" in db  # E

cache = plimsoll.Cache()

@cache.memoize()
def square(number: int) -> str:
    return str(number * number)

class Shop:
    @cache.memoize(ignore={0})
    def price(self, number: int) -> int:
        return number

square("3")  # E
wrong: int = square(3)  # E
Shop().price("7")  # E
'''


def mypy(folder: Path, program: str) -> str:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache"), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_the_stubs_describe_the_module() -> None:
    allowed = str(Path(__file__).parent / "stubtest_allowlist.txt")
    command = [sys.executable, "-m", "mypy.stubtest", "--allowlist", allowed, "plimsoll"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_correct_program_passes_the_type_check_and_a_wrong_one_fails(tmp_path: Path) -> None:
    assert mypy(tmp_path, PROGRAM) == ""
    found = {int(line.split(":")[1]) for line in mypy(tmp_path, WRONG).splitlines() if ": error:" in line}
    assert found == {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# E")}


def test_the_package_itself_is_checked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path), "-p", "plimsoll"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(plimsoll.__file__).parent / "py.typed").exists()


def imports_of(module: str, tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of the package that a module imports, including imports for types only. A package
    is named `package.__init__`, so that one dot is always the folder of the file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])
            for name in node.names:
                places = (f"{base}.{name.name}", f"{base}.{name.name}.__init__", base, f"{base}.__init__")
                found.add(next(place for place in places if place in known))
    return found


def test_no_module_of_the_package_imports_itself_through_others() -> None:
    root = Path(plimsoll.__file__).parent
    files = {".".join(("plimsoll", *file.relative_to(root).with_suffix("").parts)): file for file in root.rglob("*.py")}
    trees = {name: ast.parse(file.read_text()) for name, file in files.items()}
    known = {*files, "plimsoll._native"}
    graph = {name: imports_of(name, tree, known) for name, tree in trees.items()}
    assert len(graph) > 30 and "plimsoll.cache._store" in graph["plimsoll.cache._rows"]
    list(TopologicalSorter(graph).static_order())
