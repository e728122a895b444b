"""What a fault may see and touch: the services, the job, the checkpoint, the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onceproof.base.timeline import Timeline
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.failpoints import SinkEvent
from onceproof.pipeline.supervisor import Pipeline
from onceproof.scenario.model import Scenario
from onceproof.stack.api import Stack


@dataclass
class FaultContext:
    """What a fault may see and touch."""

    stack: Stack
    job: Pipeline
    checkpoint: CheckpointWatcher
    timeline: Timeline
    sink_events: list[SinkEvent] = field(default_factory=list)
    """What the sinks reported, in order."""
    scenario: Scenario | None = None
    """Of a run; None where a test needs none."""
    events: Path | None = None
    """Folder of Spark's own event logs (`onceproof.pipeline.spark_events`), in a run with a fault that strikes tasks."""
    tried: dict[tuple[str, int], str] = field(default_factory=dict)
    """Query and batch -> what the batch was seen to send to a service, whether or not that has come to anything."""
    attempt: Callable[[str, int], int | None] = lambda _query, _batch: None
    """Which attempt at a batch of a query is the last that has begun, from 1; None where nobody counts them."""

    def sink_event_since(self, at: float, event: str, *, sink: str, query: str, batch: int) -> SinkEvent | None:
        """The first such report about the batch that came after ``at`` (seconds of the run's clock)."""
        wanted = (event, sink, query, batch)
        return next(
            (t for t in list(self.sink_events) if t.at >= at and (t.event, t.sink, t.query, t.batch) == wanted), None
        )
