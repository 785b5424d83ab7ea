"""The examples in the documentation are true."""

from __future__ import annotations

import doctest
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import plimsoll
from plimsoll import _native


def documented() -> Iterator[tuple[str, str]]:
    """Every object of the package with an example."""
    yield "plimsoll", plimsoll.__doc__ or ""
    for name in plimsoll.__all__:
        known = getattr(plimsoll, name)
        yield name, known.__doc__ or ""
        if inspect.isclass(known):
            for member, what in vars(known).items():
                yield f"{name}.{member}", getattr(what, "__doc__", None) or ""


EXAMPLES = [(name, text) for name, text in documented() if ">>>" in text]


def test_many_objects_have_examples() -> None:
    assert len(EXAMPLES) > 35


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_is_true(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Examples make caches without a name, and these stay.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"plimsoll": plimsoll, "path": str(tmp_path / "store")}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    found: list[str] = []
    doctest.DocTestRunner().run(example, out=found.append)
    assert not found, "".join(found)


def test_everything_public_is_documented() -> None:
    bare = [
        f"{name}.{member}"
        for name in plimsoll.__all__
        if inspect.isclass(known := getattr(plimsoll, name)) and known.__module__.startswith("plimsoll")
        for member, what in vars(known).items()
        if not member.startswith("_") and callable(what) and not getattr(what, "__doc__", None)
    ]
    assert bare == []
    assert [name for name in dir(_native) if not name.startswith("_") and not getattr(_native, name).__doc__] == []
