"""What can be done to one consumer's way to its broker, where each has a way of its own; and what some faults can do or know.

Optional abilities of `onceproof.consumers.brokers.contract.Queues` and of faults of consumers, asked for by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from onceproof.consumers.trace import Move
from onceproof.instruments.proxy.rules import Rule


class Road(Protocol):
    """The connections of one consumer."""

    def arm(self, rule: Rule) -> None: ...

    def disarm(self, rule: Rule) -> None:
        """It stops nothing more. Idempotent."""

    def cut(self) -> int:
        """Break those that stand, on both sides, and say how many; who connects again is let in."""


@runtime_checkable
class HasRoads(Protocol):
    """Queues whose consumers each have a road, in a run with a fault that needs it."""

    def road(self, consumer: str) -> Road: ...


@runtime_checkable
class CountsReady(Protocol):
    """Queues whose broker says how many messages may be taken."""

    def await_ready(self, queue: str, ready: int) -> None:
        """Wait until it says so: what somebody held who is gone comes back a moment after he is."""


@runtime_checkable
class Lasts(Protocol):
    """A fault that is in force for a while; any other is over as soon as it has struck."""

    def is_over(self, since: Sequence[Move]) -> bool:
        """Asked after each move ``since`` it struck."""


@runtime_checkable
class Outlasts(Protocol):
    """A fault that keeps its living consumer at its step until it is over: by then another has been given the message."""

    def foresee(self, scene: Any) -> None:
        """Called right before the message is published that it will strike."""

    def is_taken(self, scene: Any) -> None:
        """Called when that message was given to somebody, before it strikes."""


@runtime_checkable
class Disconnects(Protocol):
    """A fault that takes a living consumer's connection: the broker takes back what was unacknowledged on it."""

    def disconnects(self) -> bool: ...


@runtime_checkable
class KnowsArrival(Protocol):
    """A fault that knows what became of the acknowledgement that its consumer has no answer to."""

    def arrived(self) -> bool | None:
        """Whether the broker has answered it. None: it has stopped none."""
