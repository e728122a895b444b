"""What a play asks of the broker that its consumers take from, whichever it is. One module a broker implements it.

The other side, what a consumer asks of the same broker, stands in `onceproof.consumers.clients.contract`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from onceproof.base.timeline import Timeline
from onceproof.consumers.layout import Layout, Message
from onceproof.data import Record
from onceproof.history.writer import HistoryWriter
from onceproof.stack.api import FrameRules


class Queues(Protocol):
    """The queues of one play, which are there as long as this is. Where nothing else is said: the names of `Layout`."""

    @property
    def frames(self) -> FrameRules | None:
        """What stops frames on their way to the broker, in a run with a fault that needs it."""

    def environment(self, consumer: str, mark: str) -> Mapping[str, str]:
        """What a consumer needs to find them. ``mark`` is of one start of it."""

    def publish(self, message: Message, record: Record) -> None:
        """Return when the broker has said that it has it."""

    def is_there(self, consumer: str, mark: str) -> bool:
        """Whether the broker knows of this start of the consumer."""

    def await_gone(self, consumer: str, mark: str) -> None:
        """Wait until the broker has taken back what this start of the consumer, which is dead, held."""

    def refuse(self, output: str, refusing: bool) -> None:
        """Have the output refuse every effect, or none. Returns when it is so."""

    def committed(self, group: str) -> Mapping[int, int] | None:
        """Partition -> how many messages the broker counts as done without a gap. None: it cannot be asked."""

    def collect(self, writer: HistoryWriter, timeline: Timeline) -> Mapping[str, Any]:
        """Write the tables ``input`` and ``output``: what was really sent, and what really came out.

        Returns what a judge must know of an output that is a table: its columns.
        """

    def remove(self) -> None: ...


@runtime_checkable
class DealsOut(Protocol):
    """Of queues whose broker deals them out among members anew when these change."""

    def settled(self, members: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Wait until just these members of a group, who must all be able to answer, share everything. Who then has what."""


@runtime_checkable
class Locks(Protocol):
    """Of queues whose broker gives out a message under a lock, and to another when that ends."""

    def lock_briefly(self, group: str, briefly: bool) -> None:
        """Have the locks of what is given out from now on end soon, or not while anybody works. Returns when it is so."""


class Broker(Protocol):
    """A broker that is up, for one play or for many."""

    def versions(self) -> Mapping[str, Any]:
        """Component -> version."""

    def check(self) -> None:
        """Raise `ServiceFailed`, with its last words, if it has ended."""

    def lay_out(self, layout: Layout) -> Queues: ...
