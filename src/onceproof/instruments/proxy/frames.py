"""What the parsers of all protocols share: they split a byte stream into spans to pass on and the frames that a rule wants.

No I/O here. However the input is split, the spans and frames that a parser returns, followed by the rest that it gives at
the end, are the same bytes in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """SQLSTATE, or Kafka's error code (``0``: no error); ``refused`` or ``broken`` for a connection."""
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
    readable: bool
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
