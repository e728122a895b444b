from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.timeline import Timeline
from onceproof.faults.job import at_frames
from onceproof.faults.survey import read, watch
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Rule
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find


def stored(folder: Path, *seen: dict[str, Any], query: str = "last_seen") -> Path:
    """Write the timeline of a run with an empty and a full batch, and these events while the full one was open."""
    timeline = [
        {"at": 1.0, "kind": "batch.planned", "query": query, "batch": 0},
        {"at": 2.0, "kind": "batch.committed", "query": query, "batch": 0, "records": 0},
        {"at": 3.0, "kind": "batch.planned", "query": query, "batch": 1},
        *({"at": 3.5, "kind": "frame.seen", **event} if "kind" not in event else event for event in seen),
        {"at": 4.0, "kind": "batch.committed", "query": query, "batch": 1, "records": 9},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timeline))
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


def test_reading_a_table_is_not_writing_to_it(tmp_path: Path, upsert: Scenario) -> None:
    (sink,) = read(stored(tmp_path, commit("SELECT * FROM last_seen; UPDATE other SET a = 1")), upsert).sinks
    assert sink.words == "COMMIT"


def test_a_frame_outside_every_batch_with_data_is_ignored(tmp_path: Path, upsert: Scenario) -> None:
    early = {"at": 1.5, "kind": "frame.seen", **commit("INSERT INTO last_seen VALUES (1)")}
    job = read(stored(tmp_path, early), upsert)
    assert job.sinks == ()
    assert job.no_commit() == "output last_seen: no COMMIT of a transaction that wrote was seen in any batch with data"


def test_a_sink_that_commits_each_statement_has_no_commit_to_lose(tmp_path: Path, upsert: Scenario) -> None:
    each = {"service": "postgres", "frame": "statement", "writes": ["INSERT INTO last_seen VALUES (1)"]}
    job = read(stored(tmp_path, each, each), upsert)
    assert "2 statements that write and no COMMIT were seen" in job.no_commit()


def test_a_topic_can_be_written_with_and_without_transactions(tmp_path: Path) -> None:
    scenario = load(find("foreign-kafka-sink"))
    (plain,) = read(stored(tmp_path, produce("departures")), scenario).sinks
    assert plain.frame == {"kind": "Produce", "topic": "departures"}
    end = {"service": "kafka", "frame": "EndTxn", "topics": [], "transactional_id": "t", "committed": True}
    (transactional,) = read(stored(tmp_path, produce("departures", "t"), end), scenario).sinks
    assert (transactional.frame, transactional.words) == ({}, "EndTxn")
    assert "no Produce to departures" in read(stored(tmp_path, produce("other")), scenario).no_commit()


def test_state_parked_sinks_and_a_bypassed_checkpoint_file_system_are_seen(tmp_path: Path, upsert: Scenario) -> None:
    for partition in ("0", "1", "_metadata"):
        (tmp_path / "checkpoint" / "last_seen" / "state" / "0" / partition).mkdir(parents=True)
    parked = {"at": 3.6, "kind": "point", "sink": "postgres", "query": "last_seen", "batch": 1, "point": "x"}
    past = {"at": 1.0, "kind": "warning", "message": "query last_seen writes its checkpoint past onceproof's ..."}
    (query,) = read(stored(tmp_path, parked, past), upsert).queries
    assert (query.state_stores, query.parks, query.waits) == (2, ("postgres",), False)


def test_the_rules_record_frames_and_stop_none(tmp_path: Path) -> None:
    armed: list[tuple[str, Rule]] = []

    class Frames:
        def board(self, service: str) -> SimpleNamespace:
            return SimpleNamespace(arm=lambda rule: armed.append((service, rule)))

    timeline = Timeline(tmp_path / "events.jsonl")
    watch(Frames(), timeline, str)  # type: ignore[arg-type]
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
    timeline = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["service"], event["frame"]) for event in timeline[:2]] == [
        ("postgres", "commit"),
        ("kafka", "Produce"),
    ]
    assert len(timeline) < 100 and timeline[-1]["writes"] == ["DELETE FROM few"], (
        "rows of one table leave room for those of another"
    )
    assert timeline[0]["writes"] == ["INSERT INTO t VALUES (1)"]


def end(transactional_id: str) -> dict[str, Any]:
    return {
        "service": "kafka",
        "frame": "EndTxn",
        "topics": [],
        "transactional_id": transactional_id,
        "committed": True,
    }


