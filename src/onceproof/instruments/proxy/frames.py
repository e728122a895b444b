"""What the parsers of all protocols share: they split a byte stream into spans to pass on and the frames that a rule wants.

No I/O here. However the input is split, the spans and frames that a parser returns, followed by the rest that it gives at
the end, are the same bytes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Frame:
    """One message that a rule may stop: its bytes, and what the parser read from it."""

    raw: bytes
    kind: str
    """``EndTxn``, ``commit``, ``statement``, ..."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Its content: ``transactional_id``, ``topics``, ``sql``, ... Printable, and valid JSON."""
    tag: Any = None
    """The parser's key to find the answer."""
    connected_at: float = 0.0
    """When the connection was made, in seconds of the monotonic clock; Postgres only."""

    def describe(self) -> str:
        return ", ".join([self.kind, *(f"{name} {value}" for name, value in self.facts.items() if value is not None)])


@dataclass(frozen=True)
class Answer:
    """The service's answer to a watched frame."""

    raw: bytes
    frame: Frame
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a listener is notified of: an error of Postgres, each answer of Kafka to a Produce, or a connection that the
    service did not accept."""

    at: float
    """Seconds of the monotonic clock."""
    route: str
    """The name of the proxy that it came through."""
    what: str
    """``error`` (Postgres), ``Produce`` or ``connection``."""
    code: str
    """SQLSTATE, or Kafka's error code (``0``: no error). For a connection: ``refused``, a new one, which has sent nothing;
    ``broken``, while it was used; ``idle``, when its client only checked that it works, or closed it."""
    message: str
    where: str = ""
    """Kafka: ``TOPIC/PARTITION``."""


#: Bytes to pass on, a frame that a rule may stop, or the answer to a watched frame.
Piece = bytes | Frame | Answer


class Refused(Exception):
    """The connection cannot pass. The message says why, and names the setting to change."""

    what: ClassVar[str] = "a connection"


class Encrypted(Refused):
    """The connection is encrypted, or about to be, so nothing in it can be read."""

    what = "an encrypted connection, since its frames cannot be read"


class ChannelBound(Refused):
    """The login proves that no proxy is between client and service."""

    what = "a login that binds the channel, which is impossible through a proxy"


class Interest(Protocol):
    """Which frames and replies are wanted now; it may change between any two bytes."""

    @property
    def active(self) -> bool:
        """Whether any frame is wanted at all."""

    def wants(self, kind: str) -> bool:
        """Whether the parser must return a frame of this kind whole. Called for every frame while `active`."""

    @property
    def listens(self) -> bool:
        """Whether there is a listener for replies."""

    def note(self, reply: Reply) -> None:
        """Pass a reply of the service to the listeners. May be called without any."""


class Conversation(Protocol):
    """Parses both directions of one connection."""

    rewrites: bool
    """Whether it may change what the service sent: then no byte of that passes before it is parsed."""

    @property
    def readable(self) -> bool:
        """False once the bytes could not be parsed: from then on everything passes unread."""

    def from_client(self, data: bytes) -> list[Piece]:
        """Parse what the client sent. Raises `Refused`."""

    def from_server(self, data: bytes) -> list[Piece]:
        """Parse what the service sent. Raises `Refused`."""

    def rest_of_client(self) -> bytes:
        """The held bytes of an incomplete frame, for when the client sends no more."""

    def rest_of_server(self) -> bytes: ...

    def watch(self, frame: Frame) -> None:
        """Return the answer to this frame as an `Answer`. Must be called before the service can answer."""

    def attempts(self, data: bytes) -> bool:
        """Whether a client that sends ``data`` over a connection that is about to be reset does more than check that it works,
        or close it. True if that is unknown. Nothing can be parsed after this."""

    @property
    def in_use(self) -> bool:
        """Whether the client waits for an answer to more than such a check. True if that is unknown."""


#: Of the frame that begins at byte ``at`` of ``data``: its size, and whether the parser must see it whole. Size 0: it is not a
#: frame. None: more bytes are needed to say.
Measure = Callable[[bytes, int], tuple[int, bool] | None]
#: What becomes of a frame that the parser sees whole, ``data[at:end]``; None: it passes.
Parse = Callable[[bytes, int, int], list[Piece] | None]


class Splitter:
    """Finds the frames in one direction of a connection. Only those that the parser must see are held until they are whole."""

    def __init__(self, measure: Measure, parse: Parse) -> None:
        self.readable = True
        """False once something was not a frame: from then on everything passes."""
        self._measure = measure
        self._parse = parse
        self._held = bytearray()
        """The beginning of a frame."""
        self._missing = 0
        """How many bytes the held frame lacks; 0 if that is not known yet."""
        self._passing = 0
        """Bytes left of a frame that passes unread."""

    def feed(self, data: bytes) -> list[Piece]:
        if self._passing >= len(data):
            self._passing -= len(data)
            return [data]
        if self._held:
            self._held += data
            if len(data) < self._missing:
                self._missing -= len(data)
                return []
            data = self.drain()
        pieces: list[Piece] = []
        size = len(data)
        start, at = 0, self._passing  # [start, at) passes
        self._passing = 0
        while at < size:
            measured = self._measure(data, at)
            if measured is None:
                self._held += data[at:]
                break
            length, whole = measured
            if not length:
                self.readable = False
                at = size
                break
            end = at + length
            if whole:
                if end > size:
                    self._held += data[at:]
                    self._missing = end - size
                    break
                parsed = self._parse(data, at, end)
                if parsed is not None:
                    if at > start:
                        pieces.append(data[start:at])
                    pieces += parsed
                    start = end
            at = end
        if at > size:
            self._passing, at = at - size, size
        if at > start:
            pieces.append(data[start:at])
        return pieces

    @property
    def within(self) -> bool:
        """Whether the last bytes were in the middle of a frame."""
        return bool(self._held or self._passing)

    def drain(self) -> bytes:
        """The held bytes, which are no longer held then."""
        rest = bytes(self._held)
        self._held.clear()
        self._missing = 0
        return rest


class SplitConversation:
    """Base of the parsers: a `Conversation` of two directions, each with a splitter."""

    rewrites = False

    def __init__(self, client: Splitter, server: Splitter) -> None:
        self._client = client
        self._server = server

    @property
    def readable(self) -> bool:
        return self._client.readable and self._server.readable

    def from_client(self, data: bytes) -> list[Piece]:
        # Bytes may be held in one direction when the other one becomes unreadable.
        return self._client.feed(data) if self.readable else [self._client.drain(), data]

    def from_server(self, data: bytes) -> list[Piece]:
        return self._server.feed(data) if self.readable else [self._server.drain(), data]

    def attempts(self, data: bytes) -> bool:
        return True

    @property
    def in_use(self) -> bool:
        return True

    def rest_of_client(self) -> bytes:
        return self._client.drain()

    def rest_of_server(self) -> bytes:
        return self._server.drain()
