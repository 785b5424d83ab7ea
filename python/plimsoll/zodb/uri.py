"""`plimsoll://` for zodburi: `plimsoll:///var/lib/app/data.plimsoll?shared=1&memory_total=256MB&blob_dir=/var/lib/app/blobs`.

The parameters are those of `PlimsollStorage`. Unknown parameters go to the database, e.g.
`connection_pool_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .storage import PlimsollStorage

_SWITCHES = ("keep_history", "read_only", "create", "pack_gc", "shared", "warm")
_TEXTS = ("name", "blob_dir", "memory", "memory_total", "durability")


def resolve(uri: str) -> tuple[Callable[[], PlimsollStorage], dict[str, str]]:
    """A function that opens the storage, and the remaining parameters for the database."""
    parts = urlsplit(uri)
    path = unquote(parts.netloc + parts.path)
    options: dict[str, Any] = {}
    rest: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _SWITCHES:
            options[name] = _switch(name, value)
        elif name in _TEXTS:
            options[name] = value
        else:
            rest[name] = value
    return lambda: PlimsollStorage(path, **options), rest


def _switch(name: str, value: str) -> bool:
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{name}={value}: write 1 or 0")