def two_topics(second: str = "delays") -> Scenario:
    scenario = load(find("foreign-kafka-sink"))
    (name,) = scenario.outputs
    other = scenario.outputs[name].model_copy(update={"topic": second})
    return scenario.model_copy(update={"outputs": {name: scenario.outputs[name], "other": other}})


def test_the_commit_of_each_topic_is_found_by_its_transactional_id(tmp_path: Path) -> None:
    seen = (produce("departures", "d-1"), end("d-1"), produce("delays", "late-1"), end("late-1"))
    job = read(stored(tmp_path, *seen), two_topics())
    assert [(sink.place, sink.frame) for sink in job.sinks] == [
        ("departures", {"transactional_id": r"^(?:d\-\d+)$"}),
        ("delays", {"transactional_id": r"^(?:late\-\d+)$"}),
    ]
    assert len(job.commits) == 2 and not job.gaps


def test_transactional_ids_that_differ_only_in_a_number_are_distinguished(tmp_path: Path) -> None:
    seen = (produce("departures", "sink-1"), end("sink-1"), produce("delays", "sink-2"), end("sink-2"))
    job = read(stored(tmp_path, *seen), two_topics())
    assert [sink.frame for sink in job.sinks] == [
        {"transactional_id": r"^(?:sink\-1)$"},
        {"transactional_id": r"^(?:sink\-2)$"},
    ]


def test_a_transactional_id_that_is_random_at_each_start_is_recognised(tmp_path: Path) -> None:
    ids = ("d-0f3c1a52-11aa-4bcd-9e0f-0123456789ab", "d-ffffffff-11aa-4bcd-9e0f-0123456789ab")
    seen = (produce("departures", ids[0]), end(ids[0]), produce("delays", "l"), end("l"))
    first = read(stored(tmp_path, *seen), two_topics()).sinks[0]
    assert all(re.search(first.frame["transactional_id"], one) for one in ids)
    assert not re.search(first.frame["transactional_id"], "l")


def test_two_topics_of_one_transaction_share_a_commit_and_have_a_place_each(tmp_path: Path) -> None:
    seen = (produce("departures", "t"), produce("delays", "t"), end("t"))
    job = read(stored(tmp_path, *seen), two_topics())
    assert [sink.place for sink in job.places] == ["departures", "delays"]
    assert [sink.frame for sink in job.commits] == [{}]


def test_two_tables_whose_commits_name_neither_cannot_be_distinguished(tmp_path: Path, upsert: Scenario) -> None:
    other = upsert.outputs["last_seen"].model_copy(update={"table": "totals"})
    both = upsert.model_copy(update={"outputs": {**upsert.outputs, "totals": other}})
    one = read(stored(tmp_path, commit("INSERT INTO staging VALUES (1)")), both)
    assert len(one.commits) == 1 and not one.gaps
    twice = (commit("INSERT INTO staging VALUES (1)"), commit("INSERT INTO buffer VALUES (1)"))
    job = read(stored(tmp_path, *twice), both)
    assert list(job.gaps) == ["totals"] and "its own COMMIT cannot be distinguished" in job.gaps["totals"]


def test_many_statements_with_literals_leave_room_for_another_table(tmp_path: Path) -> None:
    armed: list[Rule] = []

    class Frames:
        def board(self, _service: str) -> SimpleNamespace:
            return SimpleNamespace(arm=armed.append)

    timeline = Timeline(tmp_path / "events.jsonl")
    watch(Frames(), timeline, lambda topic: topic.removeprefix("run."))  # type: ignore[arg-type]
    sent = [Frame(b"", "statement", {"sql": f"INSERT INTO many VALUES ({n}, 'row {n}')"}) for n in range(900)]
    sent += [
        Frame(b"", "commit", {"transaction": [sent[0].facts["sql"]]}),
        Frame(b"", "statement", {"sql": "COPY few FROM"}),
    ]
    sent += [Frame(b"", "EndTxn", {"transactional_id": f"d-{n}", "committed": True}) for n in range(900)]
    sent += [
        Frame(b"", "Produce", {"topics": [f"run.{name}"], "transactional_id": "d-1"})
        for name in ["out1"] * 99 + ["out2"]
    ]
    for frame in sent:
        for rule in armed:
            rule.takes(frame)
    timeline.close()
    timeline = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(timeline) == 40 + 1 + 1 + 40 + 40 + 1
    assert timeline[40]["frame"] == "commit" and timeline[41]["writes"] == ["COPY few FROM"]
    assert timeline[-1]["topics"] == ["out2"]


