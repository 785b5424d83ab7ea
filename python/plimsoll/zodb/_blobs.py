"""Blobs: files outside the store, one per revision, in the layout of `FileStorage`.

A file gets its final name and is durable before the transaction that refers to it commits. A crash
in between may leave a file that no record refers to.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from ZODB.blob import BLOB_SUFFIX, BlobStorageMixin, remove_committed, remove_committed_dir, rename_or_copy_blob  # type: ignore[import-untyped, import-not-found, unused-ignore]
from ZODB.utils import cp, repr_to_oid  # type: ignore[import-untyped, import-not-found, unused-ignore]


class Blobs(BlobStorageMixin):  # type: ignore[misc, unused-ignore]
    """The blob operations of a storage."""

    fshelper: Any
    dirty_oids: list[tuple[bytes, bytes]]
    """The blobs whose files are removed if the transaction is aborted."""

    @property
    def _tid(self) -> bytes:
        """Always raises, because `ZODB.blob.BlobStorage` would name a blob's file after the tid of
        the storing transaction before the vote assigns one."""
        raise AttributeError(
            "a PlimsollStorage cannot be wrapped in a BlobStorage (<blobstorage>), because it assigns the tid of a transaction at the vote: "
            "give it the folder of blobs instead (blob_dir, blob-dir)"
        )

    def _blob_storeblob(self, oid: bytes, serial: bytes, blobfilename: str) -> None:
        target = self.fshelper.getBlobFilename(oid, serial)
        folder = os.path.dirname(target)
        is_new = not os.path.exists(folder)
        super()._blob_storeblob(oid, serial, blobfilename)
        _sync(target)
        _sync(folder)
        # The entry of a new folder is in its parent, which may be new too.
        base = os.path.realpath(self.fshelper.base_dir)
        above = os.path.dirname(os.path.realpath(folder))
        while is_new and above.startswith(base):
            _sync(above)
            above = os.path.dirname(above)

    def _take_blob_file(self, path: str) -> str:
        """Moves a file into the storage under a temporary name, durably."""
        taken: str
        handle, taken = tempfile.mkstemp(dir=self.fshelper.temp_dir)
        os.close(handle)
        os.unlink(taken)
        rename_or_copy_blob(path, taken)
        _sync(taken)
        return taken

    def _copy_blob(self, oid: bytes, source_tid: bytes, tid: bytes) -> None:
        """Gives a revision the file of an earlier one. A hard link suffices, because committed
        files never change."""
        source = self.loadBlob(oid, source_tid)
        handle, copy = tempfile.mkstemp(dir=self.fshelper.temp_dir)
        os.close(handle)
        os.unlink(copy)
        try:
            os.link(source, copy)
        except OSError:
            with open(source, "rb") as reader, open(copy, "wb") as writer:
                cp(reader, writer)
        self._blob_storeblob(oid, tid, copy)

    def _blob_files(self) -> list[tuple[bytes, bytes]]:
        """Object and transaction of each file."""
        found: list[tuple[bytes, bytes]] = []
        for oid, folder in self.fshelper.listOIDs():
            for name in os.listdir(folder):
                if name.endswith(BLOB_SUFFIX):
                    found.append((oid, repr_to_oid(name[: -len(BLOB_SUFFIX)])))
        return found

    def _remove_blobs(self) -> None:
        """Removes the files of all revisions."""
        for entry in os.scandir(self.fshelper.base_dir):
            if entry.name.startswith("0x"):
                shutil.rmtree(entry.path)

    def _remove_blob(self, oid: bytes, tid: bytes) -> None:
        """Removes the file of a revision, and the folder of an object without files."""
        path = self.fshelper.getBlobFilename(oid, tid)
        if os.path.exists(path):
            remove_committed(path)
            folder = os.path.dirname(path)
            if not os.listdir(folder):
                remove_committed_dir(folder)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
