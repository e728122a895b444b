"""Driving a run: chunks of input released one after the other, faults in between, then the drain.

A chunk is released when the one before was committed by every query that reads its topic and no fault is in progress (but
one that needs input to go on), so that batches are ours to place. A chunk is one batch unless the job takes less at a time,
and one more without input where the watermark has moved (`onceproof.pipeline.no_data`); faults go by Spark's batch id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Protocol

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_watcher import Batch, CheckpointWatcher
from onceproof.pipeline.feed import Feeder
from onceproof.pipeline.no_data import BETWEEN_CHUNKS_S, Owed, owed, ran_without_input
from onceproof.pipeline.supervisor import Failure, Pipeline
from onceproof.scenario.model import Scenario
from onceproof.stack.api import Stack

_HEALTH_EVERY_S = 1.0
#: Records that are sent within a second or so. A driver that is stopped for longer loses its executors and its leases.
_AT_ONCE = 50_000
_TAIL_LINES = 12

#: What Spark says (ResolveWriteToStream) where a query is given no checkpoint and its sink does not insist on one.
_TEMPORARY = "Temporary checkpoint location created"
#: A query without a checkpoint (to a console, say) may be followed by one that has one, on a loaded machine seconds later.
_FOLLOWS_S = 10.0

#: From a query's start offsets to the plan of its batch 0. It takes milliseconds; a query that fails meanwhile has none.
_FIRST_PLAN_S = 5.0


class _Enough(Exception):
    """The job cannot go on: no use in waiting for it. The message is the note for the verdict.

    ``stuck``: it was given its chances and made no progress, which says something about the pipeline.
    """

    def __init__(self, note: str, *, stuck: bool) -> None:
        super().__init__(note)
        self.stuck = stuck


class Faults(Protocol):
    """What feeding has to know of the run's faults; `onceproof.faults.controller` has it."""

    @property
    def quiet(self) -> bool: ...

    @property
    def feeds(self) -> bool: ...

    @property
    def any_fired(self) -> bool: ...

    @property
    def active(self) -> list[str]: ...

    def check(self) -> None: ...


