"""Shared by the faults `stall` and `fence`: a second driver takes over the checkpoint while the first one's batch is open."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Proof, SpecProblem, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.evidence.sink_state import changes, sink_state
from onceproof.faults.placement import (
    PARKED,
    RESTART_S,
    WATCHED,
    AtItsPoint,
    SpecT,
    committed,
    is_open,
    one_line,
    point_problems,
)
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.contract import State
from onceproof.stores.kafka.state import stable_ends, undecided

POINTS = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)
"""After its commit log, the old driver has written everything of the batch."""

_FINISH_S = 60.0
"""The rest of one batch and an error take a second or two. A job that still runs after this time will not notice."""
_MARKERS_S = 5.0
"""Kafka writes the markers within milliseconds of its answer."""
NOTHING_WRITTEN = "no table or topic changed after the old driver resumed; what it wrote before that is not compared"
"""The batch may still be written twice: by the old driver before it was held, and by its successor."""
_REPLACED = re.compile("CONCURRENT_STREAM_LOG_UPDATE|SparkConcurrentModificationException")
"""Spark's error for a driver whose next log entry another driver has already written."""
_LINES = 2000
"""Lines read from the end of a driver's log: each query that ends writes a stack trace of 100 to 200 lines."""
_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Fenced)\b: .*)$", re.MULTILINE)


class TakesOver(AtItsPoint[SpecT]):
    """Base of the two faults: the driver that they hold has a successor, and they end it."""

    _takeover: Takeover | None = None

    def __init__(self, spec: SpecT) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: SpecT, scenario: Scenario) -> list[SpecProblem]:
        return point_problems(spec, POINTS) + _batch_problems(spec, scenario)

    @property
    def needs_input(self) -> bool:
        """True until the successor has planned a batch of its own; then the feed waits until the first driver is gone."""
        return self._takeover is not None and self._takeover.needs_input

    def heal(self, context: FaultContext) -> None:
        if self._takeover is not None:
            self._takeover.end()


def _batch_problems(spec: FaultSpec, scenario: Scenario) -> list[SpecProblem]:
    """A problem if the batch may be the last one: a successor that only replays it shows less than one with its own batch."""
    last = scenario.guaranteed_batches() - 2
    if spec.at.batch <= last:
        return []
    message = f"batch {spec.at.batch} may be the last one, but the second driver must still commit a batch of its own"
    return [SpecProblem(("at", "batch"), message, f"choose batch {last} or earlier, or more chunks")]


