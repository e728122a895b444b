"""Surveys a job in the first, fault-free run of a qualification: records the frames it sends, and derives a `Job` from them.

`watch` arms rules on the protocol proxy that stop nothing; each matching frame becomes an event ``frame.seen`` of the run.
`read` assigns each frame to the batches that were open then, by the events of the batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from onceproof.base.timeline import Event, Timeline, read_events
from onceproof.faults.job import FIRST, Job, Query
from onceproof.faults.placement import has_own_file_manager
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Condition, Rule
from onceproof.scenario.model import Scenario
from onceproof.stack.api import FrameRules
from onceproof.stores.contract import store_of
from onceproof.stores.frames import Found, HasFrames, SeenFrame, Service, Sink, StoreFrames, all_frames, frames_of

#: Frames recorded per service and kind of frame: a job that commits every row would otherwise fill the disk.
_MAX_FRAMES = 400
#: Similar frames recorded per service and kind of frame: otherwise the many rows of one table would leave no room for
#: another table's.
_MAX_SIMILAR = 40


def watch(frames: FrameRules, timeline: Timeline, known_as: Callable[[str], str]) -> None:
    """Record the frames by which the job commits and writes, without stopping any.

    ``known_as`` returns the name that the scenario's file uses for a topic, as `Scenario.known_as`.
    """
    for store in all_frames():
        for kind in (store.commit, store.in_task["kind"]):
            rule = Rule(Condition(kind), "park", name="survey", proceed=_recorder(store, timeline, known_as))
            frames.board(store.service).arm(rule)


def _recorder(store: StoreFrames, timeline: Timeline, known_as: Callable[[str], str]) -> Callable[[Frame], bool]:
    counts: Counter[str] = Counter()

    def record(frame: Frame) -> bool:
        facts = store.recorded(frame)
        if facts is None:
            return False
        if "topics" in facts:
            facts["topics"] = [known_as(topic) for topic in facts["topics"]]
        key = store.similarity(facts)
        if counts.total() < _MAX_FRAMES and counts[key] < _MAX_SIMILAR:
            counts[key] += 1
            timeline.emit("frame.seen", service=store.service, frame=frame.kind, **facts)
        return False  # do not stop it

    return record


# -- deriving the job -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """A committed batch."""

    query: str
    number: int
    since: float
    """The time of its plan."""
    until: float
    """The time of its commit."""
    read: bool
    """Whether it read input."""
    wrote: bool
    """Whether an output was seen to change in it."""


def read(run_dir: Path, scenario: Scenario) -> Job:
    """Derive the job from one run of it without faults. Reads only the run directory."""
    events = read_events(run_dir)
    all_batches = _batches(events)
    batches = [batch for batch in all_batches if batch.read or batch.wrote]
    seen = [event for event in events if event.kind == "frame.seen"]
    names = sorted({batch.query for batch in batches})
    sinks, gaps = _sinks(scenario, seen, batches, names)
    warnings = " ".join(str(e.data.get("message")) for e in events if e.kind == "warning")
    own_manager = has_own_file_manager(scenario)
    return Job(
        queries=tuple(
            Query(
                name,
                sum(batch.query == name and batch.read for batch in batches),
                first_batch=FIRST + _only_odd_write(all_batches, name),
                waits=not own_manager and f"query {name} writes its checkpoint past" not in warnings,
                state_stores=_state_stores(run_dir / "checkpoint", name),
                parks=_parks(events, name),
            )
            for name in names
        ),
        sinks=tuple(sinks),
        gaps=gaps,
    )


def _batches(events: Iterable[Event]) -> list[_Batch]:
    planned: dict[tuple[str, int], float] = {}
    done = []
    for event in events:
        if event.kind not in ("batch.planned", "batch.committed"):
            continue
        name = (event.data["query"], event.data["batch"])
        if event.kind == "batch.planned":
            planned.setdefault(name, event.at)
        else:
            read, wrote = bool(event.data.get("records")), bool(event.data.get("wrote"))
            done.append(_Batch(*name, planned.get(name, 0.0), event.at, read, wrote))
    return done


def _only_odd_write(batches: list[_Batch], query: str) -> bool:
    """Whether batches with and without input alternate, and only those with input were seen to write.

    Batch 0 is empty, so those with input are then the odd ones.
    """
    own = [batch for batch in batches if batch.query == query and batch.number > 0]
    without = [batch for batch in own if not batch.read]
    with_data = [batch for batch in own if batch.read]
    alternate = 2 * len(without) > len(with_data)
    return alternate and any(batch.wrote for batch in with_data) and not any(batch.wrote for batch in without)


def _parks(events: Iterable[Event], query: str) -> tuple[Service, ...]:
    sinks = {event.data.get("sink") for event in events if event.kind == "point" and event.data.get("query") == query}
    return tuple(store.service for store in all_frames() if store.service in sinks)


def _state_stores(checkpoint: Path, query: str) -> int:
    """The number of partitions of its stateful operators (``state/OPERATOR/PARTITION``), without the metadata's folder."""
    folder = checkpoint if query == checkpoint.name else checkpoint / query
    return sum(1 for store in folder.glob("state/*/*") if store.is_dir() and store.name.isdigit())


