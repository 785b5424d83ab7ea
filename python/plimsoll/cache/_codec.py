"""Keys and values of a cache as bytes.

Encoded keys compare as bytes in the order in which the keys compare in Python: numbers, then text,
then bytes, then everything else. A value is returned with the type it was stored with. Reading
cannot run code, unless the cache was opened with the serializer "pickle".
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import IO, Any
from uuid import UUID
from zoneinfo import ZoneInfo

RAW, TEXT, INTEGER, FLOAT, JSON, TAGGED, MSGPACK, PICKLE, DISK = range(9)
"""The encoding of a value: the first byte of the stored data. `DISK` marks the output of a `Disk`,
possibly with a file name."""

MODE_NONE, MODE_RAW, MODE_BINARY, MODE_TEXT, MODE_PICKLE, MODE_SERIALIZED = range(6)
"""The storage mode of a `Disk`: `MODE_RAW` in the row, `MODE_BINARY` and `MODE_TEXT` in a file,
`MODE_SERIALIZED` as output of the serializer, in the row or in a file. The other modes are for
classes written for diskcache."""

KEY_BYTES_MAX = 1024
"""Longer keys are stored under their hash."""

_MODES = [bytes((mode,)) for mode in range(9)]
_TAG = "\0"
_FLOAT = struct.Struct(">d")
_NUMBER = struct.Struct(">QQ")
_DISK_HEAD = struct.Struct(">BqQI")
"""`DISK`, mode, size of the file, length of its name."""
_DECIMAL_BITS_MAX = 8192
"""Python refuses to read and write longer integers in decimal: 8,192 bits are 2,467 digits, and the limit is 4,300. They are
written in hexadecimal, which has no limit."""
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


class Serializer:
    """Converts values to bytes and back, using the named format for values other than bytes, text
    and numbers."""

    def __init__(self, name: str = "json") -> None:
        if name not in ("json", "msgpack", "pickle"):
            raise ValueError(f'serializer is "json", "msgpack" or "pickle", not {name!r}')
        self.name = name
        self.pickle_protocol = pickle.HIGHEST_PROTOCOL
        self._pack: Callable[[Any, bool], bytes] | None = None
        self._unpack: Callable[[bytes], Any] | None = None
        if name == "msgpack":
            self._pack, self._unpack = _msgpack()

    def dump(self, value: Any, is_key: bool = False) -> bytes:
        """Encodes a value. Raises `TypeError` for types that the format lacks. For keys and tags,
        drops the details in which equal values can differ (the order of sets and dictionaries, the
        fold of a datetime, the class of text), so that equal keys have equal encodings.
        """
        kind = type(value)
        body: bytes
        if kind is bytes:
            mode, body = RAW, value
        elif kind is str:
            mode, body = TEXT, value.encode("utf-8", "surrogatepass")
        elif kind is int and -_SIGN <= value < _SIGN:
            mode, body = INTEGER, value.to_bytes(8, "big", signed=True)
        elif kind is float:
            mode, body = FLOAT, _FLOAT.pack(value)
        elif self.name == "pickle":
            mode, body = PICKLE, (_pickle_key if is_key else pickle.dumps)(value, self.pickle_protocol)
        elif self._pack is not None:
            mode, body = MSGPACK, self._pack(value, is_key)
        else:
            plain = _to_json(value, is_key)
            mode = JSON if plain is value else TAGGED
            body = dump_json(plain)
        return _MODES[mode] + body

    def load(self, data: bytes) -> Any:
        """Decodes a stored value."""
        mode, body = data[0], data[1:]
        if mode == RAW:
            return body
        if mode == TEXT:
            return body.decode("utf-8", "surrogatepass")
        if mode == INTEGER:
            return int.from_bytes(body, "big", signed=True)
        if mode == FLOAT:
            return _FLOAT.unpack(body)[0]
        if mode == JSON:
            return json.loads(body)
        if mode == TAGGED:
            return _from_json(json.loads(body))
        if mode == MSGPACK:
            return (self._unpack or _msgpack()[1])(body)
        if mode == PICKLE:
            if self.name != "pickle":
                raise ValueError('the value is pickled; a cache reads it only if it was opened with serializer="pickle"')
            return pickle.loads(body)  # noqa: S301
        if mode == DISK:
            raise ValueError("the value was stored by a Disk class; open the cache with disk=THAT_CLASS")
        raise ValueError(f"unknown kind of value {mode}; a newer version may have written it")

    def dump_key(self, key: Any) -> bytes:
        """Encodes a key. Equal numbers are the same key, as in a dictionary."""
        kind = type(key)
        if kind is float and key.is_integer():
            kind, key = int, int(key)
        if kind is int and not -_SIGN <= key < _SIGN:
            kind = object
        body: bytes
        if kind is str:
            first, body = b"s", key.encode("utf-8", "surrogatepass")
        elif kind is int:
            near = float(key)
            first, body = b"n", _NUMBER.pack(_sortable(near), key - int(near) + _SIGN)
        elif kind is bytes:
            first, body = b"w", key
        elif kind is float:
            first, body = b"n", _sortable(key).to_bytes(8, "big")
        elif kind in _texts:
            return self.dump_key(str.__str__(key))
        elif (plain := _converted(key)) is not key:
            return self.dump_key(plain)
        else:
            first, body = b"x", self.dump(key, is_key=True)
        return first + body

    def load_key(self, data: bytes) -> Any:
        """Decodes a stored key."""
        kind = data[:1]
        if kind == b"s":
            return data[1:].decode("utf-8", "surrogatepass")
        if kind == b"w":
            return data[1:]
        if kind == b"x":
            return self.load(data[1:])
        if len(data) == 9:
            return _from_sortable(int.from_bytes(data[1:], "big"))
        near, rest = _NUMBER.unpack_from(data, 1)
        return int(_from_sortable(near)) + rest - _SIGN


_texts: set[type[str]] = set()
_conversions: list[tuple[type, Callable[[Any], Any]]] = []


def add_text(kind: type[str]) -> None:
    """Registers a class of text, which is then stored with the name of the class and restored."""
    _texts.add(kind)
    _FROM_TAG[kind.__name__] = kind


def add_conversion(kind: type, convert: Callable[[Any], Any]) -> None:
    """Registers a class whose objects are stored, and later returned, as the result of
    `convert`."""
    _conversions.append((kind, convert))


def _converted(value: Any) -> Any:
    for kind, convert in _conversions:
        if isinstance(value, kind):
            return convert(value)
    return value


def short_key(key: bytes) -> bytes:
    """The stored form of a key: the key itself, or its hash if it is long."""
    return key if len(key) <= KEY_BYTES_MAX else b"z" + blake2b(key, digest_size=32).digest()


def fits(number: int) -> bool:
    """Whether a number fits into a signed 64-bit integer."""
    return -_SIGN <= number < _SIGN


def dump_disk_key(key: Any, raw: bool) -> bytes:
    """Encodes the result of `Disk.put`. For `StoreDisk` it equals the result of
    `Serializer.dump_key`."""
    key = _plain(key, "put")
    if raw:
        return _PLAIN.dump_key(key)
    return b"x" + key if type(key) is bytes else b"d" + _PLAIN.dump_key(key)


def load_disk_key(data: bytes) -> tuple[Any, bool]:
    """Inverts `dump_disk_key`: the arguments of `Disk.get`."""
    kind = data[:1]
    if kind == b"x":
        return data[1:], False
    if kind == b"d":
        return _PLAIN.load_key(data[1:]), False
    return _PLAIN.load_key(data), True


def dump_disk_value(size: int, mode: int, filename: str | None, value: Any) -> bytes:
    """Encodes the result of `Disk.store`."""
    name = b"" if filename is None else os.fsencode(filename)
    body = b"" if value is None else _PLAIN.dump(_plain(value, "store"))
    return _DISK_HEAD.pack(DISK, mode, size, len(name)) + name + body


def load_disk_value(data: bytes) -> tuple[int, str | None, Any]:
    """Inverts `dump_disk_value`: mode, file name and value for `Disk.fetch`. Also decodes values
    that a cache without a `Disk` stored."""
    if data[0] != DISK:
        return (MODE_RAW, None, _PLAIN.load(data)) if data[0] <= FLOAT else (MODE_SERIALIZED, None, data)
    _, mode, _, name_bytes = _DISK_HEAD.unpack_from(data)
    end = _DISK_HEAD.size + name_bytes
    body = data[end:]
    return mode, os.fsdecode(data[_DISK_HEAD.size : end]) if name_bytes else None, _PLAIN.load(body) if body else None


def file_of(data: bytes) -> tuple[str, int] | None:
    """Name and size of the file of a stored value."""
    if data[:1] != _MODES[DISK]:
        return None
    _, _, size, name_bytes = _DISK_HEAD.unpack_from(data)
    return (os.fsdecode(data[_DISK_HEAD.size : _DISK_HEAD.size + name_bytes]), size) if name_bytes else None


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dump_json(value: Any) -> bytes:
    """Encodes JSON types as bytes for `json.loads`. Text is not escaped, because two lone
    surrogates written as escapes are read back as one character."""
    return _JSON(value).encode("utf-8", "surrogatepass")


def _plain(value: Any, method: str) -> bytes | str | int | float:
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    kind = type(value)
    if kind in (bytes, str, float) or (kind is int and fits(value)):
        return value  # type: ignore[no-any-return]
    raise TypeError(f"{method} of a Disk returns bytes, text, a float or an integer of 64 bits, not {kind.__qualname__}")


def _sortable(number: float) -> int:
    bits: int = int.from_bytes(_FLOAT.pack(number), "big")
    return bits ^ _MASK if bits & _SIGN else bits | _SIGN


def _from_sortable(bits: int) -> float:
    bits = bits & ~_SIGN if bits & _SIGN else bits ^ _MASK
    number: float = _FLOAT.unpack(bits.to_bytes(8, "big"))[0]
    return number


def _to_json(value: Any, is_key: bool = False) -> Any:
    """Converts a value to JSON types: returns the value itself if it contains no other types,
    otherwise a copy with tags."""
    kind = type(value)
    if kind is int and not fits(value) and value.bit_length() > _DECIMAL_BITS_MAX:
        return {_TAG: "int", "v": hex(value)}
    if value is None or kind in (str, bool, int, float):
        return value
    if kind is list:
        items = [_to_json(item, is_key) for item in value]
        return value if all(map(_is, items, value)) else items
    if kind is dict:
        pairs = [(key, _to_json(item, is_key)) for key, item in value.items()]
        if is_key:
            pairs.sort(key=lambda pair: _JSON(_to_json(pair[0], True)))
        if all(type(key) is str for key, _ in pairs) and _TAG not in value:
            return value if not is_key and all(item is value[key] for key, item in pairs) else dict(pairs)
        return {_TAG: "dict", "v": [[_to_json(key, is_key), item] for key, item in pairs]}
    if kind is tuple:
        return {_TAG: "tuple", "v": [_to_json(item, is_key) for item in value]}
    if kind in (set, frozenset):
        # Sorted, because equal sets must be the same key, regardless of their order in this
        # process.
        return {_TAG: kind.__name__, "v": sorted((_to_json(item, is_key) for item in value), key=_JSON)}
    if kind is bytes:
        return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
    if kind is datetime:
        return {_TAG: "datetime", "v": value.isoformat() if is_key else _dump_datetime(value)}
    if kind is date:
        return {_TAG: "date", "v": value.isoformat()}
    if kind in (Decimal, UUID):
        return {_TAG: kind.__name__, "v": str(value)}
    if kind is timedelta:
        return {_TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if kind in _texts:
        return str.__str__(value) if is_key else {_TAG: kind.__name__, "v": str.__str__(value)}
    if (plain := _converted(value)) is not value:
        return _to_json(plain, is_key)
    raise _refusal(f"an object of type {kind.__qualname__}", _advice(kind))


class _KeyPickler(pickle._Pickler):
    """Pickles equal objects as equal bytes. Not the C class, because it does not allow choosing the
    order of sets."""

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)
        self.fast = True
        self._protocol = protocol

    def reducer_override(self, value: Any) -> Any:
        """Pickles objects that are equal despite a different order or flag."""
        kind = type(value)
        if kind is set or kind is frozenset:
            return kind, (sorted(value, key=self._bytes_of),)
        if kind is dict:
            return kind, (sorted(value.items(), key=lambda pair: self._bytes_of(pair[0])),)
        if kind is datetime and value.fold:
            return value.replace(fold=0).__reduce_ex__(self._protocol)
        return NotImplemented

    def _bytes_of(self, value: Any) -> bytes:
        return _pickle_key(value, self._protocol)


_PLAIN_IN_PICKLES = (str, bytes, int, float, bool, type(None))


def _is_plain_in_pickles(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN_IN_PICKLES or (kind is tuple and all(map(_is_plain_in_pickles, value)))


def _pickle_key(value: Any, protocol: int) -> bytes:
    """Pickles a key. An object that occurs twice is written twice (`fast`), because an equal copy
    is written twice as well."""
    file = io.BytesIO()
    if _is_plain_in_pickles(value):
        plain = pickle.Pickler(file, protocol)
        plain.fast = True
        plain.dump(value)
        return file.getvalue()
    try:
        _KeyPickler(file, protocol).dump(value)
    except RecursionError:
        # The object contains itself.
        return pickle.dumps(value, protocol)
    return file.getvalue()


def _refusal(what: str, advice: str) -> TypeError:
    return TypeError(
        f'{what} cannot be stored as JSON: {advice}, or open the cache with serializer="pickle" '
        "if only programs that you trust can write to its folder"
    )


_PLAIN_KINDS = (str, int, float, bytes, dict, list, tuple, set, frozenset, datetime, date, timedelta, Decimal, UUID)


def _advice(kind: type) -> str:
    """Advice on storing an object of a class that JSON and its tags lack."""
    if issubclass(kind, Enum):
        return "store its value or its name"
    for plain in _PLAIN_KINDS:
        if issubclass(kind, plain):
            what = f"a plain {plain.__name__}" if plain in (datetime, date, timedelta, UUID) else f"{plain.__name__}(value)"
            return f"it would come back as {plain.__name__}, so store {what}"
    return "store a dictionary or bytes"


def _dump_datetime(value: datetime) -> str | dict[str, Any]:
    """ISO 8601 if that is unambiguous; older versions wrote every datetime this way. Otherwise with
    its fold and its zone, or the name of its offset."""
    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key:
        return {"at": value.replace(tzinfo=None).isoformat(), "fold": value.fold, "zone": zone.key}
    if zone is not None and type(zone) is not timezone:
        raise _refusal(
            f"a datetime with a tzinfo of type {type(zone).__qualname__}", "use a zoneinfo.ZoneInfo with a key, or a datetime.timezone"
        )
    if zone is not None and zone.tzname(None) != timezone(zone.utcoffset(None)).tzname(None):
        return {"at": value.isoformat(), "fold": value.fold, "name": zone.tzname(None)}
    return {"at": value.isoformat(), "fold": value.fold} if value.fold else value.isoformat()


def _load_datetime(plain: str | dict[str, Any]) -> datetime:
    if isinstance(plain, str):
        return datetime.fromisoformat(plain)
    value = datetime.fromisoformat(plain["at"]).replace(fold=plain["fold"])
    if "zone" in plain:
        try:
            return value.replace(tzinfo=ZoneInfo(plain["zone"]))
        except (KeyError, OSError):
            # Callers would take a `KeyError` or `OSError` for a missing key.
            raise ValueError(f"the time zone {plain['zone']!r} is unknown on this machine") from None
    if "name" in plain:
        return value.replace(tzinfo=timezone(value.utcoffset() or timedelta(), plain["name"]))
    return value


def _is(first: object, second: object) -> bool:
    return first is second


_FROM_TAG: dict[str, Callable[[Any], Any]] = {
    "dict": lambda pairs: {_from_json(key): _from_json(item) for key, item in pairs},
    "tuple": lambda items: tuple(map(_from_json, items)),
    "set": lambda items: set(map(_from_json, items)),
    "frozenset": lambda items: frozenset(map(_from_json, items)),
    "bytes": base64.b64decode,
    "int": lambda digits: int(digits, 16),
    "datetime": _load_datetime,
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "Decimal": Decimal,
    "UUID": UUID,
}


def _from_json(plain: Any) -> Any:
    if type(plain) is list:
        return [_from_json(item) for item in plain]
    if type(plain) is dict:
        if _TAG in plain:
            tag = plain[_TAG]
            if tag not in _FROM_TAG:
                raise ValueError(
                    f"unknown type tag {tag!r}: the value may have been written by a newer version, "
                    "or by a process that has imported plimsoll.django"
                )
            return _FROM_TAG[tag](plain["v"])
        return {key: _from_json(item) for key, item in plain.items()}
    return plain


def _msgpack() -> tuple[Callable[[Any, bool], bytes], Callable[[bytes], Any]]:
    """MessagePack's two functions. Types that it lacks (tuples, sets, large integers) are embedded
    as tagged JSON."""
    try:
        import msgpack  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise ModuleNotFoundError('serializer="msgpack" needs the package msgpack') from None

    def foreign(value: Any) -> Any:
        return msgpack.ExtType(1, dump_json(_to_json(value)))

    def foreign_in_key(value: Any) -> Any:
        return msgpack.ExtType(1, dump_json(_to_json(value, is_key=True)))

    def in_order(value: Any) -> Any:
        """A key with sorted dictionaries. Dictionaries in tuples are sorted as JSON."""
        if type(value) is list:
            return [in_order(item) for item in value]
        if type(value) is dict:
            pairs = [(key, in_order(item)) for key, item in value.items()]
            return dict(sorted(pairs, key=lambda pair: pack(pair[0], True)))
        return value

    def load_foreign(code: int, data: bytes) -> Any:
        if code != 1:
            raise ValueError(f"unknown MessagePack extension {code}")
        return _from_json(json.loads(data))

    def pack(value: Any, is_key: bool = False) -> bytes:
        default = foreign_in_key if is_key else foreign
        if is_key:
            value = in_order(value)
        packed: bytes = msgpack.packb(value, default=default, strict_types=True, unicode_errors="surrogatepass")
        return packed

    def unpack(data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=load_foreign, strict_map_key=False, unicode_errors="surrogatepass")

    return pack, unpack


_PLAIN = Serializer("json")
"""A serializer for bytes, text and numbers, which every serializer encodes the same way."""
