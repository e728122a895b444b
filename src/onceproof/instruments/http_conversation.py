"""Parses an HTTP/1.1 connection to an S3-compatible object store: the client's requests, and the answer to a watched one.

h11 finds where each message ends; the bytes themselves pass as they came.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Interest, Piece

#: The request line and all headers of one request. S3 allows keys of 1 KiB and 2 KiB of user metadata.
_LONGEST_HEAD = 64 * 1024
#: A TLS record that begins a handshake.
_HANDSHAKE = b"\x16"
_ERROR = re.compile(rb"<Error>\s*<Code>(\w+)</Code>")


class _Message:
    """One request, or the answer to one."""

    def __init__(self, parser: h11.Connection) -> None:
        self._parser = parser
        self.head: h11.Request | h11.Response | None = None
        self.over = False

    @classmethod
    def request(cls) -> _Message:
        return cls(h11.Connection(h11.SERVER, _LONGEST_HEAD))

    @classmethod
    def answer_to(cls, method: bytes) -> _Message:
        """The answer to a request with that method: only the method says whether a body follows."""
        parser = h11.Connection(h11.CLIENT, _LONGEST_HEAD)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        parser.send(h11.EndOfMessage())
        return cls(parser)

    def feed(self, data: bytes) -> bytes:
        """Parse more of the message; return the bytes that come after its end. Raises `h11.RemoteProtocolError`."""
        self._parser.receive_data(data)
        while not self.over:
            event = self._parser.next_event()
            if isinstance(event, h11.Request | h11.Response):
                self.head = event
            elif isinstance(event, h11.EndOfMessage):
                self.over = True
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return b""
        return self._parser.trailing_data[0]


class HttpConversation:
    """Implements `onceproof.instruments.proxy.frames.Conversation`. Rules may stop the kinds of `rules.HTTP_KINDS`."""

    def __init__(self, interest: Interest) -> None:
        self.readable = True
        self.rewrites = False
        self._interest = interest
        self._request = _Message.request()
        self._from_client = bytearray()
        """Bytes of the current request that have not passed."""
        self._stopped: Frame | None = None
        """The current request, if it is wanted; without its bytes, as they are not all there."""
        self._answer: _Message | None = None
        self._from_server = bytearray()
        self._sent = 0
        """How many requests have begun."""
        self._open: deque[tuple[int, bytes]] = deque()
        """Number and method of each request whose answer has not ended."""
        self._watched: dict[int, Frame] = {}

    def from_client(self, data: bytes) -> list[Piece]:
        if data[:1] == _HANDSHAKE and not self._sent and not self._from_client:
            raise Encrypted("TLS: use an http:// endpoint and not an https:// one")
        pieces: list[Piece] = []
        while data and self.readable:
            self._from_client += data
            started = self._request.head is not None
            try:
                data = self._request.feed(data)
            except h11.RemoteProtocolError:
                self.readable = False
                break
            if not started and isinstance(self._request.head, h11.Request):
                self._begin(self._request.head)
            if not self._request.over:
                if self._request.head is not None and self._stopped is None:
                    pieces.append(self.rest_of_client())
                return pieces
            whole = bytes(self._from_client[: len(self._from_client) - len(data)])
            stopped, self._stopped = self._stopped, None
            pieces.append(whole if stopped is None else Frame(whole, stopped.kind, stopped.facts, stopped.tag))
            self._from_client, self._request = bytearray(), _Message.request()
        return pieces if self.readable else [*pieces, self.rest_of_client() or data]

    def from_server(self, data: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        while data and self.readable and self._open:
            number, method = self._open[0]
            answer = self._answer = self._answer or _Message.answer_to(method)
            self._from_server += data
            try:
                data = answer.feed(data)
            except h11.RemoteProtocolError:
                self.readable = False
                return [*pieces, self.rest_of_server()]
            if not answer.over:
                return pieces if number in self._watched else [*pieces, self.rest_of_server()]
            whole = bytes(self._from_server[: len(self._from_server) - len(data)])
            frame = self._watched.pop(number, None)
            assert isinstance(answer.head, h11.Response), "h11 has returned the end of an answer"
            pieces.append(whole if frame is None else Answer(whole, frame, _facts(answer.head, whole)))
            self._from_server, self._answer = bytearray(), None
            self._open.popleft()
        return [*pieces, data] if data else pieces

    def attempts(self, data: bytes) -> bool:
        return True

    @property
    def in_use(self) -> bool:
        return True

    def rest_of_client(self) -> bytes:
        rest, self._from_client = bytes(self._from_client), bytearray()
        return rest

    def rest_of_server(self) -> bytes:
        rest, self._from_server = bytes(self._from_server), bytearray()
        return rest

    def watch(self, frame: Frame) -> None:
        self._watched[frame.tag] = frame

    def _begin(self, head: h11.Request) -> None:
        self._sent += 1
        self._open.append((self._sent, head.method))
        kind, facts = described(head)
        if self._interest.active and self._interest.wants(kind):
            self._stopped = Frame(b"", kind, facts, self._sent)


def _facts(head: h11.Response, raw: bytes) -> dict[str, Any]:
    """The status of an answer, and S3's code for an error. A copy may fail with status 200 and an error in the body."""
    error = _ERROR.search(raw)
    return {"status": head.status_code, **({} if error is None else {"error": error[1].decode()})}


def described(head: h11.Request) -> tuple[str, dict[str, Any]]:
    """The kind of a request, its method in lower case, and its facts: the key with its bucket, and what it copies."""
    address = urlsplit(head.target.decode("ascii", "replace"))
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    facts: dict[str, Any] = {"key": unquote(address.path).lstrip("/")}
    if "x-amz-copy-source" in headers:
        facts["copy_of"] = unquote(headers["x-amz-copy-source"]).lstrip("/")
    if "if-none-match" in headers:
        facts["if_none_match"] = headers["if-none-match"]
    if part := parse_qs(address.query).get("partNumber"):
        facts["part"] = part[0]
    return head.method.decode("ascii").lower(), facts
