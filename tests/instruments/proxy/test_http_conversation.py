"""HTTP to an object store: the parser finds each PUT and its answer however the stream is split, and changes no byte."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.instruments.http_conversation import HttpConversation
from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Piece
from onceproof.instruments.proxy.loop import ProxyLoop
from onceproof.instruments.proxy.rules import Condition, Rule

from .echo import Proxied
from .wire import Everything, cut, joined


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    sized = f"Content-Length: {len(body)}"
    return "\r\n".join([f"{line} HTTP/1.1", "Host: 127.0.0.1:1", sized, *headers, "", ""]).encode() + body


PUT = request("PUT /bucket/a%20b/commits/3", "If-None-Match: *", body=b"v1\n{}")
COPY = request("PUT /bucket/q/commits/3", "x-amz-copy-source: /bucket/q/commits/.3.aa.tmp")
CHUNKED = (
    b"PUT /bucket/state/1.zip?partNumber=2&uploadId=u HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32: aaaa\r\n\r\n"
)
HEAD = request("HEAD /bucket/q/commits/3")
LIST = request("GET /bucket?list-type=2&prefix=q")
ANSWERS = {
    PUT: b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\n\r\n',
    COPY: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n<a>\r\n0\r\n\r\n",
    CHUNKED: b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    HEAD: b"HTTP/1.1 404 Not Found\r\nContent-Length: 120\r\n\r\n",  # without that body, as it answers a HEAD
    LIST: b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nPUT / HTTP/",
}


def frames(pieces: list[Piece]) -> list[Frame]:
    return [piece for piece in pieces if isinstance(piece, Frame)]


@given(st.data(), st.lists(st.sampled_from([*ANSWERS]), max_size=6))
def test_no_byte_changes_and_each_put_is_found_with_its_answer(data: st.DataObject, sent: list[bytes]) -> None:
    conversation = HttpConversation(Everything("put"))
    stream = b"".join(sent)
    pieces = [piece for part in data.draw(cut(stream)) for piece in conversation.from_client(part)]
    assert joined(pieces) + conversation.rest_of_client() == stream
    puts = [raw for raw in sent if raw in (PUT, COPY, CHUNKED)]
    assert [frame.raw for frame in frames(pieces)] == puts
    for frame in frames(pieces):
        conversation.watch(frame)
    answers = b"".join(ANSWERS[raw] for raw in sent)
    pieces = [piece for part in data.draw(cut(answers)) for piece in conversation.from_server(part)]
    assert joined(pieces) + conversation.rest_of_server() == answers
    found = [piece for piece in pieces if isinstance(piece, Answer)]
    assert [(answer.frame.raw, answer.raw) for answer in found] == [(raw, ANSWERS[raw]) for raw in puts]
    assert [answer.facts["status"] for answer in found] == [500 if raw == CHUNKED else 200 for raw in puts]


def test_a_large_put_that_comes_in_parts_is_held_until_it_is_complete() -> None:
    conversation, part = HttpConversation(Everything("put")), b"x" * 32768
    head = request("PUT /b/k").replace(b"Content-Length: 0", b"Content-Length: %d" % (64 * len(part)))
    assert conversation.from_client(head) == []
    assert [conversation.from_client(part) for _ in range(63)] == [[]] * 63
    assert joined(conversation.from_client(part)) == head + 64 * part


def test_a_put_shows_its_key_and_what_it_copies() -> None:
    (put, copy, part) = frames(HttpConversation(Everything("put")).from_client(PUT + COPY + CHUNKED))
    assert put.facts == {"key": "bucket/a b/commits/3", "if_none_match": "*"}
    assert copy.facts == {"key": "bucket/q/commits/3", "copy_of": "bucket/q/commits/.3.aa.tmp"}
    assert part.facts == {"key": "bucket/state/1.zip", "part": "2"}
    assert Condition("put", key="/commits/3$").why_not(put) is None
    assert Condition("put", key="/commits/4$").why_not(put) is not None


def test_a_request_that_nobody_wants_passes_before_it_is_complete() -> None:
    conversation = HttpConversation(Everything("put"))
    assert joined(conversation.from_client(LIST[:-1] + b"")) == b""  # the head is not complete
    large = request("POST /bucket", body=b"x" * 100)
    conversation = HttpConversation(Everything("put"))
    assert joined(conversation.from_client(large[:-50])) == large[:-50]
    assert joined(conversation.from_client(large[-50:])) == large[-50:]


def test_an_error_in_the_body_of_a_copy_is_found() -> None:
    conversation = HttpConversation(Everything("put"))
    (copy,) = frames(conversation.from_client(COPY))
    conversation.watch(copy)
    body = b'<?xml version="1.0"?>\n<Error><Code>InternalError</Code></Error>'
    (answer,) = conversation.from_server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert isinstance(answer, Answer)
    assert answer.facts == {"status": 200, "error": "InternalError"}


def test_bytes_that_are_not_http_pass_unread() -> None:
    conversation = HttpConversation(Everything("put"))
    assert joined(conversation.from_client(b"\x00\x01\r\n\r\n")) == b"\x00\x01\r\n\r\n"
    assert not conversation.readable
    assert joined(conversation.from_client(PUT)) == PUT
    assert joined(conversation.from_server(b"more")) == b"more"


def test_tls_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(Encrypted, match="http:// endpoint"):
        HttpConversation(Everything("put")).from_client(b"\x16\x03\x01")


class Files(ThreadingHTTPServer):
    """Keeps what is PUT, and refuses keys that end with ``no``."""

    daemon_threads = True

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Files

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        refused = self.path.endswith("no")
        if not refused:
            self.server.kept[self.path] = body
        self.send_response(500 if refused else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def files() -> Iterator[Files]:
    server = Files()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxied(loop: ProxyLoop, files: Files) -> Iterator[Proxied]:
    made = Proxied(loop, files.server_port, "object-store")
    yield made
    made.proxy.cut()


def put(proxied: Proxied, path: str) -> int:
    client = http.client.HTTPConnection("127.0.0.1", proxied.proxy.port, timeout=10)
    try:
        client.request("PUT", path, b"v1")
        return client.getresponse().status
    finally:
        client.close()


def test_the_answer_to_one_put_is_lost_and_its_client_is_reset(proxied: Proxied, files: Files) -> None:
    rule = Rule(Condition("put", key="/commits/3$"), "drop-answer")
    proxied.board.arm(rule)
    assert put(proxied, "/bucket/q/commits/2") == 200
    with pytest.raises(ConnectionResetError):
        put(proxied, "/bucket/q/commits/3")
    assert rule.wait_for_answer(rule.hits[0], 5).facts == {"status": 200}
    assert files.kept["/bucket/q/commits/3"] == b"v1"
    assert put(proxied, "/bucket/q/commits/3") == 200  # the client tries again


def test_a_held_put_arrives_when_it_is_released(proxied: Proxied, files: Files) -> None:
    rule = Rule(Condition("put", key="/commits/3$"), "park")
    proxied.board.arm(rule)
    found: list[int] = []
    client = threading.Thread(target=lambda: found.append(put(proxied, "/bucket/q/commits/3")))
    client.start()
    rule.wait_for_hit(5)
    assert files.kept == {}
    rule.release()
    client.join(10)
    assert found == [200]


def test_the_answers_to_puts_are_read_without_holding_them(proxied: Proxied) -> None:
    rule = Rule(Condition("put"), "park", times=None)
    rule.release()
    proxied.board.arm(rule)
    assert [put(proxied, "/bucket/no"), put(proxied, "/bucket/yes")] == [500, 200]
    assert [hit.answer and hit.answer.facts["status"] for hit in rule.hits] == [500, 200]
