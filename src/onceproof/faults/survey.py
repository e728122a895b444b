"""Surveys a job in the first, fault-free run of a qualification: records the frames it sends, and derives a `Job` from them.

`watch` arms rules on the protocol proxy that stop nothing; each matching frame becomes an event ``frame.seen`` of the run.
`read` assigns each frame to the batches that were open then, by the events of the batches.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onceproof.base.timeline import Timeline
from onceproof.faults.job import FIRST, Job, Query, Sink, Target
from onceproof.faults.placement import has_own_file_manager
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import WRITES, Condition, Rule, writes_to
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import FrameRules
from onceproof.stores.contract import store_of

_WRITES = re.compile(WRITES, re.IGNORECASE)
#: The verb and the table of a statement that writes.
_INTO = re.compile(rf'{WRITES}\s+(?:into\s+|from\s+)?(?:only\s+)?((?:"[^"]*"|[\w.$])+)', re.IGNORECASE)
#: The parts of a transactional id that may differ in the next batch or run.
_CHANGING = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+", re.IGNORECASE)
#: Frames recorded per service and kind of frame: a job that commits every row would otherwise fill the disk.
_MAX_FRAMES = 400
#: Similar frames recorded per service and kind of frame: otherwise the many rows of one table would leave no room for
#: another table's.
_MAX_SIMILAR = 40
_MAX_STATEMENTS = 8

_WATCHED: tuple[tuple[Target, str], ...] = (
    ("postgres", "commit"),
    ("postgres", "statement"),
    ("kafka", "EndTxn"),
    ("kafka", "Produce"),
)


def watch(frames: FrameRules, timeline: Timeline, known_as: Callable[[str], str]) -> None:
    """Record the frames by which the job commits and writes, without stopping any.

    ``known_as`` returns the name that the scenario's file uses for a topic, as `Scenario.known_as`.
    """
    for service, kind in _WATCHED:
        recorder = _recorder(service, timeline, known_as)
        frames.arm(service, Rule(Condition(kind), "park", name="survey", proceed=recorder))


def _recorder(service: Target, timeline: Timeline, known_as: Callable[[str], str]) -> Callable[[Frame], bool]:
    counts: Counter[str] = Counter()

    def record(frame: Frame) -> bool:
        facts = _facts_of(frame, known_as)
        if facts is None:
            return False
        key = _similarity_key(frame.kind, facts)
        if counts.total() < _MAX_FRAMES and counts[key] < _MAX_SIMILAR:
            counts[key] += 1
            timeline.emit("frame.seen", service=service, frame=frame.kind, **facts)
        return False  # do not stop it

    return record


def _similarity_key(kind: str, facts: Mapping[str, Any]) -> str:
    """A key that is the same for similar frames: kind, verbs and tables, topics, and the transactional id without its changing parts."""
    if "writes" in facts:
        into = {f"{verb} {table}".lower() for text in facts["writes"] for verb, table in _INTO.findall(text)}
        return f"{kind} {sorted(into) or facts['writes']}"
    fixed_id = _CHANGING.sub("#", str(facts["transactional_id"]))
    return f"{kind} {facts['topics']} {facts['committed']} {fixed_id}"


def _facts_of(frame: Frame, known_as: Callable[[str], str]) -> dict[str, Any] | None:
    """The facts to record of a frame; None if it writes nothing."""
    facts = frame.facts
    if frame.kind in ("EndTxn", "Produce"):
        return {
            "topics": [known_as(topic) for topic in facts.get("topics") or ()],
            "transactional_id": facts.get("transactional_id"),
            "committed": facts.get("committed"),
        }
    texts = facts.get("transaction", ()) if frame.kind == "commit" else (facts.get("sql") or "",)
    writes = [text for text in texts if _WRITES.search(text)]
    return {"writes": writes[:_MAX_STATEMENTS]} if writes else None


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
    events = _events(run_dir / "events.jsonl")
    all_batches = _batches(events)
    batches = [batch for batch in all_batches if batch.read or batch.wrote]
    seen = [event for event in events if event["kind"] == "frame.seen"]
    names = sorted({batch.query for batch in batches})
    sinks, gaps = _sinks(scenario, seen, batches, names)
    warnings = " ".join(str(e.get("message")) for e in events if e["kind"] == "warning")
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


def _events(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _batches(events: Iterable[Mapping[str, Any]]) -> list[_Batch]:
    planned: dict[tuple[str, int], float] = {}
    done = []
    for event in events:
        if event["kind"] not in ("batch.planned", "batch.committed"):
            continue
        name = (event["query"], event["batch"])
        if event["kind"] == "batch.planned":
            planned.setdefault(name, event["at"])
        else:
            read, wrote = bool(event.get("records")), bool(event.get("wrote"))
            done.append(_Batch(*name, planned.get(name, 0.0), event["at"], read, wrote))
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


def _parks(events: Iterable[Mapping[str, Any]], query: str) -> tuple[Target, ...]:
    sinks = {event.get("sink") for event in events if event["kind"] == "point" and event.get("query") == query}
    known: tuple[Target, ...] = ("postgres", "kafka")
    return tuple(sink for sink in known if sink in sinks)


def _state_stores(checkpoint: Path, query: str) -> int:
    """The number of partitions of its stateful operators (``state/OPERATOR/PARTITION``), without the metadata's folder."""
    folder = checkpoint if query == checkpoint.name else checkpoint / query
    return sum(1 for store in folder.glob("state/*/*") if store.is_dir() and store.name.isdigit())


