"""Replaces the brokers' addresses in Kafka's answers, and limits the versions that a broker announces to those we can read.

A change is a splice: all other bytes stay as they came, unknown tagged fields and records included. Answers that name brokers:
Metadata, FindCoordinator (KIP-699: several), DescribeCluster, and since KIP-951 Produce and Fetch, and those of share groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any

from onceproof.instruments.proxy.frames import Refused
from onceproof.instruments.proxy.kafka_schema import (
    Cursor,
    Undecodable,
    api_name,
    covers,
    definition,
    layout,
    skipping,
    versions,
)

#: (broker id, host, port) that the cluster names -> the host and port that the client gets.
Address = Callable[[int, str, int], tuple[str, int]]

#: (start, end, replacement) within a frame.
_Edit = tuple[int, int, bytes]
_Walk = Callable[[Cursor, list[_Edit], Address], None]

API_VERSIONS, SASL_HANDSHAKE = 18, 17
#: The APIs whose answers name brokers: Produce, Fetch, Metadata, FindCoordinator, DescribeCluster, ShareFetch, ShareAcknowledge.
NAMING = frozenset((0, 1, 3, 10, 60, 78, 79))
#: No broker has this version: it answers that it does not support it, in version 0 (KIP-511).
UNKNOWN_VERSION = 0x7FFF

_INT16, _INT32 = Struct(">h"), Struct(">i")
_UNSUPPORTED = 35
_HEAD = 8
"""Length and correlation id."""


def rewritten(frame: bytes | memoryview, api: int, version: int, address: Address) -> bytes:
    """A whole answer with each broker's address replaced. Raises `Undecodable`."""
    name = api_name(api)
    cursor, edits = Cursor(frame, _HEAD), list[_Edit]()
    if layout(name, "response", version).tagged_header:
        cursor.skip_tags()
    _body(name, version)(cursor, edits, address)
    cursor.end()
    return _spliced(frame, edits) if edits else bytes(frame)


def clamped(frame: bytes | memoryview, version: int) -> bytes:
    """A whole answer to ApiVersions, without what the proxy could not read. Raises `Undecodable`.

    An API that Kafka's definitions do not have is left out: its answers might name brokers. One that is defined, but whose
    messages the proxy does not read, keeps its versions.
    """
    cursor = Cursor(frame, _HEAD)  # its header has no tagged fields in any version (KIP-511)
    if cursor.number(_INT16) == _UNSUPPORTED:
        version = 0
    flexible = covers(definition("ApiVersions", "response", version)["flexible"], version)
    start = cursor.at
    count = cursor.length(_INT32, flexible)
    kept = []
    for _ in range(count):
        key, low, high = (cursor.number(_INT16) for _ in range(3))
        after = cursor.at
        if flexible:
            cursor.skip_tags()
        readable = versions(key)
        if readable is None or max(low, readable.start) > min(high, readable.stop - 1):
            continue
        head = (key, max(low, readable.start), min(high, readable.stop - 1))
        kept.append(b"".join(map(_INT16.pack, head)) + bytes(frame[after : cursor.at]))
    size = varint(len(kept) + 1) if flexible else _INT32.pack(len(kept))
    return _spliced(frame, [(start, cursor.at, size + b"".join(kept))])


def check_mechanism(request: bytes | memoryview) -> None:
    """Raise `Refused` for a SaslHandshake with a mechanism that works only without a proxy."""
    cursor = Cursor(request, 12)
    cursor.text(compact=False)  # the client's name
    mechanism = (cursor.text(compact=False) or "").upper()
    if mechanism == "GSSAPI":
        raise Refused(
            "sasl.mechanism GSSAPI is impossible through a proxy: a Kerberos ticket is for the broker's own host name, and may"
            " protect the channel; set PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
        )
    if mechanism.endswith("-PLUS"):
        raise Refused(
            f"sasl.mechanism {mechanism} is impossible through a proxy: it binds the channel;"
            f" set {mechanism.removesuffix('-PLUS')}"
        )


