from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from onceproof.faults.contract import faults
from onceproof.faults.job import Job, Query, at_commit, at_frames
from onceproof.judge.findings import Outcome
from onceproof.qualify.cells import SOME_BATCH, Cell, CellState, cells, kinds, outcome
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.compose.profile import ComposeProfile
from onceproof.stack.external.profile import KafkaProfile, StackProfile
from onceproof.stores.frames import Sink

from .conftest import TABLE


def reachable(found: list[Cell]) -> set[tuple[str, str]]:
    return {(cell.kind, cell.point.value) for cell in found if cell.reachable}


def test_a_foreign_job_has_the_points_that_its_checkpoint_and_its_frames_show(matrix: list[Cell]) -> None:
    assert reachable(matrix) >= {
        ("crash", "before-offset-log"),
        ("crash", "after-offset-log"),
        ("crash", "after-sink-commit"),
        ("crash", "after-commit-log"),
        ("lost-ack", "commit-unacknowledged"),
        ("lost-request", "commit-lost"),
        ("reject", "after-offset-log"),
        ("stall", "after-offset-log"),
        ("crash-at-frame", "in-tasks"),
        ("crash-at-frame", "before-sink-commit"),
    }
    columns = {cell.column for cell in matrix}
    assert columns >= {"crash", "lost-ack", "lost-request", "reject", "stall"} and "crash-at-frame" not in columns
    assert {(c.column, c.point) for c in matrix} == {(column, point) for column in columns for point in Point}
    for cell in matrix:
        assert cell.reachable or cell.why, cell.name
    assert len({cell.name for cell in matrix}) == len(matrix)


def test_the_cells_that_show_most_come_first(matrix: list[Cell]) -> None:
    first = [(cell.kind, cell.point.value) for cell in matrix[:4]]
    assert first == [
        ("crash", "after-sink-commit"),
        ("lost-ack", "commit-unacknowledged"),
        ("lost-request", "commit-lost"),
        ("reject", "after-offset-log"),
    ]
    assert {cell.kind for cell in matrix if cell.reachable} >= {"stall"}
    rest = [cell.kind for cell in matrix if cell.reachable]
    assert rest[-rest.count("stall") :] == ["stall"] * rest.count("stall"), "zombies come after the matrix"
    assert [cell.reachable for cell in matrix] == sorted((c.reachable for c in matrix), reverse=True)


def test_every_cell_offered_is_a_valid_fault_of_its_kind(matrix: list[Cell], upsert: Scenario) -> None:
    for cell in (one for one in matrix if one.reachable):
        kind = faults.get(cell.kind, cell.target, cell.point)
        spec = kind.Spec.model_validate(cell.fault(SOME_BATCH))
        assert kind.problems(spec, upsert) == []
    assert not [cell.why for cell in matrix if "refuses its own offer" in (cell.why or "")]


def test_a_fault_that_needs_control_of_a_service_is_n_a_where_the_stack_gives_none(upsert: Scenario) -> None:
    job = Job((Query("last_seen", 6),), (TABLE,))

    external = StackProfile(
        name="staging", provider="external", chaos="allowed", kafka=KafkaProfile(bootstrap="kafka.example:9093")
    )

    def of_server(profile: StackProfile | None) -> list[tuple[CellState, str | None]]:
        found = cells(job, upsert, profile)
        return [(cell.state, cell.why) for cell in found if (cell.kind, cell.target) == ("crash", "postgres")]

    assert [state for state, _ in of_server(None)] == [CellState.PENDING]
    assert of_server(ComposeProfile.planned()) == of_server(None)
    assert of_server(external) == [(CellState.N_A, "it needs control of Postgres")]
    sessions = [cell for cell in cells(job, upsert, external) if cell.target == "postgres-backend"]
    assert [cell.reachable for cell in sessions] == [True], "a session can be ended without control of the server"


