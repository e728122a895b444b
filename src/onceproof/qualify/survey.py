"""The first run of a qualification, without faults: which frames the job sends is noted, and read back as a `Job`.

Rules that stop nothing are armed on the protocol proxy; each frame that they see becomes an event ``frame.seen`` of the run.
Which batch was open then is known from the events of the batches.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onceproof.chaos.proxy.frames import Frame
from onceproof.chaos.proxy.rules import Condition, Rule
from onceproof.events import Timeline
from onceproof.placing import has_own_file_manager
from onceproof.qualify.job import Job, Query, Sink, Target
from onceproof.scenario.model import OutputSpec, Scenario
from onceproof.stack.api import FrameRules

_WRITING = r"\b(insert|update|delete|merge|copy)\b"
_WRITES = re.compile(_WRITING, re.IGNORECASE)
#: Noted of each service: a job that commits every row would otherwise fill the disk.
_MOST_NOTED = 400
#: And of frames that say the same: else one table's many rows would leave no room for another's.
_MOST_ALIKE = 40
_STATEMENTS_NOTED = 8

_WATCHED: tuple[tuple[Target, str], ...] = (
    ("postgres", "commit"),
    ("postgres", "statement"),
    ("kafka", "EndTxn"),
    ("kafka", "Produce"),
)


def watch(frames: FrameRules, timeline: Timeline) -> None:
    """Note what the job commits and writes, and stop none of it."""
    for service, kind in _WATCHED:
        frames.arm(service, Rule(Condition(kind), "park", name="survey", proceed=_noter(service, timeline)))


def _noter(service: Target, timeline: Timeline) -> Callable[[Frame], bool]:
    noted: Counter[str] = Counter()

    def note(frame: Frame) -> bool:
        told = _told(frame)
        if told is not None and noted.total() < _MOST_NOTED and noted[repr(told)] < _MOST_ALIKE:
            noted[repr(told)] += 1
            timeline.emit("frame.seen", service=service, frame=frame.kind, **told)
        return False  # not one to stop

    return note


def _told(frame: Frame) -> dict[str, Any] | None:
    facts = frame.facts
    if frame.kind in ("EndTxn", "Produce"):
        return {
            "topics": list(facts.get("topics") or ()),
            "transactional_id": facts.get("transactional_id"),
            "committed": facts.get("committed"),
        }
    texts = facts.get("transaction", ()) if frame.kind == "commit" else (facts.get("sql") or "",)
    writes = [text for text in texts if _WRITES.search(text)]
    return {"writes": writes[:_STATEMENTS_NOTED]} if writes else None


# -- reading it back --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Open:
    """A batch with data, and when it was between its plan and its commit."""

    query: str
    since: float
    until: float


def read(run_dir: Path, scenario: Scenario) -> Job:
    """The job, as one run of it without faults shows it. Reads the run directory only."""
    events = _events(run_dir / "events.jsonl")
    batches = _data_batches(events)
    seen = [event for event in events if event["kind"] == "frame.seen"]
    names = sorted({batch.query for batch in batches})
    sinks, gaps = _sinks(scenario, seen, batches, names)
    unwatched = " ".join(str(e.get("message")) for e in events if e["kind"] == "warning")
    own_manager = has_own_file_manager(scenario)
    return Job(
        queries=tuple(
            Query(
                name,
                sum(batch.query == name for batch in batches),
                waits=not own_manager and f"query {name} writes its checkpoint past" not in unwatched,
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


def _data_batches(events: Iterable[Mapping[str, Any]]) -> list[_Open]:
    planned: dict[tuple[str, int], float] = {}
    done = []
    for event in events:
        if event["kind"] not in ("batch.planned", "batch.committed"):
            continue
        name = (event["query"], event["batch"])
        if event["kind"] == "batch.planned":
            planned.setdefault(name, event["at"])
        elif event.get("records"):
            done.append(_Open(event["query"], planned.get(name, 0.0), event["at"]))
    return done


def _parks(events: Iterable[Mapping[str, Any]], query: str) -> tuple[Target, ...]:
    sinks = {event.get("sink") for event in events if event["kind"] == "point" and event.get("query") == query}
    known: tuple[Target, ...] = ("postgres", "kafka")
    return tuple(sink for sink in known if sink in sinks)


def _state_stores(checkpoint: Path, query: str) -> int:
    """Partitions of its stateful operators (``state/OPERATOR/PARTITION``), the metadata's folder left out."""
    folder = checkpoint if query == checkpoint.name else checkpoint / query
    return sum(1 for store in folder.glob("state/*/*") if store.is_dir() and store.name.isdigit())


