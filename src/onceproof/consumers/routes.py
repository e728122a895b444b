"""Optional abilities: a network route per consumer, and optional abilities of some faults.

Each is a protocol that `onceproof.consumers.brokers.contract.Queues` or a fault may implement; callers check with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from onceproof.consumers.trace import TraceEvent
from onceproof.instruments.proxy.rules import Rule


class Route(Protocol):
    """The connections of one consumer to its broker."""

    def arm(self, rule: Rule) -> None: ...

    def disarm(self, rule: Rule) -> None:
        """The rule stops nothing from now on. Idempotent."""

    def cut(self) -> int:
        """Break its open connections on both sides and return how many there were. New connections are accepted."""


@runtime_checkable
class HasRoutes(Protocol):
    """Queues whose consumers each have their own route, in a run with a fault that needs it."""

    def route(self, consumer: str) -> Route: ...


@runtime_checkable
class CountsReady(Protocol):
    """Queues whose broker reports how many messages may be taken."""

    def await_ready(self, queue: str, ready: int) -> None:
        """Wait until the broker reports that many: it makes a dead consumer's message ready again a moment after its death."""


@runtime_checkable
class Lasts(Protocol):
    """A fault that stays in force for a while. All others are over as soon as they have struck."""

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        """Called after each event ``since`` it struck."""


@runtime_checkable
class OutlastsItsBroker(Protocol):
    """A fault that holds its living consumer at its step until the broker has given the message to another consumer."""

    def before_publish(self, context: Any) -> None:
        """Called right before the message that it will strike is published."""

    def after_take(self, context: Any) -> None:
        """Called when a consumer has been given that message, before the fault strikes."""


@runtime_checkable
class Pauses(Protocol):
    """A fault that stops its consumer, while everything else continues, until `Lasts.is_over`."""

    def before_resume(self, context: Any) -> Sequence[int]:
        """Called right before the consumer is resumed. Returns the messages that the log has deleted meanwhile."""


@runtime_checkable
class Kills(Protocol):
    """A fault that kills its consumer. A group keeps a dead member until its session time-out, so that is short then."""

    def kills(self) -> bool: ...


@runtime_checkable
class Rewinds(Protocol):
    """A fault that sets a group's offsets back while its consumer is dead."""

    def rewound(self) -> Sequence[int]:
        """The messages that the group will be given again, although it had acknowledged them."""


@runtime_checkable
class Recreates(Protocol):
    """A fault that deletes the input's topic and creates it again: a consumer may continue at a position of the old one."""

    def recreates(self) -> bool: ...


@runtime_checkable
class AddsPartitions(Protocol):
    """A fault that adds partitions to a topic."""

    @classmethod
    def partitions_of(cls, spec: Any, topic: str) -> int | None:
        """How many partitions the topic has after the fault; None if it is another topic."""

    def added(self) -> int | None:
        """How many partitions the input has now. None: it has as many as before."""


@runtime_checkable
class Disconnects(Protocol):
    """A fault that breaks the connection of a living consumer: the broker takes back what was unacknowledged on it."""

    def disconnects(self) -> bool: ...


@runtime_checkable
class KnowsArrival(Protocol):
    """A fault that knows whether the broker got the acknowledgement to which its consumer got no answer."""

    def arrived(self) -> bool | None:
        """Whether the broker has answered the acknowledgement. None: the fault has stopped none."""