def _sinks(
    scenario: Scenario, seen: list[dict[str, Any]], batches: list[_Batch], queries: list[str]
) -> tuple[list[Sink], dict[str, str]]:
    """The job's sinks in the order in which a batch writes to them; and for each other output, why it has none."""
    found: list[tuple[float, Sink, list[_SeenFrame]]] = []
    gaps: dict[str, str] = {}
    frames = [
        _SeenFrame(event, opened)
        for event in seen
        if (opened := {b.query: b.since for b in batches if b.since <= event["at"] <= b.until})
    ]
    others = _ids_of_others(scenario, frames)
    for name, output in scenario.outputs.items():
        several = len(queries) > 1
        result: _Found | str
        if output.table is not None:
            result = _table(output, frames)
        elif output.topic is not None:
            result = _topic(output, frames, others[name], several)
        else:
            result = f"it is {store_of(output).about}, to which no frames are sent"
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
            and (sink.target == "postgres" and _commits_in_a_batch(decisive) > 1)
        ):
            gaps[name] = f"output {name}: its own COMMIT cannot be distinguished from the batch's other COMMITs"
        elif any((o.target, o.frame) == (sink.target, sink.frame) and o.query != query for _, o, _ in found):
            gaps[name] = f"output {name}: another query commits to {sink.place} by frames that look the same"
        else:
            after = min(one.event["at"] - one.opened.get(query, one.event["at"]) for one in decisive)
            found.append((after, replace(sink, query=query), decisive))
    found.sort(key=lambda item: item[0])
    return [
        replace(
            sink, shares_with=frozenset(o.place for _, o, others in found if _always_together(sink, own, o, others))
        )
        for _, sink, own in found
    ], gaps


def _always_together(sink: Sink, own: list[_SeenFrame], other: Sink, others: list[_SeenFrame]) -> bool:
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


def _commits_by_batch(seen: list[_SeenFrame], query: str) -> dict[float | None, set[int]]:
    """Time at which a batch of the query was planned -> the frames of that batch, by identity."""
    frames: dict[float | None, set[int]] = {}
    for one in seen:
        frames.setdefault(one.opened.get(query), set()).add(id(one.event))
    return frames


@dataclass(frozen=True)
class _SeenFrame:
    """A frame that was seen while at least one batch was open that read input or wrote."""

    event: dict[str, Any]
    opened: Mapping[str, float]
    """Query with an open batch -> when that batch was planned."""


_Found = tuple[Sink, list[_SeenFrame]]
"""A sink without its query, and the frames that decide which query it belongs to."""