class FeedLoop:
    """Feeds, waits and notes how it ended; judges nothing."""

    def __init__(
        self,
        scenario: Scenario,
        stack: Stack,
        job: Pipeline,
        watcher: CheckpointWatcher,
        faults: Faults,
        timeline: Timeline,
    ) -> None:
        self._scenario = scenario
        self._stack = stack
        self._job = job
        self._watcher = watcher
        self._faults = faults
        self._timeline = timeline
        self._ends: dict[str, dict[int, int]] = {}
        self._fed = False
        self._drained = False
        self._note: str | None = None
        self._traceback: str | None = None
        self._failure: Failure | None = None
        self._log_tail = ""
        self._nudged_at: tuple[int, int] | None = None
        self._stuck = False
        self._never_reads = False
        self._healthy_at = 0.0
        self._temporary_at: float | None = None
        self._last_sign = (0.0, (0, 0))
        self._start_fixed_at: float | None = None
        self._slow: set[str] = set()
        self._open_watermarks: dict[str, dict[str, Any]] = {}

    def feed_and_drain(self, feeders: Sequence[Feeder]) -> None:
        """Returns when the input is drained and every fault is settled, or when there is no use in waiting any longer."""
        deadline = self._timeline.now() + self._scenario.limits.deadline_s
        try:
            for feeder in feeders:
                feeder.warm_up()
            self._until("the job to fix its start offsets", self._started, deadline)
            for chunk in range(max(spec.chunks for spec in self._scenario.input)):
                self._send(chunk, feeders)
                self._fed = chunk + 1 == max(spec.chunks for spec in self._scenario.input)
                if self._fed:
                    self._timeline.emit("phase", name="drain")
                done = self._committed if self._fed else self._ready_for_more
                self._until(f"chunk {chunk} to be committed by every query", done, deadline)
                # Now, while nothing is under way: looking through the connections takes long enough to make the watcher late.
                self._check_bypass()
            self._end()
        except _Enough as enough:
            self._stuck = enough.stuck
            self._note = str(enough)
            self._look_why()
        except WaitTimeout as late:
            cap = self._scenario.limits.deadline_s
            self._note = f"the job never came to the end of its input within limits.deadline_s ({cap:.0f} s): {late}"
            self._look_why()
        self._log_tail = self._job.last_words(_TAIL_LINES)

    def summary(self) -> dict[str, Any]:
        """What ``run.json`` keeps of the drive."""
        return {
            "fed": self._fed,
            "drained": self._drained,
            "drain_note": self._note,
            # False where only the hard cap ended a run that was still going on: what is missing then is not lost.
            "stuck": self._stuck,
            "nudged": self._nudged_at is not None,
            "never_reads": self._never_reads,
            # Queries whose last watermark no batch has acted on, and why none came.
            "open_watermarks": self._open_watermarks,
            "job": {
                "starts": self._job.starts,
                "exits": [{"start": e.start, "code": e.code, "at": e.at, "killed": e.killed} for e in self._job.exits],
                "died_before_fault": self._job.died_before_fault,
                "given_up": self._job.given_up,
                "traceback": self._traceback,
                "failure": asdict(self._failure) if self._failure is not None else None,
                "log_tail": self._log_tail,
            },
        }

    def _look_why(self) -> None:
        """The run ended early: keep what the job itself says of it, and what it has not done."""
        self._note_open_watermarks()
        self._traceback = self._job.last_words()
        postgres = self._stack.postgres
        addresses = [self._stack.kafka.client_bootstrap, postgres.client_uri if postgres is not None else ""]
        self._failure = self._job.why_it_failed(addresses)

    def _send(self, chunk: int, feeders: Sequence[Feeder]) -> None:
        """The chunk of every input, with the driver stopped meanwhile: what is sent piecemeal would be planned piecemeal, and
        the batch that a fault waits for hold one record, or that of one partition only, and no n-th COMMIT."""
        due = [pair for pair in zip(self._scenario.input, feeders, strict=True) if chunk < pair[0].chunks]
        together = sum(len(range(*feeder.chunk(chunk))) for _spec, feeder in due) <= _AT_ONCE
        with ExitStack() as sending:
            if together:
                try:
                    several = len(due) > 1
                    sending.enter_context(self._job.frozen_between_requests() if several else self._job.frozen())
                except WaitTimeout as awake:
                    message = f"the job could not be stopped while chunk {chunk} is sent: {awake.message}"
                    raise EnvironmentProblem(
                        message, hint="a process that does not stop waits in the kernel: ps -o pid,stat,wchan"
                    ) from awake
            for spec, feeder in due:
                self._ends[spec.topic] = feeder.send_chunk(chunk)

    def _started(self) -> bool:
        """Whether each query that is there has fixed its start offsets, and planned batch 0 by them.

        Spark plans that batch in any case, within milliseconds. A chunk that is sent in between would be part of it, and
        the batches after it would have other numbers than in the next run.
        """
        if not self._watcher.has_started():
            return False
        if self._start_fixed_at is None:
            self._start_fixed_at = self._timeline.now()
        planned = {batch.query for batch in self._watcher.batches()}
        late = self._timeline.now() - self._start_fixed_at > _FIRST_PLAN_S
        return late or planned == set(self._watcher.queries())

    def _committed(self) -> bool:
        """Whether the input is drained: all of it is committed, and no query has a batch to come that waiting could bring."""
        drained = self._watcher.covers(self._ends) and self._faults.quiet
        return drained and not any(one.waiting_helps for one in self._owed())

    def _ready_for_more(self) -> bool:
        """Whether the next chunk may be sent: a batch without input that is about to come would race with it for its number."""
        if not (self._watcher.covers(self._ends) and self._faults.feeds):
            return False
        now = self._timeline.now()
        return not any(one.reason == "open" or self._comes_at_once(one, now) for one in self._owed())

    def _comes_at_once(self, one: Owed, now: float) -> bool:
        """Whether a batch that is due is awaited between chunks too: not that of a query whose trigger is slow."""
        if one.reason != "due":
            return False
        mine = [b for b in self._watcher.batches() if b.query == one.batch.query]
        longest = BETWEEN_CHUNKS_S * (5 if ran_without_input(mine) else 1)
        if now - (one.batch.committed_at or now) >= longest:
            self._slow.add(one.batch.query)  # once is enough: from now on its next batch takes the next chunk
        return one.batch.query not in self._slow

    def _owed(self) -> list[Owed]:
        """What each query has still to do, besides reading its input."""
        mine: dict[str, list[Batch]] = {}
        for batch in self._watcher.batches():
            mine.setdefault(batch.query, []).append(batch)
        start, now, longest = self._job.current_start, self._timeline.now(), self._scenario.limits.stuck_s
        ended = [one.start for one in self._job.exits if one.code == 0 and not one.killed]
        found = (
            owed(
                batches,
                stateful=self._watcher.stateful(query),
                start=start,
                now=now,
                longest_s=longest,
                ended=ended,
            )
            for query, batches in mine.items()
        )
        return [one for one in found if one is not None]

    def _end(self) -> None:
        """All input is committed: note whether the last watermark was acted on as well."""
        left = self._note_open_watermarks()
        restarted = [one.describe() for one in left if one.reason == "restarted"]
        if restarted:
            self._note = f"{'; '.join(restarted)} (choose an earlier batch for the last fault, or more chunks)"
        self._drained = not restarted

    def _note_open_watermarks(self) -> list[Owed]:
        """Keep, however the run ended, which queries have not acted on their last watermark."""
        left = [one for one in self._owed() if one.reason != "open" or one.batch.records() == 0]
        for one in left:
            self._open_watermarks[one.batch.query] = {
                "batch": one.batch.batch,
                "watermark_ms": one.batch.watermark_ms,
                "next_watermark_ms": one.batch.next_watermark_ms,
                "reason": one.reason,
                "note": one.describe(),
            }
            self._timeline.emit("warning", message=one.describe())
        return left

    def _until(self, reason: str, probe: Callable[[], bool], deadline: float) -> None:
        self._last_sign = (self._timeline.now(), self._sign())
        left = max(deadline - self._timeline.now(), 0.1)
        wait_until(reason, probe, deadline_s=left, abandon=self._abandon, explain=self._explain)

    def _abandon(self) -> None:
        """Give up early where waiting cannot help: a broken job, a dead service, no progress for too long."""
        self._watcher.check()
        self._faults.check()
        if self._job.failure is not None:
            raise EnvironmentProblem(f"the supervisor of the job failed: {self._job.failure}")
        if self._job.died_before_fault:
            raise _Enough(f"the job died before any fault (exit code {self._job.exits[-1].code})", stuck=False)
        if self._job.given_up:
            raise _Enough(
                f"the job was started again {self._scenario.limits.restarts} times in a row without any progress",
                stuck=self._faults.any_fired,  # one that only ever ends, before any fault, is broken by itself
            )
        now = self._timeline.now()
        if now - self._healthy_at > _HEALTH_EVERY_S:
            self._stack.check_health()
            self._healthy_at = now
            if self._temporary_at is None and self._job.said(_TEMPORARY):
                self._temporary_at = now
            without = self._temporary_at is not None and now - self._temporary_at > _FOLLOWS_S
            if without and not self._watcher.has_started() and not self._watcher.awaited():
                raise _Enough(
                    "the job's query has no checkpointLocation: Spark made a temporary one, which no restart finds again, "
                    "so that each begins anew at its starting offsets; give it a folder below {checkpoint}",
                    stuck=False,
                )
        self._check_progress(now)

    def _check_progress(self, now: float) -> None:
        """No progress for ``limits.stuck_s``: start the job once more, as an operator would. Without any progress after that it is stuck."""
        sign = self._sign()
        if sign != self._last_sign[1] or not self._faults.quiet:
            self._last_sign = (now, sign)
            return
        stuck_s = self._scenario.limits.stuck_s
        if now - self._last_sign[0] < stuck_s:
            return
        if any(one.reason == "due" for one in self._owed()):  # that wait has a deadline of its own
            return
        if not self._watcher.has_started():
            raise _Enough(f"the job wrote no checkpoint below {{checkpoint}} within {stuck_s:.0f} s", stuck=False)
        if unread := self._unread():
            self._never_reads = True
            raise _Enough(unread, stuck=False)
        if self._nudged_at == sign:
            if awaited := self._watcher.awaited():
                message = (
                    f"query {', '.join(awaited)} of pipeline.queries never wrote a checkpoint below {{checkpoint}}"
                )
                raise _Enough(f"{message}; there are: {', '.join(self._watcher.queries())}", stuck=False)
            # Before any fault a silent job says nothing about recovery; it may be slow, or wait for something.
            raise _Enough(
                f"no progress for {stuck_s:.0f} s with every service healthy, and none after a restart{self._unended()} "
                "(a batch that takes longer needs a larger limits.stuck_s)",
                stuck=self._faults.any_fired,
            )
        self._nudged_at = sign
        self._timeline.emit("warning", message=f"no progress for {stuck_s:.0f} s: starting the job once more")
        self._last_sign = (now, sign)
        self._job.kill_driver()

    def _unread(self) -> str | None:
        """That no query reads a topic that was fed, although every one that will come has planned a batch by now."""
        reads: dict[str, set[str]] = {}
        for batch in self._watcher.batches():
            reads.setdefault(batch.query, set()).update(batch.ends)
        if self._watcher.awaited() or set(reads) != set(self._watcher.queries()):
            return None
        unread = [topic for topic in self._ends if not any(topic in topics for topics in reads.values())]
        if not unread:
            return None
        what = "; ".join(f"query {query} reads {', '.join(sorted(t)) or 'no topic'}" for query, t in reads.items())
        return f"the job never reads topic {', '.join(unread)}: {what} (is its topic given as {{topic.{unread[0]}}}?)"

    def _unended(self) -> str:
        """The batches that were planned and never came to their end."""
        open_ = [f"{b.batch} of query {b.query}" for b in self._watcher.batches() if b.committed_at is None]
        return f": batch {', '.join(open_)} never ended" if open_ else ""

    def _sign(self) -> tuple[int, int]:
        """Grows with every log write of every query."""
        batches = self._watcher.batches()
        return len(batches), sum(1 for b in batches if b.committed_at is not None)

    def _check_bypass(self) -> None:
        """No process of the job may talk to a service past its proxy: a fault on the route it does not use proves nothing."""
        bypasses = self._stack.check_bypass(self._job.pids())
        for sentence in bypasses:
            self._timeline.emit("bypass", message=sentence)
        if bypasses:
            raise EnvironmentProblem(
                "the job talks to a service past its proxy: " + "; ".join(bypasses),
                hint="give the job its addresses through {kafka} and {postgres} only",
            )

    def _explain(self) -> str:
        planned, committed = self._sign()
        state = "running" if self._job.is_running() else "not running"
        active = self._faults.active
        awaited = self._watcher.awaited()
        return (
            f"{planned} batches planned, {committed} committed; job {state} (start {self._job.current_start}); "
            f"faults in progress: {', '.join(active) or 'none'}"
            + (f"; no checkpoint yet of query {', '.join(awaited)}" if awaited else "")
            + "".join(f"; {one.describe()}" for one in self._owed())
        )
