"""Starts and stops the instruments of a run together: checkpoint watcher, checkpoint gate and failpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from onceproof.base.timeline import Timeline
from onceproof.instruments.checkpoint_gate import FILE_MANAGER, CheckpointGate
from onceproof.instruments.checkpoint_mirror import CheckpointMirror
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.failpoints import FailpointServer, Parked, SinkEvent
from onceproof.scenario.modes import in_words
from onceproof.scenario.points import Point

if TYPE_CHECKING:
    from obstore.store import S3Store

_PAST_THE_GATE = (
    "query {query} writes its checkpoint past onceproof's checkpoint file system: faults are placed by watching its files, "
    f"which may be too late (does the job set {FILE_MANAGER} itself, or run another Spark?)"
)


class Listener(Protocol):
    """Acts on what the instruments see. `onceproof.faults.controller` implements it."""

    def wanted(self) -> list[tuple[int, Point]]: ...

    def wrote(self, query: str, batch: int) -> tuple[str, ...] | None: ...

    def on_log(self, query: str, batch: int, point: Point) -> None: ...

    def on_write(self, query: str, batch: int, point: Point, attempt: int) -> threading.Event | None: ...

    def on_point(self, parked: Parked) -> None: ...

    def on_sink_event(self, event: SinkEvent) -> None: ...


class ObjectStore(Protocol):
    """The part of `onceproof.stack.api.ObjectStore` that this module uses."""

    checkpoint: str
    folder: str
    bucket: S3Store


class Checkable(Protocol):
    """The part of the protocol proxy that this module uses."""

    def check(self) -> None: ...


class Instruments:
    """Observe and pause one job. A context manager: enter it before the job starts, leave it after the job has ended."""

    def __init__(
        self,
        checkpoint: Path,
        sockets: Path,
        *,
        timeline: Timeline,
        listener: Listener,
        start_of_driver: Callable[[], int],
        expected: Sequence[str],
        frames: Checkable | None,
        store: ObjectStore | None = None,
        host: str | None = None,
    ) -> None:
        """``sockets``: a private folder with a short path. ``expected``: names of queries that will start, however late.

        ``host``: the address of this machine at which executors elsewhere reach the checkpoint gate.

        With a ``store`` the checkpoints are there, and the folder ``checkpoint`` is a copy of them.
        """
        self.failpoint_socket = sockets / "failpoints"
        self._timeline = timeline
        self._listener = listener
        self._frames = frames
        self._past_the_gate: set[str] = set()
        self.triggers: dict[str, float] = {}
        """Query whose trigger was shortened -> its own interval in seconds."""
        self.modes: dict[str, str] = {}
        """Query that does not log each batch before and after it -> its mode (``Modes.java``)."""
        self._ending = ExitStack()
        self._mirror: CheckpointMirror | None = None
        if store is not None:
            names = (store.bucket, store.folder, store.checkpoint)
            self._mirror = CheckpointMirror(*names, checkpoint, on_failure=lambda why: self.watcher.fail(why))
        self.watcher = CheckpointWatcher(
            checkpoint,
            clock=timeline.now,
            start_of_driver=start_of_driver,
            on_log=self._on_log,
            expected=expected,
            **({} if self._mirror is None else {"refresh": self._mirror.refresh}),
        )
        self.gate = CheckpointGate(
            sockets / "checkpoint",
            checkpoint,
            wanted=listener.wanted,
            on_point=listener.on_write,
            on_failure=self.watcher.fail,
            on_query=self._on_query,
            mirror=self._mirror,
            host=host,
        )
        self._failpoints = FailpointServer(
            self.failpoint_socket, clock=timeline.now, on_point=listener.on_point, on_sink_event=listener.on_sink_event
        )

    def __enter__(self) -> Self:
        with ExitStack() as ending:
            ending.callback(self.watcher.stop)
            self.watcher.start()
            if self._mirror is not None:
                ending.callback(self._mirror.stop)
                self._mirror.start()
            ending.callback(self.gate.close)
            self.gate.start()
            ending.callback(self._failpoints.close)
            self._failpoints.start()
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def check(self) -> None:
        """Raise `EnvironmentProblem` if the protocol proxy failed or had to refuse a connection."""
        if self._frames is not None:
            self._frames.check()

    def committed_batches(self) -> int:
        return sum(1 for batch in self.watcher.batches() if batch.committed_at is not None)

    def _on_query(self, query: str, what: str, value: str) -> None:
        """Called more than once for a query: each start of the driver reports it again."""
        if what == "trigger" and query not in self.triggers:
            self.triggers[query] = int(value) / 1000
            self._timeline.emit("trigger.shortened", query=query, seconds=self.triggers[query])
        elif what == "mode" and query not in self.modes:
            self.modes[query] = value
            self._timeline.emit("warning", message=f"query {query} uses {in_words(value)}")

    def _on_log(self, query: str, batch: int, point: Point) -> None:
        if self.gate.serves(query):
            # The gate calls the listener, and so the faults; this thread only waits until they have struck.
            self.gate.wait_for_strike(query, batch, point)
        else:
            self._listener.on_log(query, batch, point)  # before anything else: a fault may have to strike at once
        if point is Point.AFTER_OFFSET_LOG:
            if not self.gate.serves(query) and query not in self._past_the_gate:
                self._past_the_gate.add(query)
                self._timeline.emit("warning", message=_PAST_THE_GATE.format(query=query))
            self._timeline.emit("batch.planned", query=query, batch=batch)
        elif point is Point.AFTER_COMMIT_LOG:
            done = self.watcher.batch(query, batch)
            outputs = self._listener.wrote(query, batch)
            wrote = {} if outputs is None else {"wrote": list(outputs)}
            self._timeline.emit(
                "batch.committed", query=query, batch=batch, records=done.records() if done else 0, **wrote
            )
