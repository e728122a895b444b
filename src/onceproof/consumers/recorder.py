"""Records the trace of one execution: each event is added to the trace and stored in the run's timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from onceproof.base.timeline import Timeline
from onceproof.consumers.layout import Layout, Message
from onceproof.consumers.state import ConsumerState
from onceproof.consumers.trace import Kind, TraceEvent


@dataclass
class TraceRecorder:
    """``trace`` is the executor's own list. ``tick`` returns what its clock shows."""

    trace: list[TraceEvent]
    timeline: Timeline
    layout: Layout
    tick: Callable[[], int]

    def consumer(self, kind: Kind, consumer: ConsumerState) -> None:
        """Record what happened to a consumer, with the message that it has."""
        message = consumer.holds.number if consumer.holds else 0
        self._append(TraceEvent(kind, self.tick(), consumer=consumer.name, message=message))

    def message(self, kind: Kind, consumer: str, message: Message, **details: Any) -> None:
        """Record what happened to a message. ``details``: ``redelivered`` and ``output`` of the event."""
        groups = self.layout.groups()
        group = self.layout.group_of[consumer] if consumer and len(groups) > 1 else ""
        number, queue = message.number, message.queue
        self._append(TraceEvent(kind, self.tick(), 0.0, consumer, number, queue, group=group, **details))

    def _append(self, event: TraceEvent) -> None:
        stored = self.timeline.emit(event.timeline_kind, **event.timeline_data())
        self.trace.append(replace(event, at=stored.at))