def test_two_queries_that_write_one_table_cannot_be_distinguished(tmp_path: Path, upsert: Scenario) -> None:
    spec = upsert.outputs["last_seen"]
    outputs = {query: spec.model_copy(update={"query": query}) for query in ("last_seen", "late")}
    seen = commit("INSERT INTO last_seen VALUES (1)")
    job = read(stored(tmp_path, seen), upsert.model_copy(update={"outputs": outputs}))
    assert [sink.query for sink in job.sinks] == ["last_seen"] and "look the same" in job.gaps["late"]


def turns(folder: Path, *, data_writes: bool, no_data_writes: bool, chunks: int = 3) -> Path:
    """Write a timeline in which batches with and without input take turns; each batch that writes has a commit."""
    timeline: list[dict[str, Any]] = []
    for number in range(2 * chunks + 1):
        read = 9 * (number % 2)
        writes = number > 0 and (data_writes if read else no_data_writes)
        batch = {"query": "last_seen", "batch": number}
        timeline.append({"at": 10.0 * number, "kind": "batch.planned", **batch})
        if writes:
            seen = commit("INSERT INTO last_seen VALUES (1)")
            timeline.append({"at": 10.0 * number + 1, "kind": "frame.seen", **seen})
        wrote = ["last_seen"] if writes else []
        timeline.append({"at": 10.0 * number + 2, "kind": "batch.committed", **batch, "records": read, "wrote": wrote})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timeline))
    return folder


def test_the_commit_of_a_batch_without_input_is_seen_too(tmp_path: Path, upsert: Scenario) -> None:
    job = read(turns(tmp_path, data_writes=False, no_data_writes=True), upsert)
    assert [sink.words for sink in job.sinks] == ["COMMIT of last_seen"] and not job.gaps
    assert job.queries[0].data_batches == 3


@pytest.mark.parametrize(
    ("data_writes", "no_data_writes", "first"), [(False, True, 2), (True, False, 3), (True, True, 2), (False, False, 2)]
)
def test_the_first_fault_strikes_at_a_batch_that_writes(
    tmp_path: Path, upsert: Scenario, data_writes: bool, no_data_writes: bool, first: int
) -> None:
    job = read(turns(tmp_path, data_writes=data_writes, no_data_writes=no_data_writes), upsert)
    assert job.first_batches() == {None: first}


@pytest.mark.parametrize(
    ("transactions", "words"),
    [
        ([("last_seen", "totals")], []),
        ([("last_seen",), ("last_seen", "totals")], ["COMMIT of totals, after last_seen"]),
        ([("last_seen",), ("totals",)], ["COMMIT of totals, after last_seen"]),
    ],
    ids=["one transaction", "a part of it before", "a transaction each"],
)
def test_two_tables_of_one_transaction_have_no_point_between_them(
    tmp_path: Path, upsert: Scenario, transactions: list[tuple[str, ...]], words: list[str]
) -> None:
    """For example, a job that writes bad records, if there are any, in the transaction of the good ones."""
    other = upsert.outputs["last_seen"].model_copy(update={"table": "totals"})
    both = upsert.model_copy(update={"outputs": {**upsert.outputs, "totals": other}})
    seen = [
        {
            "at": 3.2 + number / 10,
            "kind": "frame.seen",
            **commit(*(f"INSERT INTO {table} VALUES (1)" for table in tables)),
        }
        for number, tables in enumerate(transactions)
    ]
    without = [
        {"at": 5.0, "kind": "batch.planned", "query": "last_seen", "batch": 2},
        {"at": 5.5, "kind": "frame.seen", **commit("INSERT INTO last_seen VALUES (1)")},
        {"at": 6.0, "kind": "batch.committed", "query": "last_seen", "batch": 2, "records": 9},
    ]
    job = read(stored(tmp_path, *seen, *without), both)
    between = [one for one in at_frames(job, {"target": "driver"}) if one.point is Point.BETWEEN_SINKS]
    assert [one.words for one in between if one.n_a is None] == words
    assert [one.n_a for one in between if one.n_a] == ([] if words else ["its sinks share a commit"])
