"""What a consumer's own end is made of: where messages come from, and what its effect is. One module a broker implements them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Refused(Exception):
    """The output said no to an effect, for good: it is not there."""


class Lost(Exception):
    """No answer came to a step, an acknowledgement mostly. Whoever did it begins anew: it goes on from what the broker has."""


class Returned(Exception):
    """The broker has no queue for an effect and gave it back: the harness did not make the queue, or the name cannot be had."""


class Fenced(Lost):
    """The broker refused an acknowledgement: the message is another's by now."""


@dataclass(frozen=True)
class Taken:
    """A message as its consumer has it."""

    message: str
    """``m1``, ``m2``, ...: the name that came with it."""
    queue: str
    key: bytes | None
    body: bytes
    redelivered: bool
    """What the broker says; a Kafka consumer group says nothing of it."""
    tag: Any = None
    """What the broker needs to know which one it is."""


class Source(Protocol):
    """Where messages come from. Each call returns when the broker has answered."""

    def take(self) -> Taken | None:
        """One message; None where there is none."""

    def acknowledge(self, taken: Taken) -> None:
        """Raises `Lost` where nobody knows whether it arrived; so may every step over a connection that breaks."""

    def release(self, taken: Taken) -> None:
        """Give it back unprocessed: it may be taken again, by whomever the broker likes."""

    def idle(self) -> None:
        """Called again and again while the consumer is held at a step: whatever a member of a group must answer."""


class Effect(Protocol):
    """What a consumer does about a message. Returns when it is done, and raises `Refused` where it never will be."""

    def write(self, taken: Taken) -> None: ...


@dataclass(frozen=True)
class Client:
    """A consumer's whole end. ``commit`` ends the transaction in which effect and acknowledgement are, where there is one."""

    source: Source
    effect: Effect
    commit: Any = None
    retry: Effect | None = None
    """The retry topic, for a consumer that puts there what was refused."""
