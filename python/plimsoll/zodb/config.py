"""The section `<plimsoll>` of ZConfig.

    %import plimsoll.zodb
    <zodb>
      <plimsoll>
        path /var/lib/app/data.plimsoll
        shared on
        memory-total 256MB
        blob-dir /var/lib/app/blobs
      </plimsoll>
    </zodb>
"""

from __future__ import annotations

from typing import Any

from .storage import PlimsollStorage


class PlimsollFactory:
    """Opens the storage described by a section."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.name = config.name or config.getSectionName()

    def open(self) -> PlimsollStorage:
        """Opens it."""
        config = self.config
        return PlimsollStorage(
            config.path,
            name=self.name,
            keep_history=config.keep_history,
            read_only=config.read_only,
            create=config.create,
            blob_dir=config.blob_dir,
            memory=config.memory,
            memory_total=config.memory_total,
            shared=config.shared,
            warm=config.warm,
            durability=config.durability,
            pack_gc=config.pack_gc,
        )
