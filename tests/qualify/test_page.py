"""The page and the JSON of a qualification, from sessions with made-up runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.consumers.faults import consumer_faults
from onceproof.faults.contract import faults
from onceproof.judge.anomalies import anomalies, anomaly
from onceproof.judge.checker import INPUT
from onceproof.judge.findings import Finding, Outcome, Witness
from onceproof.qualify import matrix, page
from onceproof.qualify.cells import CellState
from onceproof.qualify.directory import Directory
from onceproof.qualify.strongest import DELIVERIES
from onceproof.reports.page import Look
from onceproof.scenario.points import Point
from onceproof.stores.contract import systems

from .made_up import MadeUpRuns


def test_the_result_is_rendered_as_text_of_100_columns_and_as_json(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    result = work(budget_s=80)
    broken = replace(
        next(c for c in result.cells if c.exercised),
        verdict=Outcome.VIOLATED,
        anomalies={"duplicate": 1234},
        outputs=("last_seen",),
        witnesses={"duplicate": "tailnum=N1 (batch 2; output last_seen xid 7, last_seen xid 8)"},
    )
    result = replace(result, cells=(broken, *result.cells[1:]), outcome=Outcome.VIOLATED)
    text = matrix.as_text(result)
    unbroken = ("directory", "next", "  repeat", "  alone", "  seen in", "  explain", "  fix", "  found")
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(unbroken))
    where = "tailnum=N1 (batch 2; output last_seen xid 7, last_seen xid 8)"
    assert f"found    duplicate: 1,234 rows in last_seen; first: {where}\n" in text
    assert "fix      Postgres: store progress in the transaction of the data" in text
    assert "explain  onceproof explain duplicate\n" in text
    assert f"  alone    onceproof run {result.directory.cells / broken.name}.yaml" in text
    for state in ("not reached", "n/a", "VIOLATED", "2 not reached"):
        assert state in text
    assert "…" not in text, "nothing of the table is cut off"
    document = json.loads(json.dumps(matrix.as_json(result)))
    assert document["verdict"] == "violated"
    assert document["matrix"]["after-sink-commit"]["crash"][0]["verdict"] == "violated"
    assert document["continue"].startswith("onceproof qualify --continue")
    assert {cell["state"] for cell in document["cells"]} == {"exercised", "not reached", "n/a"}
    first = document["cells"][0]
    assert first["witnesses"] == broken.witnesses and "onceproof.sinks.postgres" in first["fixes"]["duplicate"][0]


def test_the_stored_state_has_the_strongest_claim(work: Callable[..., Any]) -> None:
    result = work()
    stored = Directory.open(result.directory.path)[1]
    assert stored.strongest == result.strongest is not None


def test_fixes_are_those_for_the_kinds_of_output_of_the_job() -> None:
    explanation = anomaly("duplicate").explanation
    assert any("onceproof.sinks.kafka" in fix for fix in explanation.stops_for({"Kafka"}))
    assert not any("Postgres" in fix or "ON CONFLICT" in fix for fix in explanation.stops_for({"Kafka"}))
    assert not any("onceproof.sinks.kafka" in fix for fix in explanation.stops_for({"Postgres"}))
    every = explanation.stops_for({"Kafka", "Postgres"})
    assert not any("producers" in fix for fix in every), "the input of a qualification is not at fault"
    assert {fix.partition(":")[0] for fix in set(explanation.advice) - set(every)} == {"Webhook", INPUT}


@pytest.mark.parametrize("name", [one.name for one in anomalies()])
def test_a_fix_for_one_kind_of_output_begins_with_the_name_of_a_store(name: str) -> None:
    stops = anomaly(name).explanation.advice
    named = {fix.partition(":")[0] for fix in stops if re.match(r"[A-Z][a-z]+: ", fix)}
    assert named <= {*systems(), INPUT}, "nobody reads another name"
    assert all(anomaly(name).explanation.stops_for({system}) for system in systems())


@pytest.mark.parametrize("name", [one.name for one in anomalies()])
def test_the_fix_after_a_fault_comes_first_and_names_a_kind_or_a_point_that_exists(name: str) -> None:
    explanation = anomaly(name).explanation
    for fault, text in explanation.after.items():
        kind, _, target = fault.partition(" ")
        known = faults.variants(kind) if target else {**faults.variants(kind), **consumer_faults.variants(kind)}
        exists = known and target in ("", *(variant[0] for variant in known if variant))
        assert exists or fault in list(Point), f"there is no fault or point {fault!r}"
        assert explanation.stops_for(systems(), {fault})[0] == text != explanation.stops_for(systems())[0]


def test_the_page_shows_what_no_further_run_decided(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    """What the command says of a qualification, its page, the list of runs and a comparison say too."""
    runs.violated, runs.slow = {2}, {2: 600.0}
    result = work(budget_s=600)
    (run,) = {name for cell in result.cells if cell.verdict is Outcome.VIOLATED for name in cell.runs}
    directory, progress = Directory.open(result.directory.path)
    assert progress.settled() == result.cells != progress.cells
    text = page.page(directory, progress)
    violated = sum(cell.verdict is Outcome.VIOLATED for cell in result.cells)
    assert f"{violated} violated" in text and "no violation of a cell was found" not in text and run in text
    assert page.compared(directory.path, directory.path).sections[0].rows[0].old is not None


def test_the_page_names_a_violated_run_that_no_cell_explains(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.violated = {2}
    result = work()
    ((run, found),) = result.unclaimed.items()
    directory, progress = Directory.open(result.directory.path)
    assert progress.unclaimed == {run: found} == {run: {"lost-write": 3}}
    text = " ".join(re.sub(r"<[^>]+>", " ", page.page(directory, progress)).split())
    assert f"\u2715 lost-write in {run}: no cell is known to have caused it" in text
    assert "no violation of a cell was found" not in text
    (caution,) = [c for c in page.compared(directory.path, directory.path).cautions if "first" in c]
    assert caution == "the first one has 1 run with a violation that no cell is known to have caused"


def test_the_page_says_which_kinds_were_left_out(work: Callable[..., Any]) -> None:
    result = work()
    directory, progress = Directory.open(result.directory.path)
    assert "Other kinds of faults" not in page.page(directory, progress)
    assert "Other kinds of faults than crash were not tried." in page.page(
        directory, replace(progress, kinds=("crash",))
    )


def test_cells_that_onceproof_cannot_place_are_only_counted(work: Callable[..., Any]) -> None:
    result = work()
    below = matrix.as_text(result).partition("\nn/a")[2].partition("directory")[0]
    assert len(below.splitlines()) <= 4
    assert "its batches write to a single sink; no query keeps state; no write to an output" in " ".join(below.split())
    absent = [c for c in result.cells if not c.reachable]
    of_tool = [c for c in absent if c.of_tool]
    expected = f"{len(of_tool)} more: onceproof cannot place them (--json lists the reasons; docs/qualify.md)"
    assert expected in " ".join(below.split())
    assert {str(c.why) for c in absent} > {str(c.why) for c in of_tool}
    assert {c["name"] for c in matrix.as_json(result)["cells"] if c["of_tool"]} == {c.name for c in of_tool}


def test_a_fix_is_printed_once_and_a_checker_may_have_none(work: Callable[..., Any]) -> None:
    result = work()
    found = [replace(c, verdict=Outcome.VIOLATED, anomalies={"duplicate": 1, "theirs": 2}) for c in result.cells[:2]]
    text = matrix.as_text(replace(result, cells=(*found, *result.cells[2:])))
    assert text.count("progress in the transaction of the data") == 1
    assert text.count("duplicate: 1 row") == 2 and "theirs: 2 rows" in text
    assert text.count("explain  onceproof explain duplicate\n") == 2, "each cell says where to read more"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_violated_cell_fits_the_terminal(work: Callable[..., Any], width: int) -> None:
    """Commands and paths, which are copied, are not cut."""
    result = work()
    broken = replace(
        result.cells[0],
        verdict=Outcome.VIOLATED,
        anomalies={"duplicate": 1234},
        outputs=("last_seen",),
        witnesses={"duplicate": f"tailnum=N1 (batch 2; output {', '.join(f'last_seen xid {n}' for n in range(9))})"},
    )
    text = matrix.as_text(replace(result, cells=(broken, *result.cells[1:])), Look(width=width, terminal=True))
    lines = text.partition("violated  ")[2].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  fix"))
    fix, found, more = lines[start : start + 3]
    assert len(fix) <= width and len(found) <= width and "; first: tailnum=N" in found
    assert more == "  explain  onceproof explain duplicate"


def test_the_statement_claims_no_more_than_was_exercised(work: Callable[..., Any]) -> None:
    result = work()
    every = "13 of 13 reachable cells exercised: 13 held. "
    assert matrix.statement(result) == (
        f"{every}The strongest claim that held in all runs is effectively-once, liveness recovers"
    )
    doubt = replace(result, strongest=replace(result.strongest, delivery=None, others={}))
    assert matrix.statement(doubt) == f"{every}Whether a delivery promise held is in doubt"
    broken = {level: ["lost-write"] for level in DELIVERIES}
    none = replace(result, strongest=replace(result.strongest, delivery=None, broken=broken))
    assert matrix.statement(none) == f"{every}No delivery promise held in all runs; liveness recovers held"
    bare = replace(result, strongest=replace(none.strongest, others={}))
    assert matrix.statement(bare) == f"{every}No delivery promise held in all runs"
    nothing = replace(result, cells=tuple(c for c in result.cells if not c.reachable), strongest=None)
    assert matrix.statement(nothing) == (
        "no cell of the matrix applies to this job: no fault was tried, and nothing is claimed"
    )
    unproven = replace(result.cells[0], state=CellState.NOT_REACHED, verdict=Outcome.VIOLATED)
    some = replace(result, cells=(unproven,), strongest=None)
    assert matrix.statement(some) == (
        "none of 1 reachable cell was exercised, so nothing is claimed; "
        "1 reachable cell violated, but the fault is not proven to have hit"
    )


def test_unseparated_cells_name_the_other_cells_and_what_is_known_of_those(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    """The first of the eight cells of a violated run held in a run of its own."""
    runs.violated, runs.slow = {2}, {4: 600.0}
    result = work()
    assert len(runs.files) == 4
    first, *rest = [cell for cell in result.cells if result.progress.decided[1] in cell.runs]
    assert first.verdict is Outcome.HELD and all(cell.together for cell in rest)
    text = " ".join(matrix.as_text(result).split())
    known = f"{first.title()} (held when run alone)"
    assert f"violated* 7 cells of a shared run, not separated from each other and from {known}" in text


def test_findings_of_a_job_that_is_wrong_without_faults_are_shown_once(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    runs.first = Outcome.VIOLATED
    result = work()
    copies = Finding("duplicate", "last_seen", 3, "3 copies", witnesses=(Witness({"id": 1}, "so it is"),))
    reasons = ("duplicate in output last_seen: 3 copies", "besides, not everything is proved: x")
    result = replace(result, first=replace(result.first, findings=(copies,), reasons=reasons))
    text = matrix.as_text(result)
    assert text.count("3 copies") == 1 and "id=1" in text and "why        besides, not everything" in text
    assert "explain    onceproof explain duplicate" in text
    first = result.directory.path / result.progress.first
    assert f"logs       {first / 'logs'}" in text and f"next       onceproof check {first}" in text
    assert matrix.statement(result) == (
        "without any fault the verdict is violated. No fault was tried: until this run holds, a run under faults "
        "shows nothing"
    )


def test_tables_have_rows_and_topics_have_records() -> None:
    outputs = {"booked": SimpleNamespace(has_rows=True), "sent": SimpleNamespace(has_rows=False)}
    scenario: Any = SimpleNamespace(outputs=outputs)
    assert (
        matrix._count_with_noun(1, scenario, ["booked"]) == "1 row"
        and matrix._count_with_noun(1234, scenario, ["sent"]) == "1,234 records"
    )
    assert (
        matrix._count_with_noun(2, scenario, ["booked", "sent"])
        == matrix._count_with_noun(2, scenario)
        == "2 rows and records"
    )
