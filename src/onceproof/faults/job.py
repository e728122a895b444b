"""What one run without faults shows of a job: its queries and its commits, and so which faults can strike it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from onceproof.scenario.points import Point
from onceproof.stores.frames import Service, Sink

FIRST = 2
"""Batch of a run's first fault: one batch with data has completed before it (batch 0 is nearly always empty)."""


@dataclass(frozen=True)
class Query:
    """One streaming query."""

    name: str
    """Its checkpoint's folder below ``{checkpoint}``."""
    data_batches: int
    """The number of its batches that read input."""
    first_batch: int = FIRST
    """The batch of a run's first fault in this query. Every second batch from there on is of the same kind: where batches with
    and without input alternate, this is one that writes."""
    waits: bool = True
    """Whether it writes its checkpoint through onceproof's checkpoint file system, which can make it wait in a write."""
    state_stores: int = 0
    """The number of its state partitions; 0 for a stateless query."""
    parks: tuple[Service, ...] = ()
    """The sinks of `onceproof.sinks` that it uses: these can park before their commit."""


def _distinct(sinks: tuple[Sink, ...], key: Callable[[Sink], str]) -> tuple[Sink, ...]:
    """The first sink for each key."""
    first: dict[str, Sink] = {}
    for sink in sinks:
        first.setdefault(key(sink), sink)
    return tuple(first.values())


@dataclass(frozen=True)
class Job:
    """A whole job."""

    queries: tuple[Query, ...]
    sinks: tuple[Sink, ...] = ()
    """Its outputs, in the order in which a batch writes to them."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Output -> why its commits could not be identified. A job with such an output is never reported as held: see
    `untried_outputs`."""

    @property
    def places(self) -> tuple[Sink, ...]:
        """One sink for each table or topic."""
        return _distinct(self.sinks, lambda sink: f"{sink.query} {sink.target} {sink.place}")

    @property
    def commits(self) -> tuple[Sink, ...]:
        """One sink for each commit: two topics of one transaction share one."""
        return _distinct(self.sinks, lambda sink: f"{sink.query} {sink.target} {sorted(sink.frame.items())}")

    def first_batches(self) -> dict[str | None, int]:
        """Value of ``at: query:`` -> the batch at which the first fault of a run strikes in that query."""
        return {self.at_query(query.name): query.first_batch for query in self.queries}

    def at_query(self, name: str) -> str | None:
        """The value of ``at: query:`` for a fault of this query: None if the job has only one."""
        return name if len(self.queries) > 1 else None

    def no_commit(self) -> str:
        """Why the job has no commit that could be lost, for the points that need one."""
        return "; ".join(self.gaps.values()) or "no output's commits were seen"


@dataclass(frozen=True)
class Try:
    """One way to place a fault of some kind in this job, all but its batch; or the reason why that point has none.

    A fault kind that ``qualify`` can try has a classmethod ``tries(job) -> Iterable[Try]``.
    """

    point: Point
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``target`` and the other settings of the kind, without ``fault`` and ``at``."""
    query: str | None = None
    words: str = ""
    """What distinguishes it from other tries of the same kind at the same point."""
    n_a: str | None = None
    """Why the point does not apply; None if it does."""
    of_tool: bool = False
    """Whether ``n_a`` is a limit of onceproof, not a property of the job."""
    alone: bool = False
    """Whether it needs a run without other faults, because it changes the numbers of later batches."""
    gap: str | None = None
    """Why the point applies but the fault cannot be placed. Reported as *not reached*, so the job is never reported as held."""


def untried_outputs(job: Job, point: Point) -> Iterator[Try]:
    """A `Try` with a ``gap`` for each output whose commits could not be identified."""
    for output, why in job.gaps.items():
        yield Try(point, words=f"output {output}", gap=why)


def at_checkpoint(job: Job, points: tuple[Point, ...], settings: Mapping[str, Any]) -> Iterator[Try]:
    """Tries at each of ``points``, which the checkpoint or a sink's failpoint must show, for each query that reaches it."""
    for point in points:
        reasons: list[str] = []
        for query in job.queries:
            why = _why_not_reached(query, point)
            if why is None:
                yield Try(point, settings, job.at_query(query.name), words=job.at_query(query.name) or "")
            else:
                reasons.append(why)
        if len(reasons) == len(job.queries):
            why = reasons[0] if reasons else "the job has no query"
            yield Try(point, n_a=why, of_tool=why in _OF_TOOL)


