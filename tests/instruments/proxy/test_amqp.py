"""AMQP frames: the parser finds acknowledgements and commits however the stream is split, and changes no byte."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec
from pika.frame import Heartbeat, Method, ProtocolHeader

from onceproof.instruments.proxy.amqp import AmqpConversation
from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Piece
from onceproof.instruments.proxy.loop import ProxyLoop
from onceproof.instruments.proxy.rules import Condition, Rule

from .echo import Echo, Proxied, receive
from .wire import Everything, cut, joined, split

START = ProtocolHeader().marshal()
#: Encoded by pika, independently of the parser under test.
ACK = Method(1, spec.Basic.Ack(7, False)).marshal()
COMMIT = Method(2, spec.Tx.Commit()).marshal()
COMMITTED = Method(2, spec.Tx.CommitOk()).marshal()
OTHERS = [
    Heartbeat().marshal(),
    Method(1, spec.Basic.Get(0, "orders", False)).marshal(),
    Method(1, spec.Basic.Qos(0, 1, False)).marshal(),
    Method(1, spec.Basic.Publish(0, "", "processed")).marshal(),
    b"\x03\x00\x01\x00\x00\x00\x05hello\xce",  # a body
    b"\x03\x00\x01\x00\x00\x00\x07\x01\x00\x50\x00\x3c\xce\xce\xce",  # a body whose bytes look like part of a method
]


def talk(*kinds: str) -> AmqpConversation:
    conversation = AmqpConversation(Everything(*kinds))
    assert conversation.from_client(START) == [START]
    return conversation


def frames(pieces: list[Piece]) -> list[Frame]:
    return [piece for piece in pieces if isinstance(piece, Frame)]


def test_an_acknowledgement_has_its_channel_and_delivery_tag() -> None:
    (frame,) = frames(talk("basic.ack").from_client(ACK))
    assert (frame.kind, frame.raw) == ("basic.ack", ACK)
    assert dict(frame.facts) == {"channel": 1, "delivery_tag": 7, "multiple": False}


@given(st.data(), st.lists(st.sampled_from([*OTHERS, ACK, COMMIT]), max_size=8))
def test_no_byte_changes_and_every_wanted_frame_is_found(data: st.DataObject, sent: list[bytes]) -> None:
    stream = START + b"".join(sent)
    conversation = AmqpConversation(Everything("basic.ack", "tx.commit"))
    pieces = [piece for part in data.draw(cut(stream)) for piece in conversation.from_client(part)]
    assert joined(pieces) + conversation.rest_of_client() == stream
    assert [frame.raw for frame in frames(pieces)] == [raw for raw in sent if raw in (ACK, COMMIT)]
    assert conversation.readable


@given(st.data(), st.binary(max_size=80))
def test_noise_passes_unchanged(data: st.DataObject, noise: bytes) -> None:
    conversation = talk()
    if noise[:1] == b"\x16":
        return  # TLS is refused
    pieces = [piece for part in data.draw(cut(noise)) for piece in conversation.from_client(part)]
    assert joined(pieces) + conversation.rest_of_client() == noise
    pieces = [piece for part in data.draw(cut(noise)) for piece in conversation.from_server(part)]
    assert joined(pieces) + conversation.rest_of_server() == noise


@pytest.mark.parametrize("size", [1, 5, 11, 100])
def test_the_answer_to_a_commit_is_found_on_its_channel(size: int) -> None:
    conversation = talk("tx.commit")
    (commit,) = frames(conversation.from_client(COMMIT))
    conversation.watch(commit)
    others = Method(1, spec.Tx.CommitOk()).marshal() + Method(2, spec.Basic.QosOk()).marshal()
    pieces = [p for part in split(others + COMMITTED + others, size) for p in conversation.from_server(part)]
    (answer,) = [piece for piece in pieces if isinstance(piece, Answer)]
    assert answer.frame is commit and answer.raw == COMMITTED
    assert joined(pieces) == others + COMMITTED + others


def test_encryption_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(Encrypted, match="amqp:// URL"):
        AmqpConversation(Everything()).from_client(b"\x16\x03\x01\x02\x00")


def test_a_client_of_another_protocol_passes_unread() -> None:
    conversation = AmqpConversation(Everything())
    assert joined(conversation.from_client(b"GET / HTTP/1.1\r\n")) == b"GET / HTTP/1.1\r\n"
    assert not conversation.readable and joined(conversation.from_server(b"x" * 30)) == b"x" * 30


@pytest.fixture
def amqp(loop: ProxyLoop, echo: Echo) -> Iterator[Proxied]:
    proxied = Proxied(loop, echo.port, "amqp")
    yield proxied
    proxied.proxy.cut()


def is_reset(client: socket.socket) -> bool:
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    return True


def test_a_dropped_acknowledgement_never_arrives_and_its_client_is_reset(amqp: Proxied, echo: Echo) -> None:
    rule = Rule(Condition("basic.ack"), "drop-request", "reset")
    amqp.board.arm(rule)
    before = START + b"".join(OTHERS)
    with amqp.connect() as client:
        client.sendall(before + ACK + OTHERS[2])
        stream = io.BytesIO()
        with pytest.raises(ConnectionResetError):
            while part := client.recv(100):
                stream.write(part)
    echo.wait_for(before)
    (hit,) = rule.hits
    assert hit.delivered_at is None and hit.frame.facts["delivery_tag"] == 7


def test_after_a_reset_clients_can_connect_again(amqp: Proxied) -> None:
    with amqp.connect() as one, amqp.connect() as other:
        for client in (one, other):
            client.sendall(START)
            assert receive(client, len(START)) == START
        assert amqp.proxy.reset() == 2
        assert is_reset(one) and is_reset(other)
    with amqp.connect() as client:
        client.sendall(START)
        assert receive(client, len(START)) == START