def test_cells_of_an_output_without_a_known_commit_are_not_reached(upsert: Scenario) -> None:
    why = "output last_seen: 12 statements that write and no COMMIT were seen in its batches: each commits by itself"
    found = cells(Job((Query("last_seen", 6),), (), {"last_seen": why}), upsert)
    lost = [cell for cell in found if cell.point is Point.COMMIT_LOST and cell.kind == "lost-request"]
    assert [(cell.state, cell.why) for cell in lost] == [(CellState.NOT_REACHED, why)]
    assert outcome(replace(c, **HELD) if c.state is CellState.PENDING else c for c in found) is Outcome.INCONCLUSIVE  # type: ignore[arg-type]
    with_audit = cells(Job((Query("last_seen", 6),), (TABLE,), {"audit": "output audit: no COMMIT was seen"}), upsert)
    for kind in ("lost-ack", "lost-request", "reject", "crash-at-frame"):
        titles = [c.title() for c in with_audit if c.kind == kind and c.why == "output audit: no COMMIT was seen"]
        assert titles and all(title.endswith("(output audit)") for title in titles), kind
        assert any(c.kind == kind and c.state is CellState.PENDING for c in with_audit)
    between = [c.state for c in with_audit if c.point is Point.BETWEEN_SINKS and c.column == "crash"]
    assert between == [CellState.NOT_REACHED], "there are two sinks, and the commit of one is unknown"
    assert len({cell.name for cell in with_audit}) == len(with_audit)


def test_state_and_parked_sinks_make_their_points_reachable(upsert: Scenario) -> None:
    query = Query("last_seen", 6, state_stores=2, parks=("postgres",))
    found = cells(Job((query,), ()), upsert)
    assert reachable(found) >= {
        ("crash", "state-partly-committed"),
        ("crash", "before-sink-commit"),
        ("lost-ack", "before-sink-commit"),
        ("lost-request", "before-sink-commit"),
    }


def test_a_job_that_bypasses_the_checkpoint_file_system_has_no_cell_before_the_offset_log(upsert: Scenario) -> None:
    found = cells(Job((Query("last_seen", 6, waits=False),), ()), upsert)
    (before,) = [c for c in found if c.kind == "crash" and c.point is Point.BEFORE_OFFSET_LOG]
    assert before.state is CellState.N_A and "through onceproof's checkpoint file system" in str(before.why)


def test_each_of_several_queries_has_cells_that_name_it() -> None:
    both = load(find("foreign-two-queries"))
    sinks = (
        Sink("postgres", "a", {"transaction": "by_airport"}, "COMMIT of by_airport"),
        Sink("postgres", "b", {"transaction": "last_seen"}, "COMMIT of last_seen"),
    )
    found = cells(Job((Query("a", 3), Query("b", 3)), sinks), both)
    crashes = [c for c in found if c.kind == "crash" and c.point is Point.AFTER_SINK_COMMIT]
    assert [c.fault(2)["at"]["query"] for c in crashes] == ["a", "b"]
    acks = [c for c in found if c.kind == "lost-ack" and c.point is Point.COMMIT_UNACKNOWLEDGED]
    assert [(c.target, c.query) for c in acks] == [("postgres", "a"), ("postgres", "b")]


def test_a_cell_round_trips_through_json(matrix: list[Cell]) -> None:
    for cell in (*matrix, replace(matrix[0], verdict=Outcome.VIOLATED, anomalies={"duplicate": 3}, runs=("runs/a",))):
        assert TypeAdapter(Cell).validate_python(json.loads(json.dumps(cell.to_json(), default=str))) == cell


HELD = {"state": CellState.EXERCISED, "verdict": Outcome.HELD}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, Outcome.HELD),
        ({"state": CellState.APPROXIMATE}, Outcome.HELD),
        ({"verdict": Outcome.INCONCLUSIVE}, Outcome.INCONCLUSIVE),
        ({"state": CellState.NOT_REACHED, "verdict": None}, Outcome.INCONCLUSIVE),
        ({"state": CellState.PENDING, "verdict": None}, Outcome.INCONCLUSIVE),
        ({"verdict": Outcome.VIOLATED}, Outcome.VIOLATED),
        ({"state": CellState.NOT_REACHED, "verdict": Outcome.VIOLATED}, Outcome.VIOLATED),
        ({"state": CellState.N_A, "verdict": None}, Outcome.HELD),
    ],
)
def test_one_cell_decides_the_outcome_of_the_matrix(
    matrix: list[Cell], changed: dict[str, object], wanted: Outcome
) -> None:
    all_held = [replace(cell, **HELD) for cell in matrix[:3]]  # type: ignore[arg-type]
    assert outcome([*all_held, replace(all_held[0], **changed)]) is wanted  # type: ignore[arg-type]


def test_a_matrix_with_nothing_reachable_proves_nothing(matrix: list[Cell]) -> None:
    assert outcome([replace(cell, state=CellState.N_A) for cell in matrix]) is Outcome.INCONCLUSIVE


