"""The cache backend for Django."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django")

from django.conf import settings  # noqa: E402

if not settings.configured:
    settings.configure(CACHES={})

import django  # noqa: E402
from django.core.cache import caches  # noqa: E402
from django.template import Context, Engine  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.utils.safestring import SafeString, mark_safe  # noqa: E402
from django.utils.translation import gettext_lazy, override  # noqa: E402

from plimsoll.django import PlimsollCache  # noqa: E402

django.setup()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Any]:
    """A backend as Django creates it."""
    made = PlimsollCache(str(tmp_path), {"OPTIONS": {"memory": "16MiB", "size_limit": 10_000_000}, "KEY_PREFIX": "site"})
    yield made
    made._cache.close()


def test_djangos_methods_work(backend: Any) -> None:
    assert backend.add("key", {"a": 1})
    assert not backend.add("key", 2)
    assert backend.get("key") == {"a": 1}
    assert backend.get("key", version=2) is None
    backend.set_many({"one": 1, "two": 2})
    assert backend.get_many(["one", "two", "three"]) == {"one": 1, "two": 2}
    assert (backend.incr("one"), backend.decr("two", 5)) == (2, -3)
    with pytest.raises(ValueError, match="not found"):
        backend.incr("three")
    assert backend.get_or_set("four", lambda: 4) == 4
    assert backend.incr_version("four") == 2
    assert backend.has_key("four", version=2)
    assert backend.delete("key")
    backend.clear()
    assert backend.get("one") is None


def test_a_timeout_of_zero_stores_nothing_and_none_never_expires(backend: Any) -> None:
    backend.set("gone", 1, timeout=0)
    backend.set("soon", 1, timeout=0.01)
    backend.set("kept", 1, timeout=None)
    time.sleep(0.02)
    assert backend.get_many(["gone", "soon", "kept"]) == {"kept": 1}
    assert backend.touch("kept", 0)
    assert backend.get("kept") is None


def test_diskcaches_methods_work(backend: Any) -> None:
    backend.set("a", 1, tag="t")
    assert backend.pop("a", tag=True) == (1, "t")
    backend.set("b", b"x" * 100_000, tag="t")
    assert backend.read("b").read(3) == b"xxx"
    assert backend.evict("t") == 1
    calls = []

    @backend.memoize(timeout=60)
    def double(number: int) -> int:
        calls.append(number)
        return number * 2

    assert (double(2), double(2), calls) == (4, 4, [2])
    backend.deque("jobs").append(1)
    assert list(backend.deque("jobs")) == [1]


def test_a_fragment_of_a_template_is_cached_by_default_and_stays_safe(tmp_path: Path) -> None:
    backend = {"BACKEND": "plimsoll.django.PlimsollCache", "LOCATION": str(tmp_path), "OPTIONS": {"memory": "16MiB"}}
    engine = Engine(libraries={"cache": "django.templatetags.cache"})
    template = engine.from_string("{% load cache %}{% cache 50 side %}<b>{{ name }}</b>{% endcache %}")
    with override_settings(CACHES={"default": backend}):
        assert template.render(Context({"name": "<first>"})) == "<b>&lt;first&gt;</b>"
        assert template.render(Context({"name": "second"})) == "<b>&lt;first&gt;</b>"
        caches["default"]._cache.close()


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_safe_text_stays_safe_and_a_lazy_translation_becomes_text(tmp_path: Path, serializer: str) -> None:
    backend = PlimsollCache(str(tmp_path), {"OPTIONS": {"memory": "16MiB", "serializer": serializer}})
    with override("de"):
        day = gettext_lazy("Monday")
        backend.set("key", {"safe": [mark_safe("<b>")], "plain": "<b>", "lazy": (day,)})
        backend.set("lazy", day)
        index = backend.index("by day")
        index[day] = 1
    value = backend.get("key")
    assert value == {"safe": ["<b>"], "plain": "<b>", "lazy": ("Montag",)}
    assert [type(text) for text in (value["safe"][0], value["plain"], value["lazy"][0])] == [SafeString, str, str]
    assert backend.get("lazy") == "Montag" and type(backend.get("lazy")) is str
    assert index["Montag"] == 1 and list(index) == ["Montag"]

    class Other(SafeString):
        pass

    with pytest.raises(TypeError, match=r"store str\(value\)"):
        backend.set("key", Other("a"))
    backend._cache.close()


def test_a_value_that_is_too_large_removes_the_old_one(tmp_path: Path) -> None:
    backend = PlimsollCache(str(tmp_path), {"OPTIONS": {"memory": "16MiB", "size_limit": 100_000}})
    assert backend.set("key", "old") and not backend.set("key", "x" * 200_000)
    assert backend.get("key") is None
    backend._cache.close()


def test_the_backends_of_two_threads_share_the_store(backend: Any) -> None:
    other = PlimsollCache(backend.directory, {"KEY_PREFIX": "site"})
    other.set("key", 1)
    other.close()
    assert backend.get("key") == 1


def _count(backend: Any, rounds: int) -> None:
    for _ in range(rounds):
        backend.incr("key")
        backend.deque("jobs").append(1)


def test_the_store_stays_open_from_one_request_to_the_next_and_a_forked_child_opens_its_own(backend: Any) -> None:
    backend.set("key", 1)
    backend.deque("jobs").append(0)
    store = backend._cache._shards[0]._handle.use.store
    backend.close()
    assert backend.get("key") == 1 and backend._cache._shards[0]._handle.use.store is store
    child = multiprocessing.get_context("fork").Process(target=_count, args=(backend, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    _count(backend, 5)
    child.join(60)
    assert child.exitcode == 0
    assert backend.get("key") == 11 and list(backend.deque("jobs")) == [0] + [1] * 10
    assert backend._cache.check() == []
