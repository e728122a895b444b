from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.reports.page import Look
from onceproof.reports.report import RunSet, ScenarioResult, reports
from onceproof.reports.terminal import TerminalReport


def test_a_violation_is_shown_with_witnesses_attribution_and_the_next_command(violated: ScenarioResult) -> None:
    text = TerminalReport().render(RunSet((violated,)))
    for part in (
        "VIOLATED  naive",
        "fix        Postgres: store progress in the transaction of the data, and lock and read it first",
        "found      duplicate in rows: 6,000 extra rows; first: src_partition=0, src_offset=17 (batch 2); input",
        "explain    onceproof explain duplicate",
        "5,990 from the replay of batch 2 (query both)",
        "- src_partition=0, src_offset=17 (batch 2)",
        "input: flights/0@17",
        "output: flights_out xid 751, flights_out xid 760",
        "[red]once[/red] is not twice",
        "... and 5,997 more (verdict.json holds 8 witnesses)",
        "1  crash driver, batch 2 @ after-sink-commit of both: HIT",
        "effectively-once; order per-key",
        "next       onceproof check /runs/naive-1",
    ):
        assert part in text
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("fix", "found"))) <= 80


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_finding_takes_three_lines_and_keeps_the_row_to_look_up(
    violated: ScenarioResult, width: int, terminal: bool
) -> None:
    """The fix first. Not cut in a log: a reader cannot make that wider."""
    text = TerminalReport(Look(width=width, terminal=terminal), full=False).render(RunSet((violated,)))
    (below,) = [part for part in text.split("\n\n") if part.startswith("fix")]
    fix, found, more = below.splitlines()
    assert fix.startswith("fix        Postgres: store progress")
    assert found.startswith("found      duplicate") and "; first: src_parti" in found
    assert more == "explain    onceproof explain duplicate"
    if terminal:
        assert len(fix) <= width and len(found) <= width
    else:
        assert fix.endswith("(onceproof.sinks.postgres).") and found.endswith("[red]once[/red] is not twice")
    folded = [line for line in text.splitlines() if not line.startswith(("fix", "found", "explain", "next", "run"))]
    assert max(map(len, folded)) <= width


def test_a_cut_line_ends_in_dots_and_is_not_longer_in_wide_characters(violated: ScenarioResult) -> None:
    assert violated.verdict is not None
    finding = replace(violated.verdict.findings[0], summary="\u6f22" * 200, witnesses=())
    verdict = replace(violated.verdict, findings=(finding,))
    text = TerminalReport(Look(width=40, terminal=True), full=False).render(
        RunSet((replace(violated, verdict=verdict),))
    )
    (found,) = [line for line in text.splitlines() if line.startswith("found")]
    assert cell_len(found) <= 40 and found.endswith("\u2026")


def test_a_finding_without_advice_has_no_line_for_it(violated: ScenarioResult) -> None:
    assert violated.verdict is not None
    theirs = replace(violated.verdict.findings[0], anomaly="of-a-plugin-that-is-gone")
    verdict = replace(violated.verdict, findings=(theirs,))
    text = TerminalReport(full=False).render(RunSet((replace(violated, verdict=verdict),)))
    assert "\nfix" not in text and "explain    onceproof explain of-a-plugin-that-is-gone" in text


@pytest.mark.parametrize("width", [80, 120])
def test_everything_in_a_verdict_is_shown(rich: ScenarioResult, width: int) -> None:
    text = TerminalReport(Look(width=width)).render(RunSet((rich,)))
    lines = " ".join(text.split())
    for part in (
        "claim effectively-once; order per-key; atomic none; liveness recovers copies: at-least-once; order none",
        "counts input 60,000; expected rows 60,000 records of flights too late for their window",
        "rows of rows whose window was still open, so they are not judged: 5",
        "ignored rows: loaded_at, id (not compared)",
        "batches 4 in all; those without a finding or a fault: 2 held, 1 inconclusive",
        "both 2 6,000 records, planned by start 0, committed by start 1: violated (duplicate 5,990)",
        "active: crash driver in batch 2",
        "torn-batch in rows: 1 batch in two commits, transient",
        "allowed duplicate in copies: 6,000 extra rows. at-least-once allows a duplicate: batch replay",
        "allowed zombie-write in rows: 3 late writes. transient: gone at the quiet point",
        "explain onceproof explain torn-batch",
    ):
        assert part in lines
    assert "onceproof check /runs/rich-1/slices/duplicate-rows-batch-replay\n" in text, (
        "a command to copy is not wrapped"
    )
    assert "while their window closed" not in lines, "there were none"
    assert lines.index("torn-batch in rows") < lines.index("allowed duplicate"), "violating findings come first"
    wrapped = [line for line in text.splitlines() if not line.startswith(("fix", "found")) and "onceproof" not in line]
    assert max(map(len, wrapped)) <= width


