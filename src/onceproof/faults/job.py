"""What is known of a job after one run without faults: its queries, where it commits, and so which faults it can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

from onceproof.scenario.points import Point

Target = Literal["postgres", "kafka"]

FIRST = 2
"""Batch of a run's first fault: one batch with data went before it undisturbed (batch 0 is nearly always empty)."""


@dataclass(frozen=True)
class Query:
    """One streaming query."""

    name: str
    """Its checkpoint's folder below ``{checkpoint}``."""
    data_batches: int
    """How many of its batches held data."""
    first_batch: int = FIRST
    """The batch of a run's first fault in this query, and every second one after it is like it. Where a batch without input
    follows each with data, those two take turns: this is one that writes."""
    waits: bool = True
    """It writes its checkpoint through onceproof's checkpoint file system, so that it can be made to wait in a write."""
    state_stores: int = 0
    """Partitions of state that it keeps; 0: it has none."""
    parks: tuple[Target, ...] = ()
    """Sinks of `onceproof.sinks` that it uses: these stop before their commit."""


@dataclass(frozen=True)
class Sink:
    """A place where the job was seen to commit, or to write where there is no commit: the frame that a rule can name."""

    target: Target
    query: str
    frame: Mapping[str, Any]
    """What a scenario says under ``frame:``."""
    words: str
    """``COMMIT of departures``, ``EndTxn``, ``first Produce to departures, which has no commit``."""
    place: str = ""
    """The table or the topic."""
    commits: bool = True
    """False: records stand as soon as they are written, and ``frame`` is the first write of a batch."""
    write: Mapping[str, Any] | None = None
    """The frame of a write in the middle of a batch; None where none was seen."""
    shares_with: frozenset[str] = frozenset()
    """Places whose rows of a batch were always committed with its own, so that nothing lies between the two."""


def _distinct(sinks: tuple[Sink, ...], of: Callable[[Sink], str]) -> tuple[Sink, ...]:
    """The first of each."""
    first: dict[str, Sink] = {}
    for sink in sinks:
        first.setdefault(of(sink), sink)
    return tuple(first.values())


@dataclass(frozen=True)
class Job:
    """The whole of it."""

    queries: tuple[Query, ...]
    sinks: tuple[Sink, ...] = ()
    """In the order in which a batch writes to them."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Output -> why its commits cannot be told from what was seen. A job with one cannot be said to hold: see `untold`."""

    @property
    def places(self) -> tuple[Sink, ...]:
        """One of the sinks for each table or topic."""
        return _distinct(self.sinks, lambda sink: f"{sink.query} {sink.target} {sink.place}")

    @property
    def commits(self) -> tuple[Sink, ...]:
        """One of the sinks for each commit: two topics of one transaction share theirs."""
        return _distinct(self.sinks, lambda sink: f"{sink.query} {sink.target} {sorted(sink.frame.items())}")

    def first_batches(self) -> dict[str | None, int]:
        """What a fault says under ``at: query:`` -> the batch at which the first fault of a run strikes there."""
        return {self.of(query): query.first_batch for query in self.queries}

    def of(self, query: Query) -> str | None:
        """What a fault says under ``at: query:``: nothing where there is only one."""
        return query.name if len(self.queries) > 1 else None

    def no_commit(self) -> str:
        """Why there is no commit to lose, for the points that need one."""
        return "; ".join(self.gaps.values()) or "no output's commits were seen"


@dataclass(frozen=True)
class Try:
    """One way to put a fault of some kind into this job: all of it but its batch; or why that point has none.

    A fault kind offers itself to ``qualify`` by a classmethod ``tries(job) -> Iterable[Try]``.
    """

    point: Point
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``target`` and whatever else the kind wants beside ``fault`` and ``at``."""
    query: str | None = None
    words: str = ""
    """What tells it from other tries of the same kind at the same point."""
    n_a: str | None = None
    of_tool: bool = False
    """``n_a`` because of what onceproof can place, not because of what the job is."""
    gap: str | None = None
    """Why this job has it, and nobody can say where to put it: told as not reached, so that the job is not said to hold."""


def untold(job: Job, point: Point) -> Iterator[Try]:
    """For each output of which the commits are not known, that nothing was tried on it."""
    for output, why in job.gaps.items():
        yield Try(point, words=f"output {output}", gap=why)


def at_checkpoint(job: Job, points: tuple[Point, ...], settings: Mapping[str, Any]) -> Iterator[Try]:
    """Tries at those of ``points`` which the checkpoint or a sink's failpoint shows, for each query that passes them."""
    for point in points:
        reasons: list[str] = []
        for query in job.queries:
            why = _never_passes(query, point)
            if why is None:
                yield Try(point, settings, job.of(query), words=job.of(query) or "")
            else:
                reasons.append(why)
        if len(reasons) == len(job.queries):
            why = reasons[0] if reasons else "the job has no query"
            yield Try(point, n_a=why, of_tool=why in _OF_TOOL)


_ONLY_OUR_SINKS = "only a sink of onceproof.sinks can be stopped there"
_PAST_OUR_FILES = "the job writes its checkpoint past onceproof's checkpoint file system"
_OF_TOOL = (_ONLY_OUR_SINKS, _PAST_OUR_FILES)


def _never_passes(query: Query, point: Point) -> str | None:
    if point is Point.STATE_PARTLY_COMMITTED and query.state_stores < 2:
        return "no query keeps state" if not query.state_stores else "the state of its query is a single partition"
    if point is Point.BEFORE_SINK_COMMIT and not query.parks:
        return _ONLY_OUR_SINKS
    if point in (Point.STATE_PARTLY_COMMITTED, Point.BEFORE_OFFSET_LOG) and not query.waits:
        return _PAST_OUR_FILES
    return None


def at_frames(job: Job, settings: Mapping[str, Any]) -> Iterator[Try]:
    """Tries at a request that is held in mid-air: a write in the tasks, the commit, and the next sink of the same batch."""
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
        Point.BEFORE_SINK_COMMIT: job.no_commit() if not job.sinks else "no sink of it has a commit",
        Point.BETWEEN_SINKS: "its sinks share a commit"
        if len(job.places) > len({sink.query for sink in job.places})
        else "its batches write to a single sink",
    }
    for point, frames in found.items():
        for sink, frame, words in frames:
            query = sink.query if len(job.queries) > 1 else None
            yield Try(point, {**settings, "service": sink.target, "frame": dict(frame)}, query, words=words)
        several = len(job.sinks) + len(job.gaps) > 1
        gaps = list(untold(job, point)) if point is not Point.BETWEEN_SINKS or several else []
        yield from gaps
        if not frames and not gaps:
            yield Try(point, n_a=missing[point])


def at_commit(job: Job, point: Point) -> Iterator[Try]:
    """Tries at the commit of each sink; ``point`` says what is lost of it."""
    for sink in job.commits:
        query = sink.query if len(job.queries) > 1 else None
        yield Try(point, {"target": sink.target, "frame": dict(sink.frame)}, query, words=sink.words)
    yield from untold(job, point)
    if not job.sinks and not job.gaps:
        yield Try(point, n_a=job.no_commit())


@runtime_checkable
class OffersCells(Protocol):
    """A kind of fault that `onceproof qualify` tries: each way to put it into a job, and each that there is not with its reason."""

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]: ...