class Takeover:
    """One takeover: the first driver, which `end` kills, and its successor on the same checkpoint."""

    def __init__(self, context: FaultContext, seen: Occurrence, *, stopped: bool) -> None:
        """Start the second driver; ``stopped``: after stopping (SIGSTOP) the first one."""
        self._context = context
        self._seen = seen
        with context.job.frozen() if stopped else nullcontext():
            # First: the second driver may commit the batch before this thread looks.
            self.was_open = is_open(context, seen.query, seen.batch)
            self.start, self.first = context.job.take_over(stopped=stopped)

    @property
    def needs_input(self) -> bool:
        """True until the successor has planned a batch of its own; then the feed waits until the first driver is gone."""
        return self.was_open and not self._own_batches()

    def prove(
        self, held: str, when: str, check: Callable[[list[str]], str | None], resume: Callable[[], None], after: str
    ) -> Proof:
        """Prove that the successor took over while the first driver was ``held``, and what that one did once it resumed.

        ``when``: the end of the sentence for a batch that "was no longer open when ...". ``check(evidence)`` is called once the
        successor is idle: returns why the first driver is no longer held, or None, and may add to the evidence.
        """
        n = self._seen.batch
        if not self.was_open:
            return missed(f"batch {n} was no longer open when {when}")
        state = f"offsets/{n} written, commits/{n} missing"
        evidence = [f"driver start {self.start} was {held} at {self._seen.point} of batch {n}: {state}"]
        succeeded, sentence = self.wait_for_successor()
        evidence.append(sentence)
        if not succeeded:
            return missed(*evidence)
        before = sink_state(self._context.stack)
        if (why := check(evidence)) is not None:
            return missed(*evidence, why)
        return self.resume_first(resume, before, evidence, after=after)

    def wait_for_successor(self) -> tuple[bool, str]:
        """Wait until the successor has committed the batch and one of its own, and is idle. Whether it did, and the evidence.

        Raises `WaitTimeout` if it does not.
        """
        context, n, second = self._context, self._seen.batch, self.start + 1
        wait_until(
            f"driver start {second}, which took over, to commit batch {n} and then a batch of its own",
            self._successor_is_idle,
            deadline_s=RESTART_S,
            explain=lambda: f"driver start {context.job.current_start}; {_newest(context, self._seen.query)}",
        )
        if context.job.current_start != second:
            why = f"driver start {second} took over, but was itself replaced by start {context.job.current_start}"
            return False, why
        own = ", ".join(str(b.batch) for b in self._own_batches())
        did = f"committed batch {n}, then planned and committed batch {own}"
        return True, f"driver start {second} took over the same checkpoint, {did}"

    def resume_first(self, resume: Callable[[], None], before: State, evidence: list[str], *, after: str) -> Proof:
        """Resume the first driver by ``resume()``, wait until it ends or learns that it was replaced, and compare the sinks.

        ``before``: the sinks' state while the first driver was held and the successor was idle. ``after``: starts the
        evidence, for example "after SIGCONT".
        """
        first = self.first
        resume()
        self._context.timeline.emit("driver.resumed", start=self.start)
        try:
            wait_until(
                "the old driver to end, or to get the error that it was replaced",
                lambda: not first.is_running() or self._is_replaced(),
                deadline_s=_FINISH_S,
            )
        except WaitTimeout:
            why = (
                f"{after}, the old driver neither ended nor got the error that it was replaced within {_FINISH_S:.0f} s"
            )
            return missed(*evidence, why)
        if not self._is_replaced() and first.returncode == -signal.SIGKILL:
            # The end of the run, or the kernel for lack of memory, killed it: what it would have written is unknown.
            return missed(*evidence, f"{after}, the old driver was killed (SIGKILL) before it ended by itself")
        if not self._is_replaced() and self._has_several_queries():
            self.end()
            why = f"another query ended the old driver before query {self._seen.query} ended by itself"
            return missed(*evidence, f"{after}, {why}: what that query would have written is not known")
        noticed = (
            "'s query ended with an error" if self._has_several_queries() else " got the error that it was replaced"
        )
        how = noticed if first.is_running() else f" ended with exit code {first.returncode}"
        errors = _ERROR.findall(first.log_tail(_LINES))
        self.end()
        self._context.timeline.emit("driver.ended", start=self.start)
        last = f"no error in the last {_LINES} lines of its log"
        if errors:
            last = f"last error in its log: {one_line(errors[-1])}"
        written = self._written(before)
        return proven(
            *evidence,
            Evidence(f"{after}, the old driver{how}", detail=last),
            *([f"meanwhile it changed {change}" for change in written] or [NOTHING_WRITTEN]),
        )

    def end(self) -> None:
        """Kill the first driver. Idempotent."""
        self.first.kill()

    def _has_several_queries(self) -> bool:
        return len(self._context.checkpoint.queries()) > 1

    def _is_replaced(self) -> bool:
        """Whether the first driver got the error that it was replaced. Of several queries the struck one must have ended, with
        whatever error: another one may get that error at once, while this one still has its batch to write."""
        log = self.first.log_tail(_LINES)
        if not self._has_several_queries():
            return _REPLACED.search(log) is not None
        metadata = json.loads(
            (self._context.checkpoint.folder(self._seen.query) / "metadata").read_text(encoding="utf-8")
        )
        return re.search(rf"\[id = {re.escape(metadata['id'])}\b[^\n]*terminated with", log) is not None

    def _written(self, before: State) -> list[str]:
        """What has changed since ``before``, read once a commit that Kafka has just answered is visible: Kafka writes its
        markers after the answer."""
        stack = self._context.stack
        with suppress(WaitTimeout):  # then a transaction stays open: nothing more will become visible
            wait_until(
                "the old driver's transaction to be decided",
                lambda: changes(before, sink_state(stack)) or not undecided(stack.kafka),
                deadline_s=_MARKERS_S,
            )
        return changes(before, sink_state(stack))

    def _own_batches(self) -> list[Batch]:
        """Batches that read input and that the successor planned."""
        return [
            b
            for b in self._context.checkpoint.batches()
            if (b.query, b.planned_by > self.start) == (self._seen.query, True)
            and b.batch > self._seen.batch
            and b.records() > 0
        ]

    def _successor_is_idle(self) -> bool:
        """Whether the successor has committed the batch, one of its own, and all input that can be read."""
        context, own = self._context, self._own_batches()
        done = committed(context, self._seen.query, self._seen.batch)
        # Its other queries write as well.
        last = {batch.query: batch for batch in context.checkpoint.batches()}.values()
        if not done or not own or any(b.committed_at is None for b in (*own, *last)):
            return False
        ends = stable_ends(context.stack.kafka)
        return all(
            ends.get(topic, {}).get(partition) == end
            for batch in last
            for topic, partitions in batch.ends.items()
            for partition, end in partitions.items()
        )


def _newest(context: FaultContext, query: str) -> str:
    batches = [b for b in context.checkpoint.batches() if b.query == query]
    if not batches:
        return "no batch"
    return f"newest batch {batches[-1].batch}, planned by driver start {batches[-1].planned_by}"