def test_many_batches_are_not_all_shown(rich: ScenarioResult) -> None:
    assert rich.verdict is not None
    batches = tuple(replace(rich.verdict.batches[1], batch=number) for number in range(20))
    text = TerminalReport().render(RunSet((replace(rich, verdict=replace(rich.verdict, batches=batches)),)))
    assert "both 7  " in text and "both 8  " not in text
    assert "... and 12 more (verdict.json holds all)" in text


def test_json_holds_each_finding_with_its_slice(rich: ScenarioResult) -> None:
    document = json.loads(reports.get("json")().render(RunSet((rich,))))
    first, torn, allowed, transient = document["findings"]
    assert first["slice"] == "/runs/rich-1/slices/duplicate-rows-batch-replay"
    assert torn["slice"] is None and torn["transient"] is True and torn["allowed"] is None
    assert allowed["allowed"].startswith("at-least-once") and transient["transient"] is True
    assert [batch["batch"] for batch in document["batches"]] == [2], "those with a finding or a fault"
    assert document["ignored"] == {"rows": ["loaded_at", "id"]}


def test_junit_has_a_witness_and_the_slice_of_each_finding(rich: ScenarioResult) -> None:
    failure = ET.fromstring(reports.get("junit")().render(RunSet((rich,)))).find(".//failure")
    assert failure is not None and failure.text is not None
    assert "duplicate in rows, for example:\nbatch 2 wrote it in start 0" in failure.text
    assert "onceproof check /runs/rich-1/slices/duplicate-rows-batch-replay" in failure.text
    assert "copies" not in failure.text, "a finding that the claim allows is not a failure"


def test_a_fault_that_did_not_hit_is_shown_with_what_was_missing(inconclusive: ScenarioResult) -> None:
    text = TerminalReport().render(RunSet((inconclusive,)))
    assert "INCONCLUSIVE  vague" in text
    assert "fired, NOT HIT" in text
    assert "that is not the state" in text
    assert "reordered@rows: the commit stream" in text


def test_colour_only_on_request(held: ScenarioResult) -> None:
    runs = RunSet((held,))
    plain, coloured = TerminalReport().render(runs), TerminalReport(Look(color=True)).render(runs)
    assert "\x1b[" in coloured
    assert "HELD" in plain and "\x1b" not in plain


def test_a_long_path_is_not_wrapped(held: ScenarioResult) -> None:
    assert held.run_dir is not None
    long = held.run_dir / ("x" * 150)
    assert str(long) in TerminalReport().render(RunSet((replace(held, run_dir=long),)))


def test_the_summary_lists_each_scenario(everything: RunSet) -> None:
    lines = TerminalReport().summary(everything).splitlines()
    rows = [line.split() for line in lines if line.startswith(("ok", "FAILED"))]
    assert [row[:3] for row in rows] == [
        ["ok", "good", "held"],
        ["ok", "naive", "violated"],
        ["FAILED", "vague", "inconclusive"],
        ["FAILED", "broken", "error"],
    ]
    assert lines[-1] == "2 of 4 as expected"


def test_json_of_one_scenario_has_the_promised_keys(violated: ScenarioResult) -> None:
    document = json.loads(reports.get("json")().render(RunSet((violated,))))
    assert set(document) == {
        *("scenario", "verdict", "reasons", "claim", "anomalies", "findings", "faults", "batches", "not_evaluated"),
        *("ignored", "counts", "run", "seed", "seconds", "expect_met"),
    }
    assert document["anomalies"] == {"duplicate": 6000}
    assert document["verdict"] == "violated" and document["expect_met"] is True
    assert set(document["faults"][0]) == {"fault", "target", "query", "batch", "point", "armed", "fired", "hit"}


def test_json_of_several_scenarios(everything: RunSet) -> None:
    document = json.loads(reports.get("json")().render(everything))
    assert document["verdict"] == "error" and document["expect_met"] is False
    assert [run["verdict"] for run in document["runs"]] == ["held", "violated", "inconclusive", "error"]
    assert document["runs"][3] | {"run": None} == document["runs"][3]
    assert (document["runs"][3]["error"], document["runs"][3]["hint"], document["runs"][3]["exit"]) == (
        *("no Java", "install Java 21", 4),
    )


def test_an_error_in_a_run_is_shown_with_its_directory_and_logs(failed: ScenarioResult) -> None:
    stored = Verdict(
        "broken", Outcome.ERROR, StatedClaim({"delivery": "effectively-once"}), ("no Java",), seed=3, seconds=12.0
    )
    runs = RunSet((replace(failed, verdict=stored, run_dir=Path("/runs/broken-1")),))
    text = TerminalReport().render(runs)
    for part in (
        "ERROR  broken   12 s, seed 3",
        "no Java\n    install Java 21",
        "run        /runs/broken-1",
        "logs       /runs/broken-1/logs",
    ):
        assert part in text
    assert "next" not in text, "there is nothing to judge"
    suite = ET.fromstring(reports.get("junit")().render(runs)).find("testsuite")
    assert suite is not None
    case = suite.find("testcase")
    assert case is not None and case.get("time") == "12.000" and case.find("failure") is None
    error = case.find("error")
    assert error is not None and error.get("message") == "no Java"
    assert {p.get("name"): p.get("value") for p in suite.iter("property")} == {
        "verdict": "error",
        "run": "/runs/broken-1",
        "seed": "3",
    }


