"""Decodes bodies of Kafka's requests and responses, in every version, by Kafka's own message definitions.

``tools/kafka_messages.py`` extracts ``kafka_messages.json`` from the pinned kafka-clients jar. How definitions become bytes is
specified in KIP-482 (compact types and tagged fields of flexible versions) and in Kafka's protocol guide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from struct import Struct
from typing import Any, Literal

_NUMBERS = {"int8": Struct(">b"), "int16": Struct(">h"), "int32": Struct(">i"), "int64": Struct(">q")}
_LEN16, _LEN32 = Struct(">h"), Struct(">i")


class Undecodable(ValueError):
    """The bytes are not the message that their header announces, or Kafka's definitions do not have the version."""


@dataclass(frozen=True)
class Layout:
    """One version of one message: ``read(cursor)`` returns its body as a dict. Tagged fields are skipped."""

    tagged_header: bool
    """Whether the header before it ends with tagged fields: in flexible versions, except in an answer to ApiVersions (KIP-511)."""
    read: Callable[[Cursor], dict[str, Any]]


class Cursor:
    """A position in a frame. Every read raises `Undecodable` if the frame has too few bytes."""

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise _too_long(f"{count} bytes", self)
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def number(self, kind: Struct) -> int:
        value: int = kind.unpack(self.take(kind.size))[0]
        return value

    def varint(self) -> int:
        """An unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Undecodable(f"the varint at byte {self.at - 5} is longer than five bytes")

    def length(self, kind: Struct, compact: bool) -> int:
        """The length of a string, an array or bytes; -1 for null."""
        return self.varint() - 1 if compact else self.number(kind)

    def text(self, compact: bool) -> str | None:
        size = self.length(_LEN16, compact)
        return None if size == -1 else self.take(size).decode(errors="replace")

    def end(self) -> None:
        """Check that the message ends here."""
        if self.at != len(self.data):
            raise Undecodable(f"{len(self.data) - self.at} bytes after the end of the message")

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


def api_name(key: int) -> str:
    """``EndTxn`` for 26; ``api 999`` for a key that Kafka's definitions do not have."""
    return _names().get(key, f"api {key}")


def api_names(*, decoded: bool = False) -> list[str]:
    """The names of all APIs, or only of those whose bodies can be decoded."""
    return [name for name, entry in _messages().items() if not decoded or "request" in entry]


@cache
def layout(api: str, direction: Literal["request", "response"], version: int) -> Layout:
    """How to read a message. Raises `Undecodable` for an API or a version without a definition."""
    entry = definition(api, direction, version)
    flexible = covers(entry["flexible"], version)
    tagged_header = flexible and (api, direction) != ("ApiVersions", "response")
    return Layout(tagged_header, _struct(entry["fields"], version, flexible))


def definition(api: str, direction: Literal["request", "response"], version: int) -> dict[str, Any]:
    """Kafka's definition of a message: ``flexible`` and ``fields``. Raises `Undecodable` if it has none of that version."""
    entry: dict[str, Any] | None = _messages().get(api, {}).get(direction)
    if entry is None or not covers(entry["valid"], version):
        raise Undecodable(f"no definition of {api} {direction} version {version}")
    return entry


@cache
def versions(key: int) -> range | None:
    """The versions of an API that can be read; all if the proxy does not read its bodies, None if Kafka does not define it."""
    entry = _messages().get(_names().get(key, ""))
    if entry is None:
        return None
    if "request" not in entry:
        return range(0x8000)
    ends = [entry[direction]["valid"].partition("-") for direction in ("request", "response")]
    return range(max(int(low) for low, _, _ in ends), min(int(high or low) for low, _, high in ends) + 1)


def skipping(field: dict[str, Any], flexible: bool) -> Callable[[Cursor], object]:
    """Moves a cursor over a value that has no fields of its own."""
    return _value(field["type"], field, 0, flexible)


def named(value: Any, name: str) -> Iterator[Any]:
    """Every value of a field called ``name``, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield inner
            else:
                yield from named(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from named(inner, name)


@cache
def request_fields(api: str) -> frozenset[str]:
    """The names of all fields of an API's requests, at any depth and of any version; none if its bodies are not decoded."""
    found: set[str] = set()
    left = list(_messages().get(api, {}).get("request", {}).get("fields", []))
    while left:
        field = left.pop()
        found.add(field["name"])
        left += field.get("fields", [])
    return frozenset(found)


_Reader = Callable[[Cursor], Any]


def _struct(fields: list[dict[str, Any]], version: int, flexible: bool) -> _Reader:
    readers = [
        (field["name"], _value(field["type"], field, version, flexible))
        for field in fields
        if covers(field.get("versions", "0+"), version) and not covers(field.get("taggedVersions", "none"), version)
    ]

    def read(cursor: Cursor) -> dict[str, Any]:
        found = {name: reader(cursor) for name, reader in readers}
        if flexible:
            cursor.skip_tags()
        return found

    return read


def _value(kind: str, field: dict[str, Any], version: int, flexible: bool) -> _Reader:
    if kind.startswith("[]"):
        return _array(_value(kind[2:], field, version, flexible), flexible)
    if kind in _NUMBERS:
        number = _NUMBERS[kind]
        return lambda cursor: cursor.number(number)
    if kind == "bool":
        return lambda cursor: cursor.take(1) != b"\0"
    if kind == "uuid":
        return lambda cursor: cursor.take(16)
    if kind == "string":
        return lambda cursor: cursor.text(flexible)
    if kind in ("records", "bytes"):
        return lambda cursor: _skip_bytes(cursor, flexible)
    return _struct(field["fields"], version, flexible)


def _array(item: _Reader, flexible: bool) -> _Reader:
    def read(cursor: Cursor) -> list[Any] | None:
        count = cursor.length(_LEN32, flexible)
        if count == -1:
            return None
        # Every item takes at least one byte: refuse a count beyond the frame before the loop.
        if count < 0 or count > len(cursor.data) - cursor.at:
            raise _too_long(f"an array of {count} items", cursor)
        return [item(cursor) for _ in range(count)]

    return read


def _skip_bytes(cursor: Cursor, flexible: bool) -> int | None:
    """Returns only the number of bytes: rules do not look into records."""
    size = cursor.length(_LEN32, flexible)
    if size == -1:
        return None
    if size < 0 or cursor.at + size > len(cursor.data):
        raise _too_long(f"{size} bytes", cursor)
    cursor.at += size
    return size


def _too_long(what: str, cursor: Cursor) -> Undecodable:
    return Undecodable(f"{what} expected at byte {cursor.at} of a frame of {len(cursor.data)} bytes")


@cache
def _messages() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (files("onceproof.instruments.proxy") / "kafka_messages.json").read_text("utf-8")
    )
    return found


@cache
def _names() -> dict[int, str]:
    return {entry["key"]: name for name, entry in _messages().items()}


def covers(versions: str, version: int) -> bool:
    """Whether a range of Kafka's versions (``0-3``, ``9+``, ``5`` or ``none``) contains ``version``."""
    if versions == "none":
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    low, _, high = versions.partition("-")
    return int(low) <= version <= int(high or low)
