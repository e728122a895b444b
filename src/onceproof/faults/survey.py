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
#: Verb and table.
_INTO = re.compile(rf'{WRITES}\s+(?:into\s+|from\s+)?(?:only\s+)?((?:"[^"]*"|[\w.$])+)', re.IGNORECASE)
#: Of a transactional id, what may be another in the next batch or run.
_CHANGING = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+", re.IGNORECASE)
#: Noted of each service: a job that commits every row would otherwise fill the disk.
_MOST_NOTED = 400
#: And of frames that say the same but for what changes from row to row: else one table's many rows would leave no room for
#: another's.
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
        if told is None:
            return False
        alike = _alike(frame.kind, told)
        if noted.total() < _MOST_NOTED and noted[alike] < _MOST_ALIKE:
            noted[alike] += 1
            timeline.emit("frame.seen", service=service, frame=frame.kind, **told)
        return False  # not one to stop

    return note


def _alike(kind: str, told: Mapping[str, Any]) -> str:
    """What it has in common with others of its kind: verbs and tables, topics, an id without its numbers."""
    if "writes" in told:
        into = {f"{verb} {table}".lower() for text in told["writes"] for verb, table in _INTO.findall(text)}
        return f"{kind} {sorted(into) or told['writes']}"
    who = _CHANGING.sub("#", str(told["transactional_id"]))
    return f"{kind} {told['topics']} {told['committed']} {who}"


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
    """A batch that held data or wrote some, and when it was between its plan and its commit."""

    query: str
    number: int
    since: float
    until: float
    read: bool
    """It held data."""
    wrote: bool
    """An output changed in it, as far as somebody looked."""