def varint(number: int) -> bytes:
    """An unsigned varint (KIP-482)."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _spliced(frame: bytes | memoryview, edits: list[_Edit]) -> bytes:
    parts, at = [], _INT32.size
    for start, end, new in sorted(edits):
        parts += [bytes(frame[at:start]), new]
        at = end
    parts.append(bytes(frame[at:]))
    content = b"".join(parts)
    return _INT32.pack(len(content)) + content


@cache
def _body(name: str, version: int) -> _Walk:
    message = definition(name, "response", version)
    return _struct(message["fields"], version, covers(message["flexible"], version))


def _struct(fields: list[dict[str, Any]], version: int, flexible: bool) -> _Walk:
    present = [field for field in fields if covers(field.get("versions", "0+"), version)]
    tagged = {field["tag"]: field for field in present if covers(field.get("taggedVersions", "none"), version)}
    plain = [field for field in present if field not in tagged.values()]
    names = {field["name"] for field in plain}
    steps = [_endpoint(plain, flexible)] if {"Host", "Port"} <= names else [_value(f, version, flexible) for f in plain]
    walks = {tag: _value(field, version, flexible) for tag, field in tagged.items() if _names_brokers(field)}

    def walk(cursor: Cursor, edits: list[_Edit], address: Address) -> None:
        for step in steps:
            step(cursor, edits, address)
        if flexible:
            _tags(cursor, edits, address, walks)

    return walk


def _tags(cursor: Cursor, edits: list[_Edit], address: Address, walks: dict[int, _Walk]) -> None:
    for _ in range(cursor.varint()):
        tag, at = cursor.varint(), cursor.at
        size = cursor.varint()
        content = cursor.at
        if tag not in walks:
            cursor.take(size)
            continue
        before = len(edits)
        walks[tag](cursor, edits, address)
        if cursor.at != content + size:
            raise Undecodable(f"tagged field {tag} has {size} bytes, and its value {cursor.at - content}")
        grown = sum(len(new) - (end - start) for start, end, new in edits[before:])
        if grown:
            edits.append((at, content, varint(size + grown)))


def _endpoint(fields: list[dict[str, Any]], flexible: bool) -> _Walk:
    """A struct with a broker's id, host and port, in any order and among other fields."""
    steps = [(field["name"], skipping(field, flexible)) for field in fields]

    def walk(cursor: Cursor, edits: list[_Edit], address: Address) -> None:
        spans = {}
        for name, skip in steps:
            start = cursor.at
            skip(cursor)
            spans[name] = (start, cursor.at)
        at, end = spans["Host"]
        host = Cursor(cursor.data, at).text(flexible)
        (port,) = _INT32.unpack_from(cursor.data, spans["Port"][0])
        (node,) = _INT32.unpack_from(cursor.data, spans.get("NodeId", spans.get("BrokerId", (0, 0)))[0])
        if not host or node < 0:  # no coordinator: the answer says why
            return
        host, port = address(node, host, port)
        raw = host.encode()
        edits.append((at, end, (varint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw))
        edits.append((*spans["Port"], _INT32.pack(port)))

    return walk


def _value(field: dict[str, Any], version: int, flexible: bool) -> _Walk:
    if "fields" not in field:
        return _passing(skipping(field, flexible))
    inner = _struct(field["fields"], version, flexible)
    if not field["type"].startswith("[]"):
        return inner

    def walk(cursor: Cursor, edits: list[_Edit], address: Address) -> None:
        count = cursor.length(_INT32, flexible)
        if count > len(cursor.data) - cursor.at:  # every item takes at least one byte
            raise Undecodable(f"an array of {count} items at byte {cursor.at} of a frame of {len(cursor.data)} bytes")
        for _ in range(count):
            inner(cursor, edits, address)

    return walk


def _passing(skip: Callable[[Cursor], object]) -> _Walk:
    def walk(cursor: Cursor, _edits: list[_Edit], _address: Address) -> None:
        skip(cursor)

    return walk


def _names_brokers(field: dict[str, Any]) -> bool:
    fields = field.get("fields", [])
    return any(inner["name"] == "Host" or _names_brokers(inner) for inner in fields)