def test_json_of_an_error_before_any_run_has_the_same_keys(failed: ScenarioResult) -> None:
    document = json.loads(reports.get("json")().render(RunSet((failed,))))
    assert {name: document[name] for name in ("claim", "anomalies", "faults", "run", "seed", "seconds")} == {
        "claim": None,
        "anomalies": {},
        "faults": [],
        "run": None,
        "seed": None,
        "seconds": None,
    }


def test_junit_counts_failures_and_errors(everything: RunSet) -> None:
    root = ET.fromstring(reports.get("junit")().render(everything))
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["4", "1", "1"]
    suites = {str(suite.get("name")): suite for suite in root}
    assert [suite.get("failures") for suite in suites.values()] == ["0", "0", "1", "0"]
    assert [suite.get("errors") for suite in suites.values()] == ["0", "0", "0", "1"]
    cases = {name: suite.find("testcase") for name, suite in suites.items()}
    assert all(case is not None and case.get("name") == name for name, case in cases.items())
    assert suites["naive"].find("testcase/failure") is None, "its expectation is met"
    failure = suites["vague"].find("testcase/failure")
    assert failure is not None and failure.get("type") == "inconclusive"
    error = suites["broken"].find("testcase/error")
    assert error is not None and error.get("message") == "no Java"
    properties = {p.get("name"): p.get("value") for p in suites["good"].findall("properties/property")}
    assert properties == {"verdict": "held", "run": "/runs/good-1", "seed": "7"}
    assert "HELD  good" in (suites["good"].findtext("testcase/system-out") or "")


def test_junit_without_expectations_fails_unless_held(violated: ScenarioResult) -> None:
    failure = ET.fromstring(reports.get("junit")().render(RunSet((violated,)))).find(".//failure")
    assert failure is not None and failure.get("type") == "violated"
    assert failure.get("message") == "violated: duplicate 6000"


def test_junit_replaces_characters_that_xml_forbids(held: ScenarioResult) -> None:
    assert held.verdict is not None
    odd = replace(held.verdict, outcome=Outcome.INCONCLUSIVE, reasons=("\x1b[31m \x00 <&]]> \ud800 \U0001f600",))
    text = reports.get("junit")().render(RunSet((replace(held, verdict=odd),)))
    failure = ET.fromstring(text.encode("utf-8")).find(".//failure")
    assert failure is not None and failure.text is not None
    assert "<&]]>" in failure.text and "\U0001f600" in failure.text and "\x1b" not in failure.text


@pytest.mark.parametrize(
    "which, by_expectation, outcome",
    [
        (["held"], False, Outcome.HELD),
        (["held", "violated", "failed"], False, Outcome.VIOLATED),
        (["held", "inconclusive", "failed"], False, Outcome.ERROR),
        (["held", "inconclusive"], False, Outcome.INCONCLUSIVE),
        (["held", "violated"], True, Outcome.HELD),
        (["held", "violated", "inconclusive"], True, Outcome.INCONCLUSIVE),
        (["held", "violated", "failed"], True, Outcome.ERROR),
    ],
)
def test_the_outcome_of_several_scenarios(
    which: list[str], by_expectation: bool, outcome: Outcome, request: pytest.FixtureRequest
) -> None:
    results = tuple(request.getfixturevalue(name) for name in which)
    assert RunSet(results, by_expectation).outcome() is outcome


def test_a_planted_bug_that_held_counts_as_violated(held: ScenarioResult, violated: ScenarioResult) -> None:
    silent = replace(held, expect=violated.expect)
    assert RunSet((held, silent), by_expectation=True).outcome() is Outcome.VIOLATED


def test_an_expectation_is_met_only_by_exactly_its_anomalies(violated: ScenarioResult) -> None:
    assert violated.expect_met
    more = replace(violated, expect=violated.expect.model_copy(update={"anomalies": ["duplicate", "lost-write"]}))
    assert not more.expect_met


def test_every_report_shows_that_no_fault_was_injected(held: ScenarioResult) -> None:
    assert held.verdict is not None
    calm = replace(held.verdict, faults=(), reasons=("no fault injected: 5 effects of 5 input records are as claimed",))
    result = replace(held, verdict=calm)
    runs = RunSet((result,))
    assert runs.outcome() is Outcome.HELD and runs.outcome().exit_code == 0
    assert "HELD, no fault injected  good" in reports.get("terminal")().render(runs)
    document = json.loads(reports.get("json")().render(runs))
    assert document["verdict"] == "held"
    assert document["reasons"][0].startswith("no fault injected: ")
    properties = {
        p.get("name"): p.get("value") for p in ET.fromstring(reports.get("junit")().render(runs)).iter("property")
    }
    assert properties["verdict"] == "held"
    assert properties["summary"] == "held, no fault injected"
    assert "no fault injected" not in reports.get("terminal")().render(RunSet((held,)))
