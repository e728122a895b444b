"""Kafka frames: the parser decodes every version, finds frames however the stream is split, and changes no byte."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame
from onceproof.instruments.proxy.kafka import KafkaConversation
from onceproof.instruments.proxy.kafka_schema import Cursor, Undecodable, api_names, layout

from .wire import (
    Everything,
    body,
    covers,
    cut,
    joined,
    request,
    response,
    split,
    text,
    valid_versions,
    varint,
    version_of,
)

MANY = st.lists(request(), min_size=1, max_size=4)
WITHOUT_TLS = st.binary(max_size=400).filter(lambda raw: raw[:2] != b"\x16\x03")


def talk(*kinds: str, names: dict[bytes, str] | None = None) -> KafkaConversation:
    return KafkaConversation(Everything(*kinds), names if names is not None else {})


@given(st.data())
def test_every_version_of_every_body_is_decoded_to_its_end(data: st.DataObject) -> None:
    api = data.draw(st.sampled_from(api_names(decoded=True)))
    direction: Any = data.draw(st.sampled_from(["request", "response"]))
    version, flexible, fields = data.draw(version_of(api, direction))
    values, raw = data.draw(body(fields, version, flexible))
    cursor = Cursor(raw)
    found = layout(api, direction, version).read(cursor)
    assert found == values
    cursor.end()


@given(
    st.sampled_from(api_names(decoded=True)),
    st.sampled_from(["request", "response"]),
    st.binary(max_size=200),
    st.data(),
)
def test_noise_raises_undecodable_and_no_other_exception(
    api: str, direction: Any, noise: bytes, data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(list(valid_versions(api))))
    try:
        layout(api, direction, version).read(Cursor(noise))
    except Undecodable as trouble:
        assert str(trouble)


def test_an_unknown_version_is_named_in_the_error() -> None:
    with pytest.raises(Undecodable, match="EndTxn request version 99"):
        layout("EndTxn", "request", 99)


@given(st.data())
def test_frames_are_found_however_the_stream_is_split(data: st.DataObject) -> None:
    sent = data.draw(MANY)
    stream = b"".join(raw for *_, raw in sent)
    conversation = talk()
    pieces = [piece for part in data.draw(cut(stream)) for piece in conversation.from_client(part)]
    frames = [piece for piece in pieces if isinstance(piece, Frame)]
    assert [(f.kind, f.raw) for f in frames] == [(api, raw) for api, _, raw in sent]
    assert [f.facts["correlation_id"] for f in frames] == [values["_correlation"] for _, values, _ in sent]
    assert not any("undecodable" in f.facts for f in frames)
    assert joined(pieces) == stream


@given(st.data())
def test_no_byte_changes_whatever_is_sent(data: st.DataObject) -> None:
    """Frames, then noise, in both directions, with some APIs wanted."""
    frames = data.draw(MANY)
    up = b"".join(raw for *_, raw in frames) + data.draw(WITHOUT_TLS)
    down = b"".join(pack(">ii", 4 + len(raw), n) + raw for n, (*_, raw) in enumerate(frames)) + data.draw(st.binary())
    conversation = talk(*data.draw(st.sets(st.sampled_from(["Produce", "EndTxn", "Metadata", "Fetch"]), min_size=1)))
    out = b""
    for part in data.draw(cut(up)):
        for piece in conversation.from_client(part):
            if isinstance(piece, Frame):
                conversation.watch(piece)
            out += joined([piece])
    assert out + conversation.rest_of_client() == up
    back = joined([piece for part in data.draw(cut(down)) for piece in conversation.from_server(part)])
    assert back + conversation.rest_of_server() == down


@given(WITHOUT_TLS, st.integers(1, 50))
def test_noise_passes_unchanged(noise: bytes, size: int) -> None:
    for feed, rest in (
        ("from_client", "rest_of_client"),
        ("from_server", "rest_of_server"),
    ):
        conversation = talk()
        out = joined([piece for part in split(noise, size) for piece in getattr(conversation, feed)(part)])
        assert out + getattr(conversation, rest)() == noise


@given(request(("EndTxn",)), st.integers(1, 30))
def test_held_bytes_go_first_when_the_other_direction_becomes_unreadable(sent: Any, at: int) -> None:
    raw = sent[-1]
    conversation = talk()
    out = joined(conversation.from_client(raw[:at]))
    conversation.from_server(b"\xff" * 9)
    assert not conversation.readable
    assert out + joined(conversation.from_client(raw[at:])) + conversation.rest_of_client() == raw


@given(st.data())
def test_an_answer_is_found_by_its_correlation_id(data: st.DataObject) -> None:
    api, asked, raw = data.draw(request(("EndTxn", "InitProducerId", "AddPartitionsToTxn", "Produce")))
    conversation = talk()
    (frame,) = [p for p in conversation.from_client(raw) if isinstance(p, Frame)]
    conversation.watch(frame)
    values, answer = data.draw(response(api, asked["_version"], asked["_correlation"]))
    other = pack(">ii", 9, (asked["_correlation"] + 1) % 2**31) + b"12345"
    stream = other + answer + other
    pieces = [piece for part in data.draw(cut(stream)) for piece in conversation.from_server(part)]
    (found,) = [p for p in pieces if isinstance(p, Answer)]
    assert found.frame is frame and found.raw == answer
    if "ErrorCode" in values:
        assert values["ErrorCode"] in found.facts["error_codes"]
    assert joined(pieces) == stream


def end_txn(version: int, *, id: str = "x-0", committed: bool = True) -> bytes:
    flexible = covers("3+", version)
    head = pack(">hhi", 26, version, 7) + text("me", False) + (varint(0) if flexible else b"")
    frame = head + text(id, flexible) + pack(">qh", 1, 2) + bytes([committed]) + (varint(0) if flexible else b"")
    return pack(">i", len(frame)) + frame


@pytest.mark.parametrize("version", range(6))
def test_facts_have_the_same_names_in_every_version(version: int) -> None:
    (frame,) = talk().from_client(end_txn(version))
    assert isinstance(frame, Frame)
    assert frame.facts["transactional_id"] == "x-0" and frame.facts["committed"] is True
    assert (frame.facts["producer_id"], frame.facts["producer_epoch"], frame.facts["client_id"]) == (1, 2, "me")
    assert "x-0" in frame.describe()


@pytest.mark.parametrize("version", range(6))
def test_add_partitions_gives_the_same_facts_in_its_old_and_its_batched_form(version: int) -> None:
    flexible = covers("3+", version)
    tags = varint(0) if flexible else b""
    count = varint(2) if flexible else pack(">i", 1)
    topics = count + text("out", flexible) + count + pack(">i", 0) + tags
    one = text("x-0", flexible) + pack(">qh", 1, 2) + (b"\0" if version >= 4 else b"") + topics + tags
    inner = count + one + tags if version >= 4 else one
    frame = pack(">hhi", 24, version, 7) + text("me", False) + tags + inner
    (piece,) = talk().from_client(pack(">i", len(frame)) + frame)
    assert isinstance(piece, Frame)
    assert "undecodable" not in piece.facts, piece.facts
    assert (piece.facts["transactional_id"], piece.facts["topics"]) == ("x-0", ["out"])


def test_topics_named_by_id_get_their_names_from_metadata() -> None:
    names: dict[bytes, str] = {}
    conversation = talk("Produce", names=names)
    topic_id = bytes(range(16))
    ask = pack(">hhi", 3, 12, 5) + text("me", False) + varint(0) + varint(0) + b"\1\0" + varint(0)
    assert joined(conversation.from_client(pack(">i", len(ask)) + ask)) == pack(">i", len(ask)) + ask
    answer = pack(">i", 5) + varint(0) + pack(">i", 0) + varint(1) + text(None, True) + pack(">i", 1)
    answer += varint(2) + pack(">h", 0) + text("flights", True) + topic_id + b"\0" + varint(1) + pack(">i", 0)
    answer += varint(0) + varint(0)
    conversation.from_server(pack(">i", len(answer)) + answer)
    assert names == {topic_id: "flights"}
    produce = pack(">hhi", 0, 13, 6) + text("me", False) + varint(0) + text("x-0", True) + pack(">hi", -1, 1)
    produce += varint(2) + topic_id + varint(1) + varint(0) + varint(0)
    (frame,) = conversation.from_client(pack(">i", len(produce)) + produce)
    assert isinstance(frame, Frame)
    assert frame.facts["topics"] == ["flights"] and "undecodable" not in frame.facts


@pytest.mark.parametrize("size", [1, 2, 5, 600])
def test_tls_is_refused_with_the_setting_to_change(size: int) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    conversation = talk()
    with pytest.raises(Encrypted, match=r"security\.protocol"):
        for part in split(hello, size):
            conversation.from_client(part)


@given(st.data())
def test_listeners_get_each_partitions_answer_to_a_produce(data: st.DataObject) -> None:
    _, values, asked = data.draw(request(("Produce",)))
    answers, answered = data.draw(response("Produce", values["_version"], values["_correlation"]))
    everything = Everything("EndTxn")
    conversation = KafkaConversation(everything, {}, "client-2")
    conversation.from_client(asked)
    passed = joined([piece for part in data.draw(cut(answered)) for piece in conversation.from_server(part)])
    assert passed + conversation.rest_of_server() == answered
    partitions = [part for topic in answers.get("Responses") or () for part in topic.get("PartitionResponses") or ()]
    assert [reply.code for reply in everything.replies] == [str(part["ErrorCode"]) for part in partitions]
    assert {reply.route for reply in everything.replies} <= {"client-2"}
