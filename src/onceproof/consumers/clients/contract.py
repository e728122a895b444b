"""The consumer's side of a broker: where its messages come from, and what its effect is. One module per broker has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class EffectRefused(Exception):
    """The output refused an effect for good: the effect does not exist."""


class Lost(Exception):
    """A step, usually an acknowledgement, got no answer. The consumer starts over from what the broker has."""


class Returned(Exception):
    """The broker has no queue for an effect and gave it back: the harness did not create it, or no queue can have this name."""


class AcknowledgementRefused(Lost):
    """The broker refused an acknowledgement: the message now belongs to another consumer."""


@dataclass(frozen=True)
class Taken:
    """A message as the consumer that took it has it."""

    message: str
    """``m1``, ``m2``, ...: its name, which came with it."""
    queue: str
    key: bytes | None
    body: bytes
    redelivered: bool
    """What the broker says; a Kafka consumer group does not say."""
    tag: Any = None
    """What the broker needs to identify the message."""


class MessageSource(Protocol):
    """Where messages come from. Each call returns when the broker has answered."""

    def take(self) -> Taken | None:
        """One message; None if there is none."""

    def acknowledge(self, taken: Taken) -> None:
        """Raises `Lost` if it is unknown whether it arrived; so may every other step over a connection that breaks."""

    def release(self, taken: Taken) -> None:
        """Give the message back unprocessed: the broker may give it to any consumer."""

    def idle(self) -> None:
        """Called again and again while the consumer waits at a step: answers the broker where a group member has to."""


class Effect(Protocol):
    """The effect of a message. Returns when it is done, and raises `Refused` if it never will be."""

    def write(self, taken: Taken) -> None: ...


class DeadLetters(Protocol):
    """Where messages go that the output refuses for good."""

    def write(self, taken: Taken, reason: str) -> None:
        """``reason``: what the output said."""


@dataclass(frozen=True)
class Client:
    """The whole client of a consumer. ``commit`` ends the transaction of effect and acknowledgement, if there is one."""

    source: MessageSource
    effect: Effect
    commit: Any = None
    retry: Effect | None = None
    """The retry topic, for a consumer that puts refused messages there."""
    dead_letters: DeadLetters | None = None
    """The topic for dead letters, for a consumer that puts refused messages there."""
