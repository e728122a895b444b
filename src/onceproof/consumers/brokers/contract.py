"""What an execution needs from the broker that its consumers take from. Each broker implements this in a module of its own.

The consumers' side of the same brokers is in `onceproof.consumers.clients.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from onceproof.base.timeline import Timeline
from onceproof.consumers.layout import Layout, Message
from onceproof.data import Record
from onceproof.history.writer import HistoryWriter
from onceproof.stack.api import FrameRules, Kafka, Replica


class Queues(Protocol):
    """The queues of one execution; they exist as long as this object. Names are those of `Layout` unless stated otherwise."""

    @property
    def frames(self) -> FrameRules | None:
        """The rules that stop frames on their way to the broker, in a run with a fault that needs them."""

    def environment(self, consumer: str, mark: str) -> Mapping[str, str]:
        """The variables that lead a consumer to the queues. ``mark`` identifies one start of the consumer."""

    def publish(self, message: Message, record: Record) -> None:
        """Publish a message, and return when the broker has confirmed it."""

    def is_connected(self, consumer: str, mark: str, check: Callable[[], None]) -> bool:
        """Whether the broker knows this start of the consumer.

        ``check`` is called while this waits, and raises when a consumer has ended: what is awaited may never come then.
        """

    def await_gone(self, consumer: str, mark: str) -> None:
        """Wait until the broker has taken back what this start of the consumer, which is dead, had not settled."""

    def refuse(self, output: str, refusing: bool) -> None:
        """Make the output refuse every effect, or accept effects again. Returns when that is in force."""

    def committed(self, group: str) -> Mapping[int, int] | None:
        """Partition -> how many messages the broker counts as done without a gap. None: the broker does not report it."""

    def collect(self, writer: HistoryWriter, timeline: Timeline) -> Mapping[str, Any]:
        """Write the tables ``input`` and ``output``: the messages that were really sent, and those that really came out.

        Returns what a judge must know about outputs that are tables: their columns.
        """

    def remove(self) -> None: ...


@runtime_checkable
class Rebalances(Protocol):
    """Queues whose broker assigns them to the members of a group again whenever the members change."""

    def await_rebalance(self, members: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Wait until the group consists of exactly these members and all partitions are assigned; return who has which.

        All of them must be able to answer the broker.
        """


@runtime_checkable
class Repositions(Protocol):
    """Queues whose broker keeps the position of a group, which an administrator may change while the group has no member."""

    def reposition(self, group: str, offset: int) -> int:
        """Wait until the group has no member, and set its position in the only partition; return what the broker then reports."""


@runtime_checkable
class Truncates(Protocol):
    """Queues whose broker deletes records that no consumer has read, as retention does."""

    def delete_before(self, queue: str, offset: int) -> int:
        """Delete the records of the queue before this offset; return the oldest offset that the broker then reports."""


@runtime_checkable
class KeepsLog(Protocol):
    """Queues whose broker confirms each message with its offset in a log."""

    offsets: dict[int, int]
    """Number of a published message -> the offset that the broker confirmed."""


@runtime_checkable
class Replicated(Protocol):
    """Queues whose input is a topic of a Kafka cluster."""

    @property
    def cluster(self) -> Kafka: ...

    @property
    def topic(self) -> str:
        """The topic's name in the cluster."""


@runtime_checkable
class Recreatable(Protocol):
    """Queues whose input is a topic that can be deleted and created again."""

    def recreate(self) -> Recreated:
        """Read the only partition of the input's topic, delete the topic, and create it again under the same name."""


@dataclass(frozen=True)
class Recreated:
    """A topic before and after it was deleted and created again."""

    old_id: str
    new_id: str
    records: int
    """How many records the old one had."""


@runtime_checkable
class Grows(Protocol):
    """Queues whose topics can be given more partitions."""

    def grow(self, topic: str, partitions: int) -> tuple[int, int]:
        """Add partitions to the topic until it has that many; return how many the broker reported before and after."""


@runtime_checkable
class Delays(Protocol):
    """Queues with a database whose answers can be delayed on the network."""

    def delay(self, by_ms: int) -> None:
        """From now on each answer of the database arrives that much later; 0: no longer."""

    def round_trip_ms(self) -> float:
        """How long a connection that is open waits for the answer to its smallest statement, on the consumers' way to it."""


@runtime_checkable
class HasReplica(Protocol):
    """Queues with a database that has a replica."""

    @property
    def replica(self) -> Replica | None: ...


@runtime_checkable
class Limits(Protocol):
    """Queues with a database to which the network can be made slow."""

    def limit(self, kb_per_s: int) -> None:
        """From now on no more than that many KB per second reach the database over each connection; 0: no limit."""

    def sending_ms(self, kb: int) -> float:
        """How long a connection that is open waits for the answer to a statement of that many KB, on the consumers' way to it."""


@runtime_checkable
class Locks(Protocol):
    """Queues whose broker locks a message for the consumer that was given it, and gives it to another when the lock ends."""

    def lock_briefly(self, group: str, briefly: bool) -> None:
        """Make the locks of messages given out from now on end soon, or outlast any work. Returns when that is in force."""


class Broker(Protocol):
    """A running broker, for one execution or for many."""

    def versions(self) -> Mapping[str, Any]:
        """Component -> version."""

    def check(self) -> None:
        """Raise `ServiceFailed`, with the last lines of its log, if the broker has ended."""

    def lay_out(self, layout: Layout) -> Queues: ...
