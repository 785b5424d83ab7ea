"""RelStorage's command `zodbconvert`, from a FileStorage through a PlimsollStorage and RelStorage
and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transaction
import ZODB
from persistent.mapping import PersistentMapping
from ZODB import config
from ZODB.blob import Blob, is_blob_record

zodbconvert = pytest.importorskip("relstorage.zodbconvert")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

CHAIN = ["first", "ours", "relstorage", "ours-again", "last"]


def section(folder: Path, name: str) -> str:
    """The ZConfig section of the storage with this name."""
    blobs = f"blob-dir {folder}/{name}-blobs"
    if name in ("first", "last"):
        return f"<filestorage {{}}>\n  path {folder}/{name}.fs\n  {blobs}\n</filestorage>\n"
    if name == "relstorage":
        return f"<relstorage {{}}>\n  {blobs}\n  shared-blob-dir true\n  <sqlite3>\n    data-dir {folder}/{name}\n  </sqlite3>\n</relstorage>\n"
    shared = "on" if name == "ours-again" else "off"
    return f"<plimsoll {{}}>\n  path {folder}/{name}\n  memory 32MB\n  shared {shared}\n  {blobs}\n</plimsoll>\n"


def imports(text: str) -> str:
    """The `%import` lines of the packages whose sections a configuration uses."""
    packages = [package for package in ("plimsoll.zodb", "relstorage") if f"<{package.split('.')[0]} " in text]
    return "".join(f"%import {package}\n" for package in packages) + text


def contents(storage: Any) -> list[Any]:
    """All transactions with their records, and the bytes of their blobs."""
    found = []
    for txn in storage.iterator():
        rows = []
        for record in txn:
            blob = None
            if record.data and is_blob_record(record.data):
                blob = Path(storage.loadBlob(record.oid, record.tid)).read_bytes()
            rows.append((record.oid, record.tid, record.data, blob))
        found.append((txn.tid, txn.user, txn.description, txn.extension, sorted(rows)))
    return found


def make_source(folder: Path) -> None:
    """Creates a database with changed and deleted objects, texts, blobs, and an undo."""
    db = ZODB.DB(config.storageFromString(section(folder, "first").format("")))
    for number in range(8):
        with db.transaction(f"number {number}") as connection:
            root = connection.root()
            root[f"key {number}"] = PersistentMapping({"number": number})
            root["blob"] = Blob(b"%d" % number * 1_000)
            transaction.get().setUser(f"user {number}")
            transaction.get().setExtendedInfo("extra", number)
            if number > 3:
                del root[f"key {number - 2}"]
                root["key 0"]["again"] = number
    db.undo(db.undoInfo()[0]["id"])
    transaction.commit()
    db.close()


def convert(folder: Path, source: str, destination: str, *options: str) -> None:
    """Runs the command."""
    file = folder / "convert.conf"
    file.write_text(imports(section(folder, source).format("source") + section(folder, destination).format("destination")))
    zodbconvert.main(["zodbconvert", *options, str(file)])


def read(folder: Path, name: str) -> list[Any]:
    """The contents of a storage."""
    storage = config.storageFromString(imports(section(folder, name).format("")))
    found = contents(storage)
    storage.close()
    return found


def test_a_database_goes_through_all_storages_and_comes_back_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_source(tmp_path)
    first = read(tmp_path, "first")
    assert len(first) == 10 and any(blob for *_, rows in first for *_, blob in rows)
    for source, destination in zip(CHAIN, CHAIN[1:], strict=False):
        convert(tmp_path, source, destination)
        assert read(tmp_path, destination) == first, destination


def test_existing_data_is_refused_cleared_or_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_source(tmp_path)
    convert(tmp_path, "first", "ours")
    with pytest.raises(SystemExit, match="destination storage has data"):
        convert(tmp_path, "first", "ours")
    convert(tmp_path, "first", "ours", "--clear")
    assert read(tmp_path, "ours") == read(tmp_path, "first")
    db = ZODB.DB(config.storageFromString(section(tmp_path, "first").format("")))
    with db.transaction() as connection:
        connection.root()["more"] = 1
    db.close()
    convert(tmp_path, "first", "ours", "--incremental")
    assert read(tmp_path, "ours") == read(tmp_path, "first")
