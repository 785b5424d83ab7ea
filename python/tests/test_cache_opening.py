"""A cache is opened: twice in a process, by several threads, and while others write."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll import Cache
from plimsoll.cache import _store
from plimsoll.cache._handle import Handle
from plimsoll.cache._rows import Table


def test_two_caches_of_a_process_share_a_folder(cache: Cache) -> None:
    other = Cache(cache.directory)
    other["key"] = 1
    assert cache["key"] == 1
    other.close()
    assert cache["key"] == 1
    copy = pickle.loads(pickle.dumps(cache))
    assert copy["key"] == 1
    other["key"] = 2
    assert copy["key"] == 2, "a closed cache opens again when it is used"


def test_the_error_names_the_process_with_exclusive_use_of_the_folder(tmp_path: Path) -> None:
    with Cache(tmp_path / "alone", shared=False) as alone:
        alone["a"] = 1
        program = f"import plimsoll; plimsoll.Cache({alone.directory!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "plimsoll._errors.Locked" in done.stderr
        assert str(os.getpid()) in done.stderr


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", memory="16MiB")
    cache["key"] = 1
    subprocess.run(["rm", "-r", str(tmp_path / "cache")], check=True)
    other = Cache(tmp_path / "cache", memory="16MiB")
    assert "key" not in other
    other["key"] = 2
    cache.close()
    assert other["key"] == 2
    other.close()


def test_the_first_uses_of_an_unpickled_cache_by_several_threads_open_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, memory="16MiB") as made:
        made["key"] = 1
    cache = pickle.loads(pickle.dumps(made))
    make = Handle._make_disk

    def slowly(self: Handle, settings: dict[str, object]) -> plimsoll.Disk:
        time.sleep(0.05)
        return make(self, settings)

    monkeypatch.setattr(Handle, "_make_disk", slowly)
    found: list[object] = []

    def use() -> None:
        try:
            found.append(cache["key"])
        except Exception as error:  # noqa: BLE001 (the test tells)
            found.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 4
    cache.close()
    assert _store._stores == {}


def test_collecting_a_cache_keeps_the_store_open_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, identity = Cache(tmp_path, memory="16MiB"), _store.identity

    def collecting(path: str) -> tuple[int, int] | None:
        first.close()
        return identity(path)

    with monkeypatch.context() as patched:
        patched.setattr(_store, "identity", collecting)
        second = Cache(tmp_path, memory="16MiB")
    second["key"] = 1
    assert second["key"] == 1
    second.close()
    assert _store._stores == {}


@pytest.mark.parametrize("shared", [True, False])
def test_a_cache_that_is_opened_during_a_commit_knows_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    options: dict[str, Any] = {"memory": "16MiB", "shared": shared}
    with Cache(tmp_path, _name="inside", **options) as inside:
        for number in range(5):
            inside[number] = number
    with Cache(tmp_path, **options) as cache:
        opened: list[Cache] = []

        def open_other() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Table, "before_commit", before_commit)
                opened.append(Cache(tmp_path, _name="inside", **options))

        before_commit = Table.before_commit

        def opening(self: Table, transaction: object) -> None:
            before_commit(self, transaction)
            if not opened:
                thread = threading.Thread(target=open_other)
                thread.start()
                thread.join()

        with monkeypatch.context() as patched:
            patched.setattr(Table, "before_commit", opening)
            cache["key"] = 1
        (inside,) = opened
        assert len(inside) == 5
        with pytest.raises(ZeroDivisionError), inside.transact():
            inside["key"] = 1 // 0
        inside["new"] = 5
        assert len(inside) == 6 and inside.check() == []
        inside.close()


def test_ids_stay_unique_if_another_process_writes_during_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import plimsoll; c = plimsoll.Cache({str(tmp_path)!r}, memory='16MiB', _name='inside'); c['other'] = 1; c.close()"
    made = Table.__init__
    with Cache(tmp_path, memory="16MiB") as cache:

        def make(self: Table, store: _store.CacheStore, name: str) -> None:
            made(self, store, name)
            subprocess.run([sys.executable, "-c", program], check=True)
            cache["key"] = 1

        with monkeypatch.context() as patched:
            patched.setattr(Table, "__init__", make)
            inside = Cache(tmp_path, memory="16MiB", _name="inside")
        inside["mine"] = 2
        assert list(inside) == ["other", "mine"] and len(inside) == 2
        assert inside.check() == []
        inside.close()
