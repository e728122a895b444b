from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onceproof.chaos.proxy.frames import Frame
from onceproof.chaos.proxy.rules import Rule
from onceproof.events import Timeline
from onceproof.qualify.survey import read, watch
from onceproof.scenario.load import find, load
from onceproof.scenario.model import Scenario


def stored(folder: Path, *seen: dict[str, Any], query: str = "last_seen") -> Path:
    """A run with one empty and one full batch, and these events while the full one was open."""
    told = [
        {"at": 1.0, "kind": "batch.planned", "query": query, "batch": 0},
        {"at": 2.0, "kind": "batch.committed", "query": query, "batch": 0, "records": 0},
        {"at": 3.0, "kind": "batch.planned", "query": query, "batch": 1},
        *({"at": 3.5, "kind": "frame.seen", **event} if "kind" not in event else event for event in seen),
        {"at": 4.0, "kind": "batch.committed", "query": query, "batch": 1, "records": 9},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    return folder


def commit(*writes: str) -> dict[str, Any]:
    return {"service": "postgres", "frame": "commit", "writes": list(writes)}


def produce(topic: str, transactional_id: str | None = None) -> dict[str, Any]:
    return {
        "service": "kafka",
        "frame": "Produce",
        "topics": [topic],
        "transactional_id": transactional_id,
        "committed": None,
    }


def test_the_commit_of_the_outputs_table_is_named(tmp_path: Path, upsert: Scenario) -> None:
    run = stored(
        tmp_path, commit("INSERT INTO audit VALUES (1)"), commit("INSERT INTO last_seen (tailnum) VALUES ($1)")
    )
    (sink,) = (job := read(run, upsert)).sinks
    assert (sink.target, sink.query, sink.words) == ("postgres", "last_seen", "COMMIT of last_seen")
    assert [(query.name, query.data_batches, query.waits) for query in job.queries] == [("last_seen", 1, True)]
    assert job.queries[0].state_stores == 0


def test_a_write_in_the_middle_and_the_order_of_sinks_are_seen(tmp_path: Path) -> None:
    scenario = load(find("foreign-two-sinks"))
    each = {"service": "postgres", "frame": "statement", "writes": ["INSERT INTO departures VALUES (1)"]}
    late = {"at": 3.9, "kind": "frame.seen", **produce("departures")}
    seen = (each, each, commit("INSERT INTO departures VALUES (1)"), late)
    table, topic = read(stored(tmp_path, *seen, query="departures"), scenario).sinks
    assert (table.target, table.commits, table.place) == ("postgres", True, "departures")
    assert table.write is not None and (table.write["kind"], table.write["nth"]) == ("statement", 2)
    assert (topic.target, topic.commits, topic.place) == ("kafka", False, "departures")
    assert topic.write == {"kind": "Produce", "topic": "departures", "nth": 1}


def test_looking_at_a_table_is_not_writing_to_it(tmp_path: Path, upsert: Scenario) -> None:
    (sink,) = read(stored(tmp_path, commit("SELECT * FROM last_seen; UPDATE other SET a = 1")), upsert).sinks
    assert sink.words == "COMMIT"


def test_a_frame_outside_every_batch_with_data_is_nobodys(tmp_path: Path, upsert: Scenario) -> None:
    early = {"at": 1.5, "kind": "frame.seen", **commit("INSERT INTO last_seen VALUES (1)")}
    job = read(stored(tmp_path, early), upsert)
    assert job.sinks == ()
    assert job.no_commit() == "output last_seen: no COMMIT of a transaction that wrote was seen in any batch with data"


def test_a_sink_that_commits_each_statement_has_no_commit_to_lose(tmp_path: Path, upsert: Scenario) -> None:
    each = {"service": "postgres", "frame": "statement", "writes": ["INSERT INTO last_seen VALUES (1)"]}
    job = read(stored(tmp_path, each, each), upsert)
    assert "2 statements that write and no COMMIT were seen" in job.no_commit()


def test_a_topic_is_written_with_and_without_transactions(tmp_path: Path) -> None:
    scenario = load(find("foreign-kafka-sink"))
    (plain,) = read(stored(tmp_path, produce("departures")), scenario).sinks
    assert plain.frame == {"kind": "Produce", "topic": "departures"}
    end = {"service": "kafka", "frame": "EndTxn", "topics": [], "transactional_id": "t", "committed": True}
    (transactional,) = read(stored(tmp_path, produce("departures", "t"), end), scenario).sinks
    assert (transactional.frame, transactional.words) == ({}, "EndTxn")
    assert "no Produce to departures" in read(stored(tmp_path, produce("other")), scenario).no_commit()


def test_state_parked_sinks_and_a_checkpoint_past_the_gate_are_seen(tmp_path: Path, upsert: Scenario) -> None:
    for partition in ("0", "1", "_metadata"):
        (tmp_path / "checkpoint" / "last_seen" / "state" / "0" / partition).mkdir(parents=True)
    parked = {"at": 3.6, "kind": "point", "sink": "postgres", "query": "last_seen", "batch": 1, "point": "x"}
    past = {"at": 1.0, "kind": "warning", "message": "query last_seen writes its checkpoint past onceproof's ..."}
    (query,) = read(stored(tmp_path, parked, past), upsert).queries
    assert (query.state_stores, query.parks, query.waits) == (2, ("postgres",), False)


def test_the_rules_note_and_stop_nothing(tmp_path: Path) -> None:
    armed: list[tuple[str, Rule]] = []

    class Frames:
        def arm(self, service: str, rule: Rule) -> None:
            armed.append((service, rule))

    timeline = Timeline(tmp_path / "events.jsonl")
    watch(Frames(), timeline)  # type: ignore[arg-type]
    frames = [
        Frame(b"", "commit", {"sql": "COMMIT", "transaction": ["BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"]}),
        Frame(b"", "commit", {"sql": "COMMIT", "transaction": ["BEGIN", "SELECT 1", "COMMIT"]}),
        Frame(b"", "statement", {"sql": "SELECT 1", "transaction": []}),
        Frame(b"", "Produce", {"topics": ["t"], "transactional_id": None}),
    ]
    for frame in [
        *frames,
        *[Frame(b"", "statement", {"sql": "INSERT INTO many VALUES ($1)", "transaction": []})] * 900,
    ]:
        for _, rule in armed:
            assert not rule.takes(frame)
    assert not any(rule.takes(Frame(b"", "statement", {"sql": "DELETE FROM few"})) for _, rule in armed)
    timeline.close()
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["service"], event["frame"]) for event in told[:2]] == [("postgres", "commit"), ("kafka", "Produce")]
    assert len(told) < 100 and told[-1]["writes"] == ["DELETE FROM few"], "one table's rows leave room for another's"
    assert told[0]["writes"] == ["INSERT INTO t VALUES (1)"]
