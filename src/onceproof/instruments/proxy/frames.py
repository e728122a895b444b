"""What the parsers of both protocols have in common: a stream of bytes becomes spans to pass on and frames that somebody asked for.

No I/O here. Whatever a parser is fed, and however it is split: the spans and frames that it returns, then what `rest` gives
at the end, are the same bytes in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Frame:
    """One message that a rule may stop: all of its bytes, and what is known of it."""

    raw: bytes
    kind: str
    """``EndTxn``, ``commit``, ``statement``, ..."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it says: ``transactional_id``, ``topics``, ``sql``, ... Printable and JSON."""
    tag: Any = None
    """By which the parser finds the answer to it."""
    connected_at: float = 0.0
    """When its connection was made, in seconds of the monotonic clock; Postgres only."""

    def describe(self) -> str:
        return ", ".join([self.kind, *(f"{name} {value}" for name, value in self.facts.items() if value is not None)])


@dataclass(frozen=True)
class Answer:
    """What the service said to a frame that was watched."""

    raw: bytes
    frame: Frame
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a service said that somebody listens for: an error of Postgres, each answer of Kafka to a Produce, or a connection
    that the service did not take."""

    at: float
    """Seconds of the monotonic clock."""
    route: str
    """The proxy that it came through."""
    what: str
    """``error`` (Postgres), ``Produce`` or ``connection``."""
    code: str
    """SQLSTATE, or Kafka's error code (``0``: done); of a connection ``refused`` or ``broken``."""
    message: str
    where: str = ""
    """Kafka: ``TOPIC/PARTITION``."""


#: Bytes that are of no interest, a frame somebody asked for, an answer somebody waits for.
Piece = bytes | Frame | Answer


class Encrypted(Exception):
    """The connection is (about to be) encrypted: nothing in it can be read. The message names the setting to change."""


class Interest(Protocol):
    """Which frames are wanted now; it may change between any two bytes."""

    @property
    def active(self) -> bool:
        """Whether anything is wanted at all."""

    def wants(self, kind: str) -> bool:
        """Told of every frame while something is wanted; whether it is to be given whole."""

    @property
    def listens(self) -> bool:
        """Whether somebody wants to be `told`."""

    def told(self, reply: Reply) -> None:
        """What the service said. May come although nobody listens."""


class Conversation(Protocol):
    """Both directions of one connection."""

    readable: bool
    """False once the bytes made no sense: everything passes from then on, and nothing is seen any more."""

    def from_client(self, data: bytes) -> list[Piece]:
        """Raises `Encrypted`."""

    def from_server(self, data: bytes) -> list[Piece]:
        """Raises `Encrypted`."""

    def rest_of_client(self) -> bytes:
        """What was kept back of an unfinished frame: the client will send no more."""

    def rest_of_server(self) -> bytes: ...

    def watch(self, frame: Frame) -> None:
        """From now on the answer to this frame comes out as an `Answer`. To be called before the service can answer."""