def read(run_dir: Path, scenario: Scenario) -> Job:
    """The job, as one run of it without faults shows it. Reads the run directory only."""
    events = _events(run_dir / "events.jsonl")
    every = _batches(events)
    batches = [batch for batch in every if batch.read or batch.wrote]
    seen = [event for event in events if event["kind"] == "frame.seen"]
    names = sorted({batch.query for batch in batches})
    sinks, gaps = _sinks(scenario, seen, batches, names)
    unwatched = " ".join(str(e.get("message")) for e in events if e["kind"] == "warning")
    own_manager = has_own_file_manager(scenario)
    return Job(
        queries=tuple(
            Query(
                name,
                sum(batch.query == name and batch.read for batch in batches),
                first_batch=FIRST + _only_odd_write(every, name),
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


def _batches(events: Iterable[Mapping[str, Any]]) -> list[_Open]:
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
            done.append(_Open(*name, planned.get(name, 0.0), event["at"], read, wrote))
    return done


def _only_odd_write(batches: list[_Open], query: str) -> bool:
    """Whether each batch with data is followed by one without, and only those with data were seen to write.

    Batch 0 is empty, so those with data are then the odd ones.
    """
    own = [batch for batch in batches if batch.query == query and batch.number > 0]
    without = [batch for batch in own if not batch.read]
    with_data = [batch for batch in own if batch.read]
    follows = 2 * len(without) > len(with_data)
    return follows and any(batch.wrote for batch in with_data) and not any(batch.wrote for batch in without)


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
    found: list[tuple[float, Sink, list[_Seen]]] = []
    gaps: dict[str, str] = {}
    within = [
        _Seen(event, opened)
        for event in seen
        if (opened := {b.query: b.since for b in batches if b.since <= event["at"] <= b.until})
    ]
    others = _ids_of_others(scenario, within)
    for name, output in scenario.outputs.items():
        several = len(queries) > 1
        told: _Found | str
        if output.table is not None:
            told = _table(output, within)
        elif output.topic is not None:
            told = _topic(output, within, others[name], several)
        else:
            told = f"it is {store_of(output).about}, and no frames lead there"
        if isinstance(told, str):
            gaps[name] = f"output {name}: {told}"
            continue
        sink, decisive = told
        query = output.query or _only(decisive, queries)
        if query is None:
            gaps[name] = f"output {name}: its frames do not show which query writes it; name it under query:"
        elif (
            not sink.frame
            and any(not other.frame and other.target == sink.target for _, other, _ in found)
            and (sink.target == "postgres" and _commits_in_a_batch(decisive) > 1)
        ):
            gaps[name] = f"output {name}: its own COMMIT cannot be distinguished from the others of a batch"
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


def _always_together(sink: Sink, own: list[_Seen], other: Sink, others: list[_Seen]) -> bool:
    """Whether no batch was seen in which both committed, and one of them without the other."""
    if (
        sink is other
        or not (sink.commits and other.commits)
        or (sink.query, sink.target) != (other.query, other.target)
    ):
        return False
    mine, theirs = (_commits_by_batch(seen, sink.query) for seen in (own, others))
    common = mine.keys() & theirs.keys()
    return bool(common) and all(mine[batch] == theirs[batch] for batch in common)


def _commits_by_batch(seen: list[_Seen], query: str) -> dict[float | None, set[int]]:
    """When a batch of the query was planned -> its frames among those."""
    frames: dict[float | None, set[int]] = {}
    for one in seen:
        frames.setdefault(one.opened.get(query), set()).add(id(one.event))
    return frames


@dataclass(frozen=True)
class _Seen:
    """A frame that was seen while batches were open that held data or wrote some."""

    event: dict[str, Any]
    opened: Mapping[str, float]
    """Query -> when its batch was planned."""


_Found = tuple[Sink, list[_Seen]]
"""The sink, its query still to be told, and the frames that decide about it."""


def _table(output: OutputSpec, within: list[_Seen]) -> _Found | str:
    assert output.table is not None
    table = output.table.rpartition(".")[2].strip('"')
    # The verb too: Spark's JDBC writer looks at the table first, in a transaction of its own that ends in a COMMIT.
    pattern = writes_to(table)
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


def _ids_of_others(scenario: Scenario, within: list[_Seen]) -> dict[str, set[str]]:
    """Output -> the transactional ids of the producers of other topics that are outputs, and not of its own."""
    ids = {
        name: {
            str(one.event["transactional_id"])
            for one in within
            if one.event["frame"] == "Produce" and output.topic in one.event["topics"] and one.event["transactional_id"]
        }
        for name, output in scenario.outputs.items()
    }
    return {name: set().union(*ids.values()) - own for name, own in ids.items()}


def _commits_in_a_batch(commits: list[_Seen]) -> int:
    return max(Counter(tuple(sorted(one.opened.items())) for one in commits).values(), default=0)


def _topic(output: OutputSpec, within: list[_Seen], others: set[str], several: bool) -> _Found | str:
    """``others``: transactional ids of which the EndTxn is another output's. ``several``: the job has more than one query."""
    assert output.topic is not None
    produced = [one for one in within if one.event["frame"] == "Produce" and output.topic in one.event["topics"]]
    if not produced:
        return f"no Produce to {output.topic} was seen in any batch with data"
    first = {"kind": "Produce", "topic": output.topic}
    write = {**first, "nth": _nth(produced)}
    ended = [one for one in within if one.event["frame"] == "EndTxn" and one.event["committed"]]
    own = {str(one.event["transactional_id"]) for one in produced if one.event["transactional_id"]}
    if ended and own and not others and not several:
        return Sink("kafka", "", {}, "EndTxn", output.topic, write=write), ended
    if ended and own:
        ended = [one for one in ended if one.event["transactional_id"] in own]
        named = _pattern(own, others)
        if named is None or not ended:
            return "its EndTxn cannot be distinguished from another's: it names no topic, and the transactional ids are alike"
        return Sink(
            "kafka", "", {"transactional_id": named}, f"EndTxn of {output.topic}", output.topic, write=write
        ), ended
    words = f"first Produce to {output.topic}, which has no commit"
    return Sink("kafka", "", first, words, output.topic, commits=False, write=write), produced


def _pattern(own: set[str], others: set[str]) -> str | None:
    """A regular expression for these ids, and for those of later batches where they are numbered; none of ``others`` fits."""
    for alternatives in ({_general(one) for one in own}, {re.escape(one) for one in own}):
        pattern = rf"^(?:{'|'.join(sorted(alternatives))})$"
        if not any(re.search(pattern, other, re.IGNORECASE) for other in others):
            return pattern
    return None


def _general(name: str) -> str:
    """A regular expression for it with other numbers and UUIDs."""
    changing = [r"\d+" if found.isdigit() else "[0-9a-f-]{36}" for found in _CHANGING.findall(name)]
    fixed = [re.escape(part) for part in _CHANGING.split(name)]
    return "".join(part for pair in zip(fixed, [*changing, ""], strict=True) for part in pair)


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
