"""The storages that the conformance cases run against: `CONF_STORAGE=zodb_adapter:History python -m unittest zodb_conformance`."""

from __future__ import annotations

import os
from typing import Any

from plimsoll.zodb import PlimsollStorage, _shared
from zope.testing import setupstack

_remove = setupstack.rmtree


def _close_and_remove(path: str) -> None:
    """Removes the folder of a case. Some cases leave a database open in it, whose store compacts in
    the background."""
    for store in list(_shared._stores.values()):
        if os.path.realpath(store.path).startswith(os.path.realpath(path) + os.sep):
            store.db.close()
    _remove(path)


setupstack.rmtree = _close_and_remove


class History:
    """With history."""

    history = undo = blobs = external_gc = restore = mvcc = multi_client = True
    keep_history = True
    options: dict[str, Any] = {}

    def open(
        self, name: str = "data", read_only: bool = False, create: bool = False, blob_dir: str | None = None, pack_gc: bool = True
    ) -> PlimsollStorage:
        """A storage in a folder below the current one."""
        options: dict[str, Any] = {"read_only": read_only, "create": create, "blob_dir": blob_dir, "pack_gc": pack_gc, **self.options}
        return PlimsollStorage(name, keep_history=self.keep_history, memory="32MB", **options)


class NoHistory(History):
    """Without history."""

    history = undo = False
    keep_history = False


class Shared(History):
    """With history, in a store that other processes may have open as well."""

    options = {"shared": True}