def test_a_batch_with_two_sinks_has_a_point_between_them(upsert: Scenario) -> None:
    sinks = (
        Sink("postgres", "q", {"transaction": "a"}, "COMMIT of a", "a"),
        Sink("postgres", "q", {"transaction": "b"}, "COMMIT of b", "b"),
    )
    found = cells(Job((Query("q", 6),), sinks), upsert)
    (between,) = [c for c in found if c.point is Point.BETWEEN_SINKS and c.reachable]
    assert between.words == "COMMIT of b, after a"
    assert between.fault(2)["frame"] == {"transaction": "b"}
    alone = cells(Job((Query("q", 6),), sinks[:1]), upsert)
    (none,) = [c for c in alone if c.point is Point.BETWEEN_SINKS and c.column == "crash"]
    assert (none.state, none.why) == (CellState.N_A, "its batches write to a single sink")


def test_two_queries_with_a_sink_each_share_no_commit() -> None:
    sinks = tuple(Sink("postgres", name, {"transaction": name}, f"COMMIT of {name}", name) for name in "pq")
    (between,) = [
        one
        for one in at_frames(Job((Query("p", 3), Query("q", 3)), sinks), {"target": "driver"})
        if one.point is Point.BETWEEN_SINKS
    ]
    assert between.n_a == "its batches write to a single sink"


def test_the_order_of_a_querys_sinks_ignores_the_writes_of_other_queries() -> None:
    def sink(name: str, query: str) -> Sink:
        return Sink("postgres", query, {"transaction": name}, f"COMMIT of {name}", name)

    job = Job((Query("p", 3), Query("q", 3)), (sink("a", "q"), sink("c", "p"), sink("b", "q")))
    between = [one for one in at_frames(job, {"target": "driver"}) if one.point is Point.BETWEEN_SINKS]
    assert [(one.query, one.words) for one in between] == [("q", "COMMIT of b, after a")]


def test_two_topics_of_one_transaction_have_two_refusals_and_one_commit() -> None:
    frames = [{"kind": "Produce", "topic": name} for name in ("a", "b")]
    sinks = tuple(Sink("kafka", "q", {}, "EndTxn", frame["topic"], write=frame) for frame in frames)
    job = Job((Query("q", 6),), sinks)
    assert len(list(at_commit(job, Point.COMMIT_LOST))) == 1
    (between,) = [one for one in at_frames(job, {"target": "driver"}) if one.point is Point.BETWEEN_SINKS]
    assert between.n_a == "its sinks share a commit"
    refused = [one.settings for one in faults.get("reject").tries(job)]  # type: ignore[attr-defined]
    assert refused == [{"target": "kafka", "how": "too-large", "topic": name} for name in ("a", "b")]


def test_kinds_chooses_the_kinds_and_offers_cells_that_are_not_tried_otherwise(job: Job, upsert: Scenario) -> None:
    found = cells(job, upsert, named=["stop", "checkpoint-damage"])
    assert {cell.kind for cell in found} == {"stop", "checkpoint-damage"}
    assert reachable(found) == {
        ("stop", "after-offset-log"),
        ("stop", "after-sink-commit"),
        ("checkpoint-damage", "after-commit-log"),
    }
    assert not {"stop", "checkpoint-damage", "fence", "late-request"} & {cell.kind for cell in cells(job, upsert)}


def test_what_changes_the_numbers_of_later_batches_has_a_run_of_its_own(job: Job, upsert: Scenario) -> None:
    found = cells(job, upsert, named=["checkpoint-damage"])
    assert [cell.settings["what"] for cell in found if cell.reachable and cell.alone] == ["folder"]


def test_a_crash_at_a_frame_is_a_crash(job: Job, upsert: Scenario) -> None:
    assert {cell.kind for cell in cells(job, upsert, named=["crash"])} == {"crash", "crash-at-frame"}


@pytest.mark.parametrize("kind", kinds())
def test_what_a_kind_offers_when_it_is_named_is_valid(kind: str, job: Job, upsert: Scenario) -> None:
    for cell in cells(job, upsert, named=[kind]):
        assert "refuses its own offer" not in (cell.why or ""), cell
        assert cell.reachable or cell.why, cell.name


def test_the_leader_of_an_output_is_cut_off_only_where_another_broker_can_lead() -> None:
    scenario = load(find("foreign-kafka-sink"))
    (output,) = scenario.outputs.values()
    assert output.topic is not None
    sink = Sink("kafka", output.topic, {"kind": "EndTxn"}, "EndTxn", output.topic, write={"kind": "Produce"})
    found = cells(Job((Query("q", 6),), (sink,)), scenario, named=["partition"])
    offered = {cell.settings["from"]: cell for cell in found if cell.settings}
    assert offered["clients"].reachable and not offered["cluster"].reachable
    assert "no other broker" in str(offered["cluster"].why)