def _table(output: OutputSpec, frames: list[_SeenFrame]) -> _Found | str:
    """The sink of a table; or why its commits cannot be identified."""
    assert output.table is not None
    table = output.table.rpartition(".")[2].strip('"')
    # The verb too: Spark's JDBC writer first reads the table, in a transaction of its own that ends in a COMMIT.
    pattern = writes_to(table)
    named = [one for one in frames if any(re.search(pattern, t, re.IGNORECASE) for t in one.event.get("writes", ()))]
    commits = [one for one in frames if one.event["frame"] == "commit"]
    statements = [one for one in named if one.event["frame"] == "statement"]
    write = {"kind": "statement", "sql": pattern, "nth": _nth(statements)} if statements else None
    of_table = [one for one in named if one.event["frame"] == "commit"]
    sink = Sink("postgres", "", {"transaction": pattern}, f"COMMIT of {table}", output.table, write=write)
    if of_table:
        return sink, of_table
    if commits:  # it writes through another table or a function
        return replace(sink, frame={}, words="COMMIT"), commits
    alone = sum(1 for one in frames if one.event["frame"] == "statement")
    if alone:
        return f"{alone} statements that write and no COMMIT were seen in its batches: each commits by itself"
    return "no COMMIT of a transaction that wrote was seen in any batch with data"


def _ids_of_others(scenario: Scenario, frames: list[_SeenFrame]) -> dict[str, set[str]]:
    """Output -> the transactional ids that wrote to other output topics and not to its own."""
    ids = {
        name: {
            str(one.event["transactional_id"])
            for one in frames
            if one.event["frame"] == "Produce" and output.topic in one.event["topics"] and one.event["transactional_id"]
        }
        for name, output in scenario.outputs.items()
    }
    return {name: set().union(*ids.values()) - own for name, own in ids.items()}


def _commits_in_a_batch(commits: list[_SeenFrame]) -> int:
    """The largest number of these commits in one batch."""
    return max(Counter(tuple(sorted(one.opened.items())) for one in commits).values(), default=0)


def _topic(output: OutputSpec, frames: list[_SeenFrame], others: set[str], several: bool) -> _Found | str:
    """The sink of a topic; or why its commits cannot be identified.

    ``others``: transactional ids whose EndTxn belongs to another output. ``several``: the job has more than one query.
    """
    assert output.topic is not None
    produced = [one for one in frames if one.event["frame"] == "Produce" and output.topic in one.event["topics"]]
    if not produced:
        return f"no Produce to {output.topic} was seen in any batch with data"
    first = {"kind": "Produce", "topic": output.topic}
    write = {**first, "nth": _nth(produced)}
    ended = [one for one in frames if one.event["frame"] == "EndTxn" and one.event["committed"]]
    own = {str(one.event["transactional_id"]) for one in produced if one.event["transactional_id"]}
    if ended and own and not others and not several:
        return Sink("kafka", "", {}, "EndTxn", output.topic, write=write), ended
    if ended and own:
        ended = [one for one in ended if one.event["transactional_id"] in own]
        named = _pattern(own, others)
        if named is None or not ended:
            return "its EndTxn cannot be distinguished from another's: it names no topic, and the transactional ids are similar"
        return Sink(
            "kafka", "", {"transactional_id": named}, f"EndTxn of {output.topic}", output.topic, write=write
        ), ended
    words = f"first Produce to {output.topic}, which has no commit"
    return Sink("kafka", "", first, words, output.topic, commits=False, write=write), produced


def _pattern(own: set[str], others: set[str]) -> str | None:
    """A regular expression that matches these ids, also with other numbers in later batches, and none of ``others``."""
    for alternatives in ({_general(one) for one in own}, {re.escape(one) for one in own}):
        pattern = rf"^(?:{'|'.join(sorted(alternatives))})$"
        if not any(re.search(pattern, other, re.IGNORECASE) for other in others):
            return pattern
    return None


def _general(name: str) -> str:
    """A regular expression that matches the name with any numbers and UUIDs."""
    changing = [r"\d+" if found.isdigit() else "[0-9a-f-]{36}" for found in _CHANGING.findall(name)]
    fixed = [re.escape(part) for part in _CHANGING.split(name)]
    return "".join(part for pair in zip(fixed, [*changing, ""], strict=True) for part in pair)


def _nth(writes: list[_SeenFrame]) -> int:
    """The number of the write at which to strike: 2 if the first batch has two or more, so that one was written before."""
    begun = [tuple(sorted(one.opened.items())) for one in writes]
    return 2 if begun.count(begun[0]) > 1 else 1


def _only(decisive: list[_SeenFrame], queries: list[str]) -> str | None:
    """The one query that had a batch open at each of these frames; None if there is not exactly one."""
    if len(queries) == 1:
        return queries[0]
    common = set.intersection(*(set(one.opened) for one in decisive))
    return next(iter(common)) if len(common) == 1 else None
