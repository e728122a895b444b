"""A second driver takes over on the checkpoint of one whose batch is open: what stall, which stops the first, and fence share."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import suppress

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Proof, SpecProblem
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.evidence.sink_state import changes, sink_state
from onceproof.faults.placement import PARKED, RESTART_S, WATCHED, committed, one_line, planned
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.contract import State
from onceproof.stores.kafka.state import stable_ends, undecided

PLACES = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)
"""After its commit log there is nothing left of the batch that a predecessor could write."""

_GOES_ON_S = 60.0
"""The rest of one batch and an error: a second or two. A job that is still there then is not going to notice."""
_MARKERS_S = 5.0
"""They are written within milliseconds of the answer."""
NOTHING_WRITTEN = "no table or topic changed from when the old driver went on until its end; what was written before that is not compared"
"""The batch may well be there twice: once from the old driver before it was set aside, once from its successor."""
_REPLACED = re.compile("CONCURRENT_STREAM_LOG_UPDATE|SparkConcurrentModificationException")
"""What Spark says to a driver whose next log entry somebody else has written."""
_LINES = 2000
"""Of the end of a driver's log: each query that ends writes its own trace of a hundred lines or two."""
_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Fenced)\b: .*)$", re.MULTILINE)


def batch_problems(spec: FaultSpec, scenario: Scenario) -> list[SpecProblem]:
    """A successor without a batch of its own could not be told from one that only replayed."""
    last = scenario.guaranteed_batches() - 2
    if spec.at.batch <= last:
        return []
    message = f"batch {spec.at.batch} may be the last one, and who takes over must commit a batch of its own"
    return [SpecProblem(("at", "batch"), message, f"choose batch {last} or earlier, or more chunks")]


class Takeover:
    """One takeover: the first driver, which is set aside here and killed by `end`, and what its successor did meanwhile."""

    def __init__(self, context: FaultContext, seen: Occurrence, *, stopped: bool) -> None:
        """Start the second driver, with the first one stopped, or not."""
        self._context = context
        self._seen = seen
        self.start, self.first = context.job.take_over(stopped=stopped)
        n, query = seen.batch, seen.query
        self.was_open = planned(context, query, n) and not committed(context, query, n)

    @property
    def needs_input(self) -> bool:
        """Until the successor has planned a batch of its own: then the feed waits until the first is gone."""
        return self.was_open and not self._own_batches()

    def wait(self) -> tuple[bool, str]:
        """Until the successor has committed the batch, then one of its own, and is idle. Whether it did, and a sentence.

        Raises `WaitTimeout` if it never comes so far.
        """
        context, n, second = self._context, self._seen.batch, self.start + 1
        wait_until(
            f"batch {n} and one of its own to be committed by the driver that took over",
            self._gone_on,
            deadline_s=RESTART_S,
            explain=lambda: f"driver start {context.job.current_start}; {_newest(context, self._seen.query)}",
        )
        if context.job.current_start != second:
            return False, f"driver start {second} took over and was replaced by another one"
        own = ", ".join(str(b.batch) for b in self._own_batches())
        return (
            True,
            f"driver start {second} took over on the same checkpoint and committed batch {n}, then {own} of its own",
        )

    def resume_first(self, go: Callable[[], None], before: State, words: list[str], *, how: str) -> Proof:
        """The first goes on by ``go()``, until it ends or is told that it was replaced; what the sinks say of that.

        ``before``: the sinks' state while the first could do nothing, and the successor had nothing to do. ``how``: "awake
        again".
        """
        first = self.first
        go()
        self._context.timeline.emit("driver.resumed", start=self.start)
        try:
            wait_until(
                "the old driver to end, or to get the error that it was replaced",
                lambda: not first.is_running() or self._told(),
                deadline_s=_GOES_ON_S,
            )
        except WaitTimeout:
            return Proof(False, (*words, f"{how}, the old driver neither ended nor failed within {_GOES_ON_S:.0f} s"))
        if not self._told() and first.returncode == -signal.SIGKILL:
            # By the end of the run, or for want of memory: nobody knows what it would have written.
            return Proof(False, (*words, f"{how}, the old driver was killed before it had come to its own end"))
        if not self._told() and self._several():
            self.end()
            why = f"another query ended the old driver before query {self._seen.query} had gone on to its own end"
            return Proof(False, (*words, f"{how}, {why}: what it would have written is not known"))
        code = "" if first.is_running() else f" (exit code {first.returncode})"
        said = _ERROR.findall(first.log_tail(400))
        self.end()
        self._context.timeline.emit("driver.ended", start=self.start)
        last = one_line(said[-1]) if said else "its end, without an error"
        written = self._written(before)
        return Proof(
            True,
            (
                *words,
                Evidence(f"{how}, the old driver went on until{code}", detail=last),
                *([f"meanwhile {change}" for change in written] or [NOTHING_WRITTEN]),
            ),
        )

    def end(self) -> None:
        """Nothing of the first is left. Idempotent."""
        self.first.kill()

    def _several(self) -> bool:
        return len(self._context.checkpoint.queries()) > 1

    def _told(self) -> bool:
        """Whether the first was told that it was replaced: of several queries, the one that was struck has ended.

        Another one may learn of it at once, while this one still has its batch to write.
        """
        log = self.first.log_tail(_LINES)
        if not self._several():
            return _REPLACED.search(log) is not None
        metadata = json.loads(
            (self._context.checkpoint.folder(self._seen.query) / "metadata").read_text(encoding="utf-8")
        )
        return re.search(rf"\[id = {re.escape(metadata['id'])}\b[^\n]*terminated with", log) is not None

    def _written(self, before: State) -> list[str]:
        """What differs since, once a commit that Kafka has just answered can be seen (its markers come after the answer)."""
        stack = self._context.stack
        with suppress(WaitTimeout):  # then a transaction is open that nobody ends: there is no more to see
            wait_until(
                "the old driver's transaction to be decided",
                lambda: changes(before, sink_state(stack)) or not undecided(stack.kafka),
                deadline_s=_MARKERS_S,
            )
        return changes(before, sink_state(stack))

    def _own_batches(self) -> list[Batch]:
        """Batches with data that the successor has planned."""
        return [
            b
            for b in self._context.checkpoint.batches()
            if (b.query, b.planned_by > self.start) == (self._seen.query, True)
            and b.batch > self._seen.batch
            and b.records() > 0
        ]

    def _gone_on(self) -> bool:
        """Whether the successor has committed the batch, one of its own, and everything that there is to read: it is idle."""
        context, own = self._context, self._own_batches()
        done = committed(context, self._seen.query, self._seen.batch)
        last = {
            batch.query: batch for batch in context.checkpoint.batches()
        }.values()  # its other queries write as well
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
    return f"newest batch {batches[-1].batch}, planned by start {batches[-1].planned_by}" if batches else "no batch"
