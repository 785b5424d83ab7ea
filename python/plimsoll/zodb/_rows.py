"""The rows of a ZODB in a store: the keyspaces, and the encoding of transactions.

| keyspace | key | value |
|---|---|---|
| `zodb.objects` | oid | tid, then the pickle; nothing after the tid if the object was deleted |
| `zodb.history` | oid, tid | the pickle of a revision that is no longer current; empty if the object was deleted |
| `zodb.transactions` | tid | status, user, description, extension, the oids, and where records repeat an earlier one, its tid; once packed, the GLSN |
| `zodb.meta` | a name | settings of the database, how far it was packed |

A revision moves to `zodb.history` in the commit that replaces it, so one commit shows either all of a transaction or none.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

OBJECTS = "zodb.objects"
HISTORY = "zodb.history"
TRANSACTIONS = "zodb.transactions"
META = "zodb.meta"
KEYSPACES = (OBJECTS, HISTORY, TRANSACTIONS, META)

META_FORMAT = b"format"
META_KEEP_HISTORY = b"keep-history"
META_PACKED = b"packed"
"""The newest tid up to which the database was packed."""
META_OID = b"oid"
"""Oids up to this one are never assigned to new objects."""

FORMAT = b"1"
ZERO = b"\0" * 8

_HEADER = struct.Struct(">cIIIII")


class TransactionRow(NamedTuple):
    """The record of a transaction, besides its objects."""

    status: bytes
    user: bytes
    description: bytes
    extension: bytes
    oids: tuple[bytes, ...]
    data_tids: dict[bytes, bytes]
    """For records that repeat the data of an earlier one: its tid by oid."""
    glsn: int = 0
    """The GLSN of the transaction's original commit if a pack has rewritten the row in another
    commit; otherwise 0."""

    def encode(self) -> bytes:
        """As bytes."""
        header = _HEADER.pack(
            self.status,
            len(self.user),
            len(self.description),
            len(self.extension),
            len(self.oids),
            len(self.data_tids),
        )
        repeats = b"".join(oid + tid for oid, tid in self.data_tids.items())
        glsn = self.glsn.to_bytes(8, "big") if self.glsn else b""
        return b"".join((header, self.user, self.description, self.extension, *self.oids, repeats, glsn))


def decode_transaction(row: bytes) -> TransactionRow:
    """A transaction from its bytes."""
    status, user, description, extension, oids, repeats = _HEADER.unpack_from(row)
    at = _HEADER.size
    parts = []
    for length in (user, description, extension):
        parts.append(row[at : at + length])
        at += length
    found = tuple(row[start : start + 8] for start in range(at, at + 8 * oids, 8))
    at += 8 * oids
    data_tids = {row[start : start + 8]: row[start + 8 : start + 16] for start in range(at, at + 16 * repeats, 16)}
    glsn = int.from_bytes(row[at + 16 * repeats :], "big")
    return TransactionRow(status, parts[0], parts[1], parts[2], found, data_tids, glsn)


def decode_oids(row: bytes) -> list[bytes]:
    """The oids alone, for invalidations."""
    _, user, description, extension, oids, _ = _HEADER.unpack_from(row)
    at = _HEADER.size + user + description + extension
    return [row[start : start + 8] for start in range(at, at + 8 * oids, 8)]


def after(key: bytes) -> bytes:
    """The smallest key above `key`."""
    return key + b"\0"