def _sinks(
    scenario: Scenario, seen: list[dict[str, Any]], batches: list[_Open], queries: list[str]
) -> tuple[list[Sink], dict[str, str]]:
    found: list[tuple[float, Sink]] = []
    gaps: dict[str, str] = {}
    within = [
        _Seen(event, opened)
        for event in seen
        if (opened := {b.query: b.since for b in batches if b.since <= event["at"] <= b.until})
    ]
    for name, output in scenario.outputs.items():
        told = _table(output, within) if output.table is not None else _topic(output, within)
        if isinstance(told, str):
            gaps[name] = f"output {name}: {told}"
            continue
        sink, decisive = told
        query = output.query or _only(decisive, queries)
        if query is None:
            gaps[name] = f"output {name}: which query writes it cannot be told from its frames; say so under query:"
        elif len(queries) > 1 and sink.target == "kafka" and sink.frame.get("kind") is None:
            gaps[name] = f"output {name}: EndTxn names no topic, and with several queries it may be another's"
        elif not any((sink.target, sink.frame) == (other.target, other.frame) for _, other in found):
            after = min(one.event["at"] - one.opened.get(query, one.event["at"]) for one in decisive)
            found.append((after, replace(sink, query=query)))
    return [sink for _, sink in sorted(found, key=lambda item: item[0])], gaps


@dataclass(frozen=True)
class _Seen:
    """A frame that was seen while batches with data were open."""

    event: dict[str, Any]
    opened: Mapping[str, float]
    """Query -> when its batch was planned."""


_Found = tuple[Sink, list[_Seen]]
"""The sink, its query still to be told, and the frames that decide about it."""


def _table(output: OutputSpec, within: list[_Seen]) -> _Found | str:
    assert output.table is not None
    table = output.table.rpartition(".")[2].strip('"')
    # The verb too: Spark's JDBC writer looks at the table first, in a transaction of its own that ends in a COMMIT.
    pattern = rf"{_WRITING}[\s\S]*\b{re.escape(table)}\b"
    named = [one for one in within if any(re.search(pattern, t, re.IGNORECASE) for t in one.event.get("writes", ()))]
    commits = [one for one in within if one.event["frame"] == "commit"]
    statements = [one for one in named if one.event["frame"] == "statement"]
    write = {"kind": "statement", "sql": pattern, "nth": _nth(statements)} if statements else None
    of_table = [one for one in named if one.event["frame"] == "commit"]
    sink = Sink("postgres", "", {"transaction": pattern}, f"COMMIT of {table}", output.table, write=write)
    if of_table:
        return sink, of_table
    if commits:  # by way of another table, or of a function
        return replace(sink, frame={}, words="COMMIT"), commits
    alone = sum(1 for one in within if one.event["frame"] == "statement")
    if alone:
        return f"{alone} statements that write and no COMMIT were seen in its batches: each commits by itself"
    return "no COMMIT of a transaction that wrote was seen in any batch with data"


def _topic(output: OutputSpec, within: list[_Seen]) -> _Found | str:
    assert output.topic is not None
    produced = [one for one in within if one.event["frame"] == "Produce" and output.topic in one.event["topics"]]
    if not produced:
        return f"no Produce to {output.topic} was seen in any batch with data"
    first = {"kind": "Produce", "topic": output.topic}
    write = {**first, "nth": _nth(produced)}
    ended = [one for one in within if one.event["frame"] == "EndTxn" and one.event["committed"]]
    if ended and any(one.event["transactional_id"] for one in produced):
        return Sink("kafka", "", {}, "EndTxn", output.topic, write=write), ended
    words = f"first Produce to {output.topic}, which has no commit"
    return Sink("kafka", "", first, words, output.topic, commits=False, write=write), produced


def _nth(writes: list[_Seen]) -> int:
    """The second write of a batch, where the first one seen has two: something has arrived by then, and more is to come."""
    begun = [tuple(sorted(one.opened.items())) for one in writes]
    return 2 if begun.count(begun[0]) > 1 else 1


def _only(decisive: list[_Seen], queries: list[str]) -> str | None:
    """The one query that had a batch open at each of those frames."""
    if len(queries) == 1:
        return queries[0]
    common = set.intersection(*(set(one.opened) for one in decisive))
    return next(iter(common)) if len(common) == 1 else None
