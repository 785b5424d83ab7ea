"""The examples in docstrings are correct, and everything public has one.

Public are the names in `__all__` of `MODULES` and the methods of the classes among them, including
methods inherited from a private base class. Attributes need no example. The examples of a module
run if the package that it needs is installed.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import plimsoll
from plimsoll import _native

NEEDED = {"plimsoll": "plimsoll", "plimsoll.cache.recipes": "plimsoll", "plimsoll.django": "django", "plimsoll.zodb": "ZODB"}
"""The package that a module needs."""

MODULES = [importlib.import_module(name) for name, package in NEEDED.items() if find_spec(package)]

WITHOUT = {
    "is raised only after damage, a failing disk or a fork, or for what another process does": (
        "Behind",
        "ClockBehind",
        "Corrupt",
        "Dropped",
        "FormatError",
        "InDoubt",
        "LogMismatch",
        "NotKeeper",
        "Poisoned",
        "RemoteError",
        "Stalled",
        "Unavailable",
        "UsedAfterFork",
    ),
    "serves standard input and output": ("serve_sync",),
    "is of `io.RawIOBase`, and always true": ("ValueReader.readable",),
    "is of Django's cache, and described there": tuple(
        f"django.PlimsollCache.{name}"
        for name in ("add", "set", "get", "touch", "delete", "incr", "decr", "has_key", "clear", "close", "get_backend_timeout")
    ),
    "is called by ZODB, though no interface names it": ("zodb.PlimsollStorage.getTid", "zodb.PlimsollStorage.tpc_transaction"),
}
"""The names that need no example, by reason. Names in ZODB's interfaces need none either, nor do
docstrings that begin by referring to a method with an example."""


class Documented(NamedTuple):
    """An object or member of the package."""

    name: str
    text: str
    is_api: bool
    """Whether it is a public class, function or method."""


def documented() -> Iterator[Documented]:
    """All objects and members."""
    public = [getattr(module, name) for module in MODULES for name in module.__all__]
    seen: set[Any] = set()
    for module in MODULES:
        yield Documented(module.__name__, module.__doc__ or "", is_api=False)
        called = names_of_zodb() if module.__name__ == "plimsoll.zodb" else set()
        for name in module.__all__:
            known = getattr(module, name)
            if known in seen:
                continue
            seen.add(known)
            full = f"{module.__name__}.{name}".removeprefix("plimsoll.")
            yield Documented(full, known.__doc__ or "", is_api=True)
            if inspect.isclass(known):
                for member, what in members_of(known, public):
                    is_method = callable(what) or isinstance(what, classmethod)
                    is_api = is_method and not member.startswith("_") and member not in called
                    # A value has the docstring of its type.
                    text = what.__doc__ if what.__doc__ != type(what).__doc__ else None
                    yield Documented(f"{full}.{member}", text or "", is_api)


def members_of(known: type, public: list[Any]) -> Iterator[tuple[str, Any]]:
    """The members of a class, including those inherited from private classes."""
    for base in known.__mro__:
        if base is known or (base.__module__.startswith("plimsoll") and base not in public):
            yield from vars(base).items()


def names_of_zodb() -> set[str]:
    """The names in ZODB's interfaces. ZODB calls these methods, and describes them."""
    from ZODB.interfaces import IBlobStorageRestoreable, IStorageUndoable
    from zope.interface import implementedBy

    import plimsoll.zodb

    interfaces = (*implementedBy(plimsoll.zodb.PlimsollStorage), IBlobStorageRestoreable, IStorageUndoable)
    return {name for interface in interfaces for name in interface.names(all=True)}


DOCUMENTED = list(documented())
EXAMPLES = {name: text for name, text, _ in DOCUMENTED if ">>>" in text}


def refers_to_an_example(text: str) -> bool:
    """Whether a docstring such as "`Cache.set`; false after a timeout." begins with the name of
    a method with an example."""
    named = re.match(r"`([\w.]+)`", text)
    return named is not None and named[1] in EXAMPLES


def test_everything_public_has_an_example() -> None:
    excepted = {name for names in WITHOUT.values() for name in names}
    bare = [name for name, text, is_api in DOCUMENTED if is_api and name not in EXAMPLES and not refers_to_an_example(text)]
    assert [name for name in bare if name not in excepted] == []
    # Every excepted name lacks an example; otherwise it must be removed from the list.
    absent = tuple(name.removeprefix("plimsoll.") for name, package in NEEDED.items() if not find_spec(package))
    assert sorted(name for name in excepted if name not in bare and not name.startswith(absent)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Examples create caches in temporary folders that are never removed, so place these in
    # `tmp_path`.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"plimsoll": plimsoll, "path": str(tmp_path / "store")}
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, 0)
    found: list[str] = []
    doctest.DocTestRunner().run(example, out=found.append)
    assert not found, "".join(found)


def test_everything_public_is_documented() -> None:
    assert [name for name, text, is_api in DOCUMENTED if is_api and not text] == []
    assert [name for name in dir(_native) if not name.startswith("_") and not getattr(_native, name).__doc__] == []