def _sinks(
    scenario: Scenario, seen: list[Event], batches: list[_Batch], queries: list[str]
) -> tuple[list[Sink], dict[str, str]]:
    """The job's sinks in the order in which a batch writes to them; and for each other output, why it has none."""
    found: list[tuple[float, Sink, list[SeenFrame]]] = []
    gaps: dict[str, str] = {}
    frames = [
        SeenFrame(event, opened)
        for event in seen
        if (opened := {b.query: b.since for b in batches if b.since <= event.at <= b.until})
    ]
    for name, output in scenario.outputs.items():
        store = store_of(output)
        result: Found | str = f"it is {store.about}, and onceproof sees no frames of its writes"
        if isinstance(store, HasFrames):
            result = store.frames.sink_of(scenario, name, frames, several=len(queries) > 1)
        if isinstance(result, str):
            gaps[name] = f"output {name}: {result}"
            continue
        sink, decisive = result
        query = output.query or _only(decisive, queries)
        if query is None:
            gaps[name] = f"output {name}: its frames do not show which query writes it; name it under query:"
        elif (
            not sink.frame
            and any(not other.frame and other.target == sink.target for _, other, _ in found)
            and (not frames_of(sink.target).spans_outputs and _commits_in_a_batch(decisive) > 1)
        ):
            gaps[name] = f"output {name}: its own COMMIT cannot be distinguished from the batch's other COMMITs"
        elif any((o.target, o.frame) == (sink.target, sink.frame) and o.query != query for _, o, _ in found):
            gaps[name] = f"output {name}: another query commits to {sink.place} by frames that look the same"
        else:
            after = min(one.event.at - one.opened.get(query, one.event.at) for one in decisive)
            found.append((after, replace(sink, query=query), decisive))
    found.sort(key=lambda item: item[0])
    return [
        replace(
            sink, shares_with=frozenset(o.place for _, o, others in found if _always_together(sink, own, o, others))
        )
        for _, sink, own in found
    ], gaps


def _always_together(sink: Sink, own: list[SeenFrame], other: Sink, others: list[SeenFrame]) -> bool:
    """Whether the two sinks committed by the same frames in each batch in which both committed."""
    if (
        sink is other
        or not (sink.commits and other.commits)
        or (sink.query, sink.target) != (other.query, other.target)
    ):
        return False
    mine, theirs = (_commits_by_batch(seen, sink.query) for seen in (own, others))
    common = mine.keys() & theirs.keys()
    return bool(common) and all(mine[batch] == theirs[batch] for batch in common)


def _commits_by_batch(seen: list[SeenFrame], query: str) -> dict[float | None, set[int]]:
    """Time at which a batch of the query was planned -> the frames of that batch, by identity."""
    frames: dict[float | None, set[int]] = {}
    for one in seen:
        frames.setdefault(one.opened.get(query), set()).add(id(one.event))
    return frames


def _commits_in_a_batch(commits: list[SeenFrame]) -> int:
    """The largest number of these commits in one batch."""
    return max(Counter(tuple(sorted(one.opened.items())) for one in commits).values(), default=0)


def _only(decisive: list[SeenFrame], queries: list[str]) -> str | None:
    """The one query that had a batch open at each of these frames; None if there is not exactly one."""
    if len(queries) == 1:
        return queries[0]
    common = set.intersection(*(set(one.opened) for one in decisive))
    return next(iter(common)) if len(common) == 1 else None
