"""What a fault may read and change: the services, the job, the checkpoint, the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from onceproof.base.timeline import Timeline
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.failpoints import SinkEvent
from onceproof.instruments.proxy.rules import Board
from onceproof.pipeline.supervisor import Pipeline
from onceproof.scenario.model import Scenario
from onceproof.stack.api import FramedService, Stack


@dataclass
class FaultContext:
    """What a fault may read and change."""

    stack: Stack
    job: Pipeline
    checkpoint: CheckpointWatcher
    timeline: Timeline
    sink_events: list[SinkEvent] = field(default_factory=list)
    """What the sinks reported, in order."""
    scenario: Scenario | None = None
    """Set in every run; None only in tests that need no scenario."""
    events: Path | None = None
    """Folder of Spark's event logs (`onceproof.pipeline.spark_events`), in a run with a fault that strikes tasks."""
    attempted_writes: dict[tuple[str, int], str] = field(default_factory=dict)
    """Query and batch -> the write that the batch was seen to send to a service, whether or not the service applied it."""
    attempt: Callable[[str, int], int | None] = lambda _query, _batch: None
    """The number of the latest attempt at a query's batch, from 1; None where attempts are not counted."""

    modes: Mapping[str, str] = field(default_factory=dict)
    """Query that does not log each batch before and after it -> its mode (`onceproof.scenario.modes`); grows while the job runs."""

    deleted_input: list[pa.RecordBatch] = field(default_factory=list)
    """Rows of the history's table ``input``: records that a fault has deleted, and that no reader finds after the run."""

    fill_disk: Callable[[bool], None] = lambda _full: None
    """Makes the disk of the checkpoint full, or gives it room again (`onceproof.instruments.checkpoint_gate`)."""

    def board(self, service: FramedService) -> Board:
        """The rules of the protocol proxy for that service; the run starts it for a fault that reads frames."""
        assert self.stack.frames is not None, "one of the run's faults reads frames"
        return self.stack.frames.board(service)

    def sink_event_since(self, at: float, event: str, *, sink: str, query: str, batch: int) -> SinkEvent | None:
        """The first such event of the batch from ``at`` on (seconds of the run's clock)."""
        wanted = (event, sink, query, batch)
        return next(
            (e for e in list(self.sink_events) if e.at >= at and (e.event, e.sink, e.query, e.batch) == wanted), None
        )
