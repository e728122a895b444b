"""Feeds a run: sends the input in chunks, waits for each chunk's commit and for the faults, then drains the job.

The next chunk is sent when every query that reads the topic has committed the previous one and no fault is in progress, except
one that needs input to continue. So the run decides which records each batch has. A chunk is one batch, unless the job takes
less at a time, plus one batch without input if the watermark has moved (`onceproof.pipeline.no_data`). Faults name a batch by
Spark's batch id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Protocol

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_watcher import Batch, CheckpointWatcher
from onceproof.pipeline.failure import worth_showing
from onceproof.pipeline.feed import Feeder
from onceproof.pipeline.list_offsets import ListOffsetsHold
from onceproof.pipeline.no_data import BETWEEN_CHUNKS_S, Pending, pending, ran_without_input
from onceproof.pipeline.supervisor import Failure, Pipeline
from onceproof.scenario.model import Scenario
from onceproof.scenario.modes import in_words, without_batches
from onceproof.stack.api import Stack

_HEALTH_EVERY_S = 1.0
#: So many records are sent within about a second. A driver that is stopped for longer loses its executors and its leases.
_AT_ONCE = 50_000
_TAIL_LINES = 12
#: Of so many lines: most of a log's last ones may be warnings that Spark writes in every run.
_LOOKED_AT = 200

#: Spark logs this (ResolveWriteToStream) for a query without a checkpoint location whose sink does not require one.
_TEMPORARY = "Temporary checkpoint location created"
#: A query without a checkpoint (to a console, say) may be followed by one with a checkpoint, on a busy machine seconds later.
_FOLLOWS_S = 10.0

#: Limit from a query's start offsets to the plan of batch 0, which takes milliseconds. A query that fails never plans it.
_FIRST_PLAN_S = 5.0
_NO_EXECUTORS = "Initial job has not accepted any resources"
"""Spark's warning, repeated every 15 s while a job waits for its first executor. Then it is among the log's `_LAST_LINES`."""
_LAST_LINES = 10


class _GaveUp(Exception):
    """The job cannot continue, so waiting for it is useless. The message is the note for the verdict.

    ``stuck``: the job was restarted and still made no progress, which is a finding about the pipeline.
    """

    def __init__(self, note: str, *, stuck: bool) -> None:
        super().__init__(note)
        self.stuck = stuck


class Faults(Protocol):
    """What the feed needs to know about the run's faults. `onceproof.faults.controller` implements it."""

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
    """Feeds the input, waits, and notes how the run ended. It judges nothing."""

    def __init__(
        self,
        scenario: Scenario,
        stack: Stack,
        job: Pipeline,
        watcher: CheckpointWatcher,
        faults: Faults,
        timeline: Timeline,
        modes: Mapping[str, str],
        hold: ListOffsetsHold | None = None,
    ) -> None:
        """``modes``: query that does not log each batch -> its mode; grows while the job runs.

        ``hold``: holds queries that read several topics while chunks are sent; None for one input, or without the protocol proxy.
        """
        self._modes = modes
        self._hold = hold
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
        self._restarted_at: tuple[int, int] | None = None
        """The progress at which the job was restarted because it made none."""
        self._stuck = False
        self._never_reads = False
        self._healthy_at = 0.0
        self._temporary_at: float | None = None
        self._last_progress = (0.0, (0, 0))
        """When progress was last seen, and the progress."""
        self._start_fixed_at: float | None = None
        self._slow: set[str] = set()
        self._open_watermarks: dict[str, dict[str, Any]] = {}

    def feed_and_drain(self, feeders: Sequence[Feeder]) -> None:
        """Feed all chunks and wait until the input is drained and every fault is settled; or give up and note why."""
        deadline = self._timeline.now() + self._scenario.limits.deadline_s
        try:
            if self._hold is not None:
                self._hold.open()
            for feeder in feeders:
                feeder.warm_up()
            self._wait_for("the job to fix its start offsets", self._started, deadline)
            chunks = max(spec.chunks for spec in self._scenario.input)
            for chunk in range(chunks):
                self._send(chunk, feeders)
                self._fed = chunk + 1 == chunks
                if self._fed:
                    self._timeline.emit("phase", name="drain")
                done = self._committed if self._fed else self._ready_for_more
                self._wait_for(f"chunk {chunk} to be committed by every query", done, deadline)
                # Only while no batch runs: the search through all connections is slow enough to make the watcher late.
                self._check_bypass()
            self._finish()
        except _GaveUp as gave_up:
            self._stuck = gave_up.stuck
            self._note = str(gave_up)
            self._record_failure()
        except WaitTimeout as late:
            cap = self._scenario.limits.deadline_s
            self._note = f"the job did not reach the end of its input within limits.deadline_s ({cap:.0f} s): {late}"
            self._record_failure()
        finally:
            if self._hold is not None:
                self._hold.close()
        self._log_tail = worth_showing(self._job.log_end(_LOOKED_AT), _TAIL_LINES)

    def summary(self) -> dict[str, Any]:
        """The fields of ``run.json`` about the feed and the job."""
        return {
            "fed": self._fed,
            "drained": self._drained,
            "drain_note": self._note,
            # False if limits.deadline_s ended a run that still made progress: what is missing then is not lost.
            "stuck": self._stuck,
            "nudged": self._restarted_at is not None,
            "never_reads": self._never_reads,
            # Queries whose last watermark no batch has acted on, and why no batch came.
            "open_watermarks": self._open_watermarks,
            "job": {
                "starts": self._job.starts,
                "exits": [{"start": e.start, "code": e.code, "at": e.at, "killed": e.killed} for e in self._job.exits],
                "jvms": [asdict(jvm) for jvm in self._job.jvms()],
                "died_before_fault": self._job.died_before_fault,
                "given_up": self._job.given_up,
                "traceback": self._traceback,
                "failure": asdict(self._failure) if self._failure is not None else None,
                "log_tail": self._log_tail,
            },
        }

    def _record_failure(self) -> None:
        """Record why a run ended early: keep the end of the job's log, the cause of its failure, and its open watermarks."""
        self._note_open_watermarks()
        self._traceback = self._job.log_end()
        postgres = self._stack.postgres
        addresses = [self._stack.kafka.client_bootstrap, postgres.client_uri if postgres is not None else ""]
        self._failure = self._job.why_it_failed(addresses)

    def _send(self, chunk: int, feeders: Sequence[Feeder]) -> None:
        """Send the chunk of every input while the driver is stopped.

        A running driver would plan the records as they arrive: the batch that a fault waits for could hold one record, or
        those of one partition, and have no n-th COMMIT. A query that reads several topics is held between two plans, so that it sees
        the records of all of them in its next one.
        """
        due = [pair for pair in zip(self._scenario.input, feeders, strict=True) if chunk < pair[0].chunks]
        together = sum(len(range(*feeder.chunk(chunk))) for _spec, feeder in due) <= _AT_ONCE
        with ExitStack() as sending:
            if together:
                try:
                    if self._hold is not None and len(due) > 1:
                        last = {batch.query: batch for batch in self._watcher.batches()}
                        sending.enter_context(self._hold.together([batch.sources for batch in last.values()]))
                    sending.enter_context(self._job.frozen())
                except WaitTimeout as awake:
                    message = f"the job could not be stopped while chunk {chunk} is sent: {awake.message}"
                    raise EnvironmentProblem(
                        message, hint="the process probably waits in the kernel: see `ps -o pid,stat,wchan`"
                    ) from awake
            for spec, feeder in due:
                self._ends[spec.topic] = feeder.send_chunk(chunk)

    def _started(self) -> bool:
        """Whether each query with a checkpoint has fixed its start offsets and planned batch 0 with them.

        Spark always plans batch 0, within milliseconds. A chunk sent before that would be part of it, and the later batches
        would have other numbers than in the next run.
        """
        if not self._watcher.has_started():
            return False
        if self._start_fixed_at is None:
            self._start_fixed_at = self._timeline.now()
        planned = {batch.query for batch in self._watcher.batches()}
        late = self._timeline.now() - self._start_fixed_at > _FIRST_PLAN_S
        return late or planned == set(self._watcher.queries())

    def _covered(self) -> bool:
        """Whether every query has committed all that was sent.

        A driver in continuous processing that repeats an epoch commits it with the end that an earlier driver has logged, before it has
        written those rows again. Its next epoch has an end of its own.
        """
        last = {b.query: b for b in self._watcher.batches() if b.committed_at is not None}
        epochs = (last[query] for query in without_batches(self._modes) if query in last)
        return self._watcher.covers(self._ends) and all(e.planned_by == e.committed_by for e in epochs)

    def _committed(self) -> bool:
        """Whether the input is drained: all of it is committed, and no query has a pending batch that may still come."""
        drained = self._covered() and self._faults.quiet
        return drained and not any(one.waiting_helps for one in self._pending())

    def _ready_for_more(self) -> bool:
        """Whether the next chunk may be sent. A batch without input that is about to come might take its batch number."""
        if not (self._covered() and self._faults.feeds):
            return False
        now = self._timeline.now()
        return not any(one.reason in ("open", "unread") or self._comes_soon(one, now) for one in self._pending())

    def _comes_soon(self, one: Pending, now: float) -> bool:
        """Whether to wait for a due batch before the next chunk: not if the query's trigger is slow."""
        if one.reason != "due":
            return False
        batches = [b for b in self._watcher.batches() if b.query == one.batch.query]
        longest = BETWEEN_CHUNKS_S * (5 if ran_without_input(batches) else 1)
        if now - (one.batch.committed_at or now) >= longest:
            # Do not wait for this query again: from now on its next batch takes the next chunk.
            self._slow.add(one.batch.query)
        return one.batch.query not in self._slow

    def _pending(self) -> list[Pending]:
        """For each query, a batch that is open or not yet read, or that its watermark calls for."""
        last, read = self._read()
        # Last: whether a plan came until now. The watcher's thread may be delayed, with the plan unread.
        unread = {b.query: Pending(b, "unread") for b in last.values() if self._watcher.newest_plan(b.query) > b.batch}
        return [*unread.values(), *(one for one in read if one.batch.query not in unread)]

    def _read(self) -> tuple[dict[str, Batch], list[Pending]]:
        """Each query's last batch, and what is pending, both as far as the watcher has read."""
        # The time first: if this thread were delayed after it had read the batches, one that came since would look overdue.
        start, now, longest = self._job.current_start, self._timeline.now(), self._scenario.limits.stuck_s
        by_query: dict[str, list[Batch]] = {}
        for batch in self._watcher.batches():
            by_query.setdefault(batch.query, []).append(batch)
        ended = [one.start for one in self._job.exits if one.code == 0 and not one.killed]
        found = (
            pending(
                batches, stateful=self._watcher.stateful(query), start=start, now=now, longest_s=longest, ended=ended
            )
            for query, batches in by_query.items()
        )
        last = {query: batches[-1] for query, batches in by_query.items()}
        return last, [one for one in found if one is not None]

    def _finish(self) -> None:
        """All input is committed: note whether each query has also acted on its last watermark."""
        left = self._note_open_watermarks()
        restarted = [one.describe() for one in left if one.reason == "restarted"]
        if restarted:
            self._note = f"{'; '.join(restarted)} (choose an earlier batch for the last fault, or more chunks)"
        self._drained = not restarted

    def _note_open_watermarks(self) -> list[Pending]:
        """Keep the queries that have not acted on their last watermark, however the run ended."""
        # Also if a later plan is unread: a query that is stopped before it commits that batch has not acted either.
        _, read = self._read()
        left = [one for one in read if one.reason != "open" or one.batch.records() == 0]
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

    def _wait_for(self, reason: str, probe: Callable[[], bool], deadline: float) -> None:
        self._last_progress = (self._timeline.now(), self._progress())
        left = max(deadline - self._timeline.now(), 0.1)
        wait_until(reason, probe, deadline_s=left, abandon=self._abandon, explain=self._explain)

    def _abandon(self) -> None:
        """Give up early if waiting cannot help: a broken job, a dead service, no progress for too long."""
        self._watcher.check()
        self._faults.check()
        if self._job.failure is not None:
            raise EnvironmentProblem(f"the supervisor of the job failed: {self._job.failure}")
        if self._job.died_before_fault:
            raise _GaveUp(f"the job died before any fault (exit code {self._job.exits[-1].code})", stuck=False)
        if self._job.given_up:
            raise _GaveUp(
                f"the job was restarted {self._scenario.limits.restarts} times in a row without any progress",
                stuck=self._faults.any_fired,  # before any fault, a job that ends without progress is simply broken
            )
        now = self._timeline.now()
        if now - self._healthy_at > _HEALTH_EVERY_S:
            self._stack.check_health()
            self._healthy_at = now
            if self._temporary_at is None and self._job.log_contains(_TEMPORARY):
                self._temporary_at = now
            without = self._temporary_at is not None and now - self._temporary_at > _FOLLOWS_S
            if without and not self._watcher.has_started() and not self._watcher.missing_queries():
                raise _GaveUp(
                    "the job's query has no checkpointLocation: Spark made a temporary one, which no restart finds again, "
                    "so each driver start reads from the starting offsets; set it to a folder below {checkpoint}",
                    stuck=False,
                )
        self._check_progress(now)

    def _check_progress(self, now: float) -> None:
        """After ``limits.stuck_s`` without progress restart the job, as an operator would; if that does not help, give up."""
        progress = self._progress()
        if progress != self._last_progress[1] or not self._faults.quiet:
            self._last_progress = (now, progress)
            return
        stuck_s = self._scenario.limits.stuck_s
        if now - self._last_progress[0] < stuck_s:
            return
        if any(one.reason == "due" for one in self._pending()):  # the wait for a due batch has a limit of its own
            return
        if not self._watcher.has_started():
            raise _GaveUp(f"the job wrote no checkpoint below {{checkpoint}} within {stuck_s:.0f} s", stuck=False)
        if unread := self._describe_unread_topics():
            self._never_reads = True
            raise _GaveUp(unread, stuck=False)
        if self._stack.spark is not None and self._job.log_contains(_NO_EXECUTORS, _LAST_LINES):
            raise _GaveUp(
                f"the Spark cluster gave the job no executor within {stuck_s:.0f} s: it has no free worker, or none as large as "
                f"the job asks for ({_NO_EXECUTORS!r})",
                stuck=False,
            )
        if self._modes:  # its logs may be behind its output: a restart would repeat what is done
            query, mode = next(iter(self._modes.items()))
            raise _GaveUp(
                f"no progress is logged for {stuck_s:.0f} s: query {query} uses {in_words(mode)}", stuck=False
            )
        if self._restarted_at == progress:
            if missing := self._watcher.missing_queries():
                message = (
                    f"query {', '.join(missing)} of pipeline.queries never wrote a checkpoint below {{checkpoint}}"
                )
                raise _GaveUp(f"{message}; these did: {', '.join(self._watcher.queries())}", stuck=False)
            # Before any fault, a job without progress shows nothing about recovery: it may be slow, or wait for something.
            raise _GaveUp(
                f"no progress for {stuck_s:.0f} s with every service healthy, and none after a restart"
                f"{self._describe_open_batches()} (a batch that takes longer needs a larger limits.stuck_s)",
                stuck=self._faults.any_fired,
            )
        self._restarted_at = progress
        self._timeline.emit("warning", message=f"no progress for {stuck_s:.0f} s: restarting the job once")
        self._last_progress = (now, progress)
        self._job.kill_driver()

    def _describe_unread_topics(self) -> str | None:
        """A sentence if no query reads a topic that was fed; None while a query may still start or has planned no batch."""
        reads: dict[str, set[str]] = {}
        for batch in self._watcher.batches():
            reads.setdefault(batch.query, set()).update(batch.ends)
        if self._watcher.missing_queries() or set(reads) != set(self._watcher.queries()):
            return None
        unread = [topic for topic in self._ends if not any(topic in topics for topics in reads.values())]
        if not unread:
            return None
        what = "; ".join(f"query {query} reads {', '.join(sorted(t)) or 'no topic'}" for query, t in reads.items())
        return f"the job never reads topic {', '.join(unread)}: {what} (is its topic given as {{topic.{unread[0]}}}?)"

    def _describe_open_batches(self) -> str:
        """The batches that were planned and never committed."""
        open_ = [f"{b.batch} of query {b.query}" for b in self._watcher.batches() if b.committed_at is None]
        return f": batch {', '.join(open_)} never ended" if open_ else ""

    def _progress(self) -> tuple[int, int]:
        """How many batches all queries have planned and committed. Grows with every log write."""
        batches = self._watcher.batches()
        return len(batches), sum(1 for b in batches if b.committed_at is not None)

    def _check_bypass(self) -> None:
        """Raise if a process of the job bypasses a proxy: a fault in a proxy that the job does not use proves nothing.

        Raise too if a driver that works does not use the Spark cluster that the stack names.
        """
        start, pids = self._job.current_start, self._job.pids()
        works = any(batch.committed_by == start for batch in self._watcher.batches())
        if self._stack.spark is not None and works and self._job.current_start == start:
            self._stack.spark.check_used(pids)
        bypasses = self._stack.check_bypass(pids)
        for sentence in bypasses:
            self._timeline.emit("bypass", message=sentence)
        if bypasses:
            raise EnvironmentProblem(
                "the job connects to a service without its proxy: " + "; ".join(bypasses),
                hint="give the job its addresses through {kafka} and {postgres} only",
            )

    def _explain(self) -> str:
        planned, committed = self._progress()
        state = "running" if self._job.is_running() else "not running"
        active = self._faults.active
        missing = self._watcher.missing_queries()
        return (
            f"{planned} batches planned, {committed} committed; job {state} (start {self._job.current_start}); "
            f"faults in progress: {', '.join(active) or 'none'}"
            + (f"; no checkpoint yet of query {', '.join(missing)}" if missing else "")
            + "".join(f"; {one.describe()}" for one in self._pending())
        )
