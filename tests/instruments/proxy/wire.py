"""Encodes frames for tests, independently of the parsers under test."""

from __future__ import annotations

import itertools
import json
from importlib.resources import files
from struct import pack
from typing import Any

from hypothesis import strategies as st

from onceproof.instruments.proxy.frames import Answer, Frame, Piece, Reply

MESSAGES: dict[str, Any] = json.loads((files("onceproof.instruments.proxy") / "kafka_messages.json").read_text("utf-8"))
INTEGERS = {"int8": (">b", 7), "int16": (">h", 15), "int32": (">i", 31), "int64": (">q", 63)}


def valid_versions(api: str) -> range:
    """The request versions that Kafka's definitions have."""
    low, _, high = MESSAGES[api]["request"]["valid"].partition("-")
    return range(int(low), int(high or low) + 1)


class Everything:
    """Wants every frame of the kinds given, or all."""

    active = True
    listens = True

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.replies: list[Reply] = []

    def note(self, reply: Reply) -> None:
        self.replies.append(reply)

    def wants(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.raw if isinstance(piece, Frame | Answer) else piece for piece in pieces)


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The stream, split into pieces as a network may deliver it."""
    places = draw(st.lists(st.integers(0, len(stream)), max_size=12))
    edges = [0, *sorted(places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges) if b > a]


def split(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


# -- Kafka --------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def covers(versions: str, version: int) -> bool:
    low, _, high = versions.rstrip("+").partition("-")
    return versions != "none" and int(low) <= version <= (10**6 if versions.endswith("+") else int(high or low))


def text(value: str | None, flexible: bool) -> bytes:
    raw = (value or "").encode()
    if flexible:
        return varint(0) if value is None else varint(len(raw) + 1) + raw
    return pack(">h", -1) if value is None else pack(">h", len(raw)) + raw


@st.composite
def body(draw: st.DrawFn, fields: list[dict[str, Any]], version: int, flexible: bool) -> tuple[dict[str, Any], bytes]:
    """Any message body that the definitions allow, as values and as bytes."""
    values: dict[str, Any] = {}
    out = b""
    for field in fields:
        if not covers(field.get("versions", "0+"), version) or covers(field.get("taggedVersions", "none"), version):
            continue
        values[field["name"]], raw = draw(value(field, field["type"], version, flexible))
        out += raw
    if flexible:
        tags = draw(st.lists(st.binary(max_size=5), max_size=2))
        out += varint(len(tags)) + b"".join(varint(90 + n) + varint(len(t)) + t for n, t in enumerate(tags))
    return values, out


@st.composite
def value(draw: st.DrawFn, field: dict[str, Any], kind: str, version: int, flexible: bool) -> tuple[Any, bytes]:
    nullable = covers(field.get("nullableVersions", "none"), version)
    if kind in INTEGERS:
        form, bits = INTEGERS[kind]
        number = draw(st.integers(-(2**bits), 2**bits - 1))
        return number, pack(form, number)
    if kind == "bool":
        yes = draw(st.booleans())
        return yes, bytes([yes])
    if kind == "uuid":
        raw = draw(st.binary(min_size=16, max_size=16))
        return raw, raw
    if kind == "string":
        words = draw(st.none() | st.text(max_size=6) if nullable else st.text(max_size=6))
        return words, text(words, flexible)
    if kind in ("records", "bytes"):
        raw = draw(st.binary(max_size=20))
        return len(raw), (varint(len(raw) + 1) if flexible else pack(">i", len(raw))) + raw
    if kind.startswith("[]"):
        if nullable and draw(st.booleans()):
            return None, varint(0) if flexible else pack(">i", -1)
        items = [draw(value(field, kind[2:], version, flexible)) for _ in range(draw(st.integers(0, 2)))]
        count = varint(len(items) + 1) if flexible else pack(">i", len(items))
        return [item for item, _ in items], count + b"".join(raw for _, raw in items)
    inner: tuple[dict[str, Any], bytes] = draw(body(field["fields"], version, flexible))
    return inner


@st.composite
def request(draw: st.DrawFn, apis: tuple[str, ...] = ()) -> tuple[str, dict[str, Any], bytes]:
    """Any request: its API, values, and whole frame."""
    api = draw(st.sampled_from(apis or tuple(name for name, entry in MESSAGES.items() if "request" in entry)))
    version, flexible, fields = draw(version_of(api, "request"))
    values, raw = draw(body(fields, version, flexible))
    correlation = draw(st.integers(0, 2**31 - 1))
    head = pack(">hhi", MESSAGES[api]["key"], version, correlation) + text(draw(st.none() | st.text(max_size=5)), False)
    frame = head + (varint(0) if flexible else b"") + raw
    return api, {**values, "_version": version, "_correlation": correlation}, pack(">i", len(frame)) + frame


@st.composite
def version_of(draw: st.DrawFn, api: str, direction: str) -> tuple[int, bool, list[dict[str, Any]]]:
    entry = MESSAGES[api][direction]
    low, _, high = entry["valid"].partition("-")
    version = draw(st.integers(int(low), int(high or low)))
    return version, covers(entry["flexible"], version), entry["fields"]


@st.composite
def response(draw: st.DrawFn, api: str, version: int, correlation: int) -> tuple[dict[str, Any], bytes]:
    entry = MESSAGES[api]["response"]
    flexible = covers(entry["flexible"], version)
    values, raw = draw(body(entry["fields"], version, flexible))
    header_tags = flexible and api != "ApiVersions"  # KIP-511
    frame = pack(">i", correlation) + (varint(0) if header_tags else b"") + raw
    return values, pack(">i", len(frame)) + frame


# -- Postgres -----------------------------------------------------------------------------------------------------


def pg(kind: str, payload: bytes = b"") -> bytes:
    return kind.encode() + pack(">i", len(payload) + 4) + payload


def startup(code: int = 196608, payload: bytes = b"user\0me\0\0") -> bytes:
    return pack(">ii", len(payload) + 8, code) + payload


SSL_REQUEST, GSS_REQUEST = pack(">ii", 8, 80877103), pack(">ii", 8, 80877104)
CANCEL = pack(">iiii", 16, 80877102, 1, 2)
WELCOME = pg("R", pack(">i", 0)) + pg("K", pack(">ii", 4711, 1)) + pg("Z", b"I")


def query(sql: str) -> bytes:
    return pg("Q", sql.encode() + b"\0")


def parse(sql: str, name: str = "") -> bytes:
    return pg("P", name.encode() + b"\0" + sql.encode() + b"\0" + pack(">h", 0))


def bind(name: str = "", portal: str = "", parameters: bytes = b"") -> bytes:
    return pg("B", portal.encode() + b"\0" + name.encode() + b"\0" + pack(">hhh", 0, 0, 0) + parameters)


def execute(portal: str = "") -> bytes:
    return pg("E", portal.encode() + b"\0" + pack(">i", 0))


SYNC = pg("S")


def error(code: str, message: str) -> bytes:
    fields = {"S": "ERROR", "C": code, "M": message}
    return pg("E", b"".join(f"{key}{value}".encode() + b"\0" for key, value in fields.items()) + b"\0")


def complete(tag: str) -> bytes:
    return pg("C", tag.encode() + b"\0")


def ready(status: str) -> bytes:
    return pg("Z", status.encode())


messages = st.one_of(
    st.sampled_from(["COMMIT", "begin", "INSERT INTO t VALUES (1)", "END", "select ';COMMIT'"]).map(query),
    st.sampled_from(["COMMIT", "INSERT INTO t VALUES ($1)"]).map(parse),
    st.binary(max_size=300).map(lambda raw: bind(parameters=raw)),
    st.just(execute()),
    st.just(SYNC),
    st.binary(max_size=400).map(lambda raw: pg("d", raw)),
    st.tuples(st.sampled_from("CDFHXfcp"), st.binary(max_size=30)).map(lambda pair: pg(*pair)),
)
answers = st.one_of(
    st.sampled_from(["COMMIT", "INSERT 0 1", "BEGIN"]).map(complete),
    st.sampled_from("ITE").map(ready),
    st.tuples(st.sampled_from("123DTGHINSZRKEsn"), st.binary(max_size=40)).map(lambda pair: pg(*pair)),
)