_ONLY_OUR_SINKS = "only a sink of onceproof.sinks can be stopped there"
_NOT_OUR_FILE_SYSTEM = "the job does not write its checkpoint through onceproof's checkpoint file system"
_OF_TOOL = (_ONLY_OUR_SINKS, _NOT_OUR_FILE_SYSTEM)


def _why_not_reached(query: Query, point: Point) -> str | None:
    if point is Point.STATE_PARTLY_COMMITTED and query.state_stores < 2:
        return "no query keeps state" if not query.state_stores else "the state of its query is a single partition"
    if point is Point.BEFORE_SINK_COMMIT and not query.parks:
        return _ONLY_OUR_SINKS
    if point in (Point.STATE_PARTLY_COMMITTED, Point.BEFORE_OFFSET_LOG) and not query.waits:
        return _NOT_OUR_FILE_SYSTEM
    return None


def at_frames(job: Job, settings: Mapping[str, Any]) -> Iterator[Try]:
    """Tries at a request that the protocol proxy holds: a write in a task, a commit, or the next sink's commit of a batch."""
    found: dict[Point, list[tuple[Sink, Mapping[str, Any], str]]] = {
        Point.IN_TASKS: [(s, s.write, f"a write to {s.place}") for s in job.places if s.write is not None],
        Point.BEFORE_SINK_COMMIT: [(s, s.frame, s.words) for s in job.commits if s.commits],
        Point.BETWEEN_SINKS: [
            (later, later.frame, f"{later.words}, after {first.place}")
            for query in dict.fromkeys(sink.query for sink in job.commits)
            for first, later in pairwise(sink for sink in job.commits if sink.query == query)
            if first.place not in later.shares_with
        ],
    }
    missing = {
        Point.IN_TASKS: "no write to an output was seen in its batches",
        Point.BEFORE_SINK_COMMIT: job.no_commit()
        if not job.sinks
        else "its sinks write without a transaction, so no request commits a batch",
        Point.BETWEEN_SINKS: "its sinks share a commit"
        if len(job.places) > len({sink.query for sink in job.places})
        else "its batches write to a single sink",
    }
    for point, frames in found.items():
        for sink, frame, words in frames:
            cell = {**settings, "service": sink.target, "frame": dict(frame)}
            yield Try(point, cell, job.at_query(sink.query), words=words)
        several = len(job.sinks) + len(job.gaps) > 1
        gaps = list(untried_outputs(job, point)) if point is not Point.BETWEEN_SINKS or several else []
        yield from gaps
        if not frames and not gaps:
            yield Try(point, n_a=missing[point])


def at_commit(job: Job, point: Point) -> Iterator[Try]:
    """Tries at the commit of each sink; ``point`` says which part of it is lost."""
    for sink in job.commits:
        settings = {"target": sink.target, "frame": dict(sink.frame)}
        yield Try(point, settings, job.at_query(sink.query), words=sink.words)
    yield from untried_outputs(job, point)
    if not job.sinks and not job.gaps:
        yield Try(point, n_a=job.no_commit())


@runtime_checkable
class OffersCells(Protocol):
    """A kind of fault that `onceproof qualify` tries."""

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        """Each way to place it in the job, and for each point that has none the reason."""


@runtime_checkable
class OffersMoreCells(Protocol):
    """A kind of fault that `onceproof qualify` tries only if ``--kinds`` names it."""

    @classmethod
    def more_tries(cls, job: Job) -> Iterable[Try]:
        """Like `OffersCells.tries`."""
