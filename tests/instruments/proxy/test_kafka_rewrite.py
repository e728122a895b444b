"""The rewriter replaces addresses and nothing else, in every version; checked against an encoder of its own."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.instruments.proxy.frames import Refused
from onceproof.instruments.proxy.kafka import KafkaConversation
from onceproof.instruments.proxy.kafka_rewrite import (
    API_VERSIONS,
    NAMING,
    SASL_HANDSHAKE,
    UNKNOWN_VERSION,
    clamped,
    rewritten,
)
from onceproof.instruments.proxy.kafka_schema import Undecodable, api_name, versions

from .wire import INTEGERS, MESSAGES, Everything, covers, cut, joined, text, varint

CASES = [(api, version) for api in sorted(NAMING) for version in versions(api) or ()]
HOST = st.text("ab.-0", min_size=1, max_size=200)


def address(broker: int, host: str, port: int) -> tuple[str, int]:
    """Another address for each broker and each address of it, longer or shorter than the one before."""
    return f"our-{broker}-" + host[: broker % 5], (port * 7 + broker) % 65536


# -- an encoder that is independent of the code under test, for trees of values -----------------------------------


@st.composite
def tree(draw: st.DrawFn, fields: list[dict[str, Any]], version: int) -> dict[str, Any]:
    """Any values for the fields of a version. A tagged field may be absent; ``_unknown`` are tags that nobody defined."""
    values: dict[str, Any] = {"_unknown": draw(st.lists(st.binary(max_size=5), max_size=2))}
    for field in fields:
        if covers(field.get("versions", "0+"), version):
            if covers(field.get("taggedVersions", "none"), version) and draw(st.booleans()):
                continue
            values[field["name"]] = draw(values_of(field, field["type"], version))
    return values


def values_of(field: dict[str, Any], kind: str, version: int) -> st.SearchStrategy[Any]:
    none = st.none() if covers(field.get("nullableVersions", "none"), version) else st.nothing()
    if kind in INTEGERS:
        bits = INTEGERS[kind][1]
        ours = {"Port": st.integers(0, 65535), "NodeId": st.integers(-1, 300), "BrokerId": st.integers(-1, 300)}
        return ours.get(field["name"], st.integers(-(2**bits), 2**bits - 1))
    if kind.startswith("[]"):
        return none | st.lists(values_of({**field, "nullableVersions": "none"}, kind[2:], version), max_size=2)
    if "fields" in field:
        return tree(field["fields"], version)
    if field["name"] == "Host":
        return st.just("") | HOST
    other = {"bool": st.booleans(), "uuid": st.binary(min_size=16, max_size=16), "string": st.text(max_size=6)}
    return none | other.get(kind, st.binary(max_size=200))


def encode(values: dict[str, Any], fields: list[dict[str, Any]], version: int, flexible: bool) -> bytes:
    out, tags = b"", []
    for field in fields:
        if field["name"] in values:
            raw = encode_value(values[field["name"]], field, field["type"], version, flexible)
            if covers(field.get("taggedVersions", "none"), version):
                tags.append((field["tag"], raw))
            else:
                out += raw
    if flexible:
        tags = sorted(tags) + [(90 + number, raw) for number, raw in enumerate(values["_unknown"])]
        out += varint(len(tags)) + b"".join(varint(tag) + varint(len(raw)) + raw for tag, raw in tags)
    return out


def encode_value(value: Any, field: dict[str, Any], kind: str, version: int, flexible: bool) -> bytes:
    if kind in INTEGERS:
        return pack(INTEGERS[kind][0], value)
    if kind == "bool":
        return bytes([value])
    if kind == "uuid":
        return bytes(value)
    if kind == "string":
        return text(value, flexible)
    if kind.startswith("[]") or kind in ("records", "bytes"):
        size = -1 if value is None else len(value)
        head = varint(size + 1) if flexible else pack(">i", size)
        if kind.startswith("[]"):
            return head + b"".join(encode_value(item, field, kind[2:], version, flexible) for item in value or ())
        return head + (value or b"")
    return encode(value, field["fields"], version, flexible)


def moved(value: Any) -> Any:
    """The same values, with every broker at its other address."""
    if isinstance(value, list):
        return [moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {name: moved(inner) for name, inner in value.items()}
    broker = value.get("NodeId", value.get("BrokerId", -1))
    if value.get("Host") and broker >= 0:
        new["Host"], new["Port"] = address(broker, value["Host"], value["Port"])
    return new


def answer(api: int, version: int, values: dict[str, Any], correlation: int = 7) -> bytes:
    entry = MESSAGES[api_name(api)]["response"]
    flexible = covers(entry["flexible"], version)
    header = b"\0" if flexible and api != API_VERSIONS else b""
    content = pack(">i", correlation) + header + encode(values, entry["fields"], version, flexible)
    return pack(">i", len(content)) + content


def ask(api: int, version: int, correlation: int = 7, body: bytes = b"") -> bytes:
    content = pack(">hhi", api, version, correlation) + text("me", False) + body
    return pack(">i", len(content)) + content


# -- the tests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "version"), CASES, ids=[f"{api_name(api)}-{version}" for api, version in CASES])
@given(data=st.data())
def test_all_but_the_addresses_is_kept(api: int, version: int, data: st.DataObject) -> None:
    values = data.draw(tree(MESSAGES[api_name(api)]["response"]["fields"], version))
    assert rewritten(answer(api, version, values), api, version, address) == answer(api, version, moved(values))


@given(st.sampled_from(CASES), st.data())
def test_a_connection_rewrites_however_the_stream_is_split(case: tuple[int, int], data: st.DataObject) -> None:
    api, version = case
    conversation = KafkaConversation(Everything("EndTxn"), {}, "proxy", address)
    conversation.from_client(ask(api, version))
    values = data.draw(tree(MESSAGES[api_name(api)]["response"]["fields"], version))
    other = pack(">ii", 9, 8) + b"other"  # the answer to a request that names no broker
    parts = data.draw(cut(answer(api, version, values) + other))
    got = joined([piece for part in parts for piece in conversation.from_server(part)])
    assert got == answer(api, version, moved(values)) + other


@given(st.sampled_from(CASES), st.binary(max_size=200))
def test_noise_raises_undecodable_and_no_other_exception(case: tuple[int, int], noise: bytes) -> None:
    try:
        rewritten(pack(">ii", len(noise) + 4, 7) + noise, *case, address)
    except Undecodable as trouble:
        assert str(trouble)


@given(version=st.sampled_from(list(versions(API_VERSIONS) or ())), data=st.data())
def test_announced_versions_are_limited_to_those_that_can_be_read(version: int, data: st.DataObject) -> None:
    fields = MESSAGES["ApiVersions"]["response"]["fields"]
    values = data.draw(tree(fields, version)) | {"ErrorCode": 0}
    limits = st.tuples(st.integers(0, 120), st.integers(0, 5), st.integers(0, 40))
    drawn = data.draw(st.lists(limits, max_size=5, unique_by=lambda one: one[0]))
    keys = [{"ApiKey": key, "MinVersion": low, "MaxVersion": high, "_unknown": []} for key, low, high in drawn]
    kept = []
    for one in keys:
        known = versions(one["ApiKey"])
        if known is not None:
            both = {"MinVersion": max(one["MinVersion"], known[0]), "MaxVersion": min(one["MaxVersion"], known[-1])}
            if both["MinVersion"] <= both["MaxVersion"]:
                kept.append(one | both)
    frame = answer(API_VERSIONS, version, values | {"ApiKeys": keys})
    assert clamped(frame, version) == answer(API_VERSIONS, version, values | {"ApiKeys": kept})


def test_an_answer_of_a_broker_that_does_not_know_the_version_is_read_as_version_0() -> None:
    key = {"ApiKey": API_VERSIONS, "MinVersion": 0, "MaxVersion": 99, "_unknown": []}
    frame = answer(API_VERSIONS, 0, {"ErrorCode": 35, "ApiKeys": [key]})
    assert clamped(frame, 4) == answer(API_VERSIONS, 0, {"ErrorCode": 35, "ApiKeys": [key | {"MaxVersion": 4}]})


def test_a_question_in_a_newer_version_gets_the_brokers_own_refusal() -> None:
    """So that the client asks again in a version that the proxy can read."""
    conversation = KafkaConversation(Everything(), {}, "proxy", address)
    sent = joined(conversation.from_client(ask(API_VERSIONS, 77)))
    assert sent == ask(API_VERSIONS, UNKNOWN_VERSION)
    frame = answer(API_VERSIONS, 0, {"ErrorCode": 35, "ApiKeys": []})
    assert joined(conversation.from_server(frame)) == frame


def test_an_answer_that_cannot_be_read_is_refused() -> None:
    """It could name brokers, and the client would bypass the proxy."""
    conversation = KafkaConversation(Everything(), {}, "proxy", address)
    conversation.from_client(ask(3, 99))
    with pytest.raises(Refused, match=r"the answer to Metadata version 99 could name brokers"):
        conversation.from_server(pack(">ii", 9, 7) + b"12345")


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [("GSSAPI", "Kerberos ticket"), ("SCRAM-SHA-512-PLUS", "binds the channel; set SCRAM-SHA-512")],
)
def test_a_mechanism_that_a_proxy_breaks_is_refused(mechanism: str, why: str) -> None:
    conversation = KafkaConversation(Everything(), {}, "proxy", address)
    with pytest.raises(Refused, match=why):
        conversation.from_client(ask(SASL_HANDSHAKE, 1, body=text(mechanism, False)))


@pytest.mark.parametrize("in_front", [address, None])
def test_a_handshake_with_bare_tokens_is_refused(in_front: Any) -> None:
    conversation = KafkaConversation(Everything("EndTxn"), {}, "proxy", in_front)
    with pytest.raises(Refused, match=r"SaslHandshake version 0 .* use a client of Kafka 1.0"):
        conversation.from_client(ask(SASL_HANDSHAKE, 0, body=text("PLAIN", False)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_other_mechanisms_pass_untouched(mechanism: str) -> None:
    conversation = KafkaConversation(Everything("EndTxn"), {}, "proxy", address)
    frame = ask(SASL_HANDSHAKE, 1, body=text(mechanism, False))
    assert joined(conversation.from_client(frame)) == frame
