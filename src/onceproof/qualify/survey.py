"""The first run of a qualification, without faults: which frames the job sends is noted, and read back as a `Job`.

Rules that stop nothing are armed on the protocol proxy; each frame that they see becomes an event ``frame.seen`` of the run.
Which batch was open then is known from the events of the batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    noted = 0

    def note(frame: Frame) -> bool:
        nonlocal noted
        told = _told(frame)
        if told is not None and noted < _MOST_NOTED:
            noted += 1
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
        postgres=scenario.stack.postgres is not None,
        frames=len(seen),
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
    sinks: list[Sink] = []
    gaps: dict[str, str] = {}
    during = [(event, {b.query for b in batches if b.since <= event["at"] <= b.until}) for event in seen]
    within = [(event, open_) for event, open_ in during if open_]
    for name, output in scenario.outputs.items():
        found = _table(output, within) if output.table is not None else _topic(output, within)
        if isinstance(found, str):
            gaps[name] = f"output {name}: {found}"
            continue
        frame, words, opened = found
        query = output.query or _only(opened, queries)
        if query is None:
            gaps[name] = f"output {name}: which query writes it cannot be told from its frames; say so under query:"
            continue
        target: Target = "postgres" if output.table is not None else "kafka"
        sink = Sink(target, query, frame, words)
        if len(queries) > 1 and target == "kafka" and frame.get("kind") is None:
            gaps[name] = f"output {name}: EndTxn names no topic, and with several queries it may be another's"
        elif sink not in sinks:
            sinks.append(sink)
    return sinks, gaps


_Within = list[tuple[dict[str, Any], set[str]]]
_Found = tuple[dict[str, Any], str, list[set[str]]]


def _table(output: OutputSpec, within: _Within) -> _Found | str:
    assert output.table is not None
    table = output.table.rpartition(".")[2].strip('"')
    # The verb too: Spark's JDBC writer looks at the table first, in a transaction of its own that ends in a COMMIT.
    pattern = rf"{_WRITING}[\s\S]*\b{re.escape(table)}\b"
    commits = [(event, open_) for event, open_ in within if event["frame"] == "commit"]
    named = [open_ for event, open_ in commits if any(re.search(pattern, t, re.IGNORECASE) for t in event["writes"])]
    if named:
        return {"transaction": pattern}, f"COMMIT of {table}", named
    if commits:  # by way of another table, or of a function
        return {}, "COMMIT", [open_ for _, open_ in commits]
    alone = sum(1 for event, _ in within if event["frame"] == "statement")
    if alone:
        return f"{alone} statements that write and no COMMIT were seen in its batches: each commits by itself"
    return "no COMMIT of a transaction that wrote was seen in any batch with data"


def _topic(output: OutputSpec, within: _Within) -> _Found | str:
    produced = [
        (event, open_) for event, open_ in within if event["frame"] == "Produce" and output.topic in event["topics"]
    ]
    ended = [open_ for event, open_ in within if event["frame"] == "EndTxn" and event["committed"]]
    if ended and any(event["transactional_id"] for event, _ in produced):
        return {}, "EndTxn", ended
    if produced:
        first = {"kind": "Produce", "topic": output.topic}
        return first, f"first Produce to {output.topic}, which has no commit", [open_ for _, open_ in produced]
    return f"no Produce to {output.topic} was seen in any batch with data"


def _only(opened: list[set[str]], queries: list[str]) -> str | None:
    """The one query that had a batch open at each of those frames."""
    if len(queries) == 1:
        return queries[0]
    common = set.intersection(*opened)
    return next(iter(common)) if len(common) == 1 else None
