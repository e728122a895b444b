"""The first screen of a page, and the lanes of its timeline."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.qualify import page as qualification_page
from onceproof.qualify.cells import Shared
from onceproof.qualify.directory import Directory
from onceproof.reports.comparison import Comparison, Row, Section, Side
from onceproof.reports.html import comparison_page
from onceproof.reports.html.limits import MOST_BYTES, SIZES, WHOLE_COMMAND
from onceproof.reports.html.moments import moments
from onceproof.reports.html.run_page import of_run
from onceproof.reports.html.source import read
from onceproof.reports.html.timeline import FAULT_LANES, timeline
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

from .test_html import Parsed, events, judged, once
from .test_html_other_pages import CELLS, PROGRESS, qualification
from .test_html_size import COSTLY, everything

__all__ = ["judged", "once", "qualification"]  # fixtures


def test_the_first_screen_has_verdict_claim_faults_fix_and_command_in_this_order(judged: Path) -> None:
    text = of_run(judged)
    top = " ".join(re.sub(r"<[^>]+>", " ", text[text.index("<header>") : text.index("<nav")]).split())
    parts = (
        "\u2715 violated",
        "Claimed",
        "effectively-once",
        "Injected",
        "\u2713 hit",
        "Broken",
        "Fix for",
        "Run it again",
    )
    places = [top.index(part) for part in parts]
    assert places == sorted(places)
    assert len(top) < 1_000, "or it would not be one screen"


def brokers(judged: Path, number: object) -> None:
    record = json.loads((judged / "run.json").read_text())
    record["scenario"]["stack"] = {"kafka": {"brokers": number}}
    (judged / "run.json").write_text(json.dumps(record))


def lanes(run: Path) -> dict[str, Any]:
    stored = read(run)
    made = timeline(stored, moments(stored.events), SIZES[0])
    assert made is not None
    return {lane.name: lane for lane in made.lanes}


def test_each_broker_has_a_lane_with_the_times_when_it_was_away(judged: Path) -> None:
    brokers(judged, 3)
    away = {"at": 1.1, "kind": "broker.away", "broker": 2, "how": "killed"}
    events(judged, {"at": 0.2, "kind": "stack.ready", "service": "kafka"}, away)
    found = lanes(judged)
    assert [name for name in found if name.startswith("kafka")] == [f"kafka broker {n}" for n in (1, 2, 3)]
    assert [len(found[f"kafka broker {n}"].bars) for n in (1, 2, 3)] == [1, 2, 1]
    struck = found["kafka broker 2"].bars[1]
    assert (struck.start, struck.label, struck.style) == (1.1, "killed", "struck") and struck.end > 1.6, "not back yet"
    events(
        judged, {"at": 0.2, "kind": "stack.ready", "service": "kafka"}, away, {**away, "at": 1.4, "kind": "broker.back"}
    )
    struck = lanes(judged)["kafka broker 2"].bars[1]
    assert struck.end == 1.4 and struck.title == "kafka broker 2: killed at 1.100 s, back at 1.400 s"


@pytest.mark.parametrize("number", [1, None, "3", 10**9, [3]])
def test_a_single_node_and_an_unknown_number_of_brokers_are_one_lane(judged: Path, number: object) -> None:
    brokers(judged, number)
    events(judged, {"at": 0.2, "kind": "stack.ready", "service": "kafka"})
    assert [name for name in lanes(judged) if name.startswith("kafka")] == ["kafka"]


def test_each_fault_has_a_lane_from_armed_to_healed_with_its_hit(judged: Path) -> None:
    events(judged)
    (name,) = [name for name in lanes(judged) if name.startswith("F1")]
    lane = lanes(judged)[name]
    assert name == "F1 crash driver, batch 1 at after-sink-commit"
    assert [(bar.style, bar.start, bar.end) for bar in lane.bars] == [("armed", 0.2, 1.1), ("struck", 1.1, 1.4)]
    assert [(tick.at, tick.label) for tick in lane.ticks] == [(1.5, "\u2713 hit")]


def test_a_fault_that_never_fired_is_armed_until_the_end(judged: Path) -> None:
    fault = {"index": 1, "fault": "stall", "target": "broker", "batch": 9, "point": "after-offset-log"}
    missed = {"at": 1.7, "kind": "fault.missed", **fault}
    events(judged, {"at": 0.5, "kind": "fault.armed", **fault}, missed)
    (lane,) = [lane for name, lane in lanes(judged).items() if name.startswith("F2")]
    (bar,) = lane.bars
    assert (bar.style, bar.start) == ("armed", 0.5) and bar.end > 1.7
    assert [tick.label for tick in lane.ticks] == ["\u2715 not hit"]


def test_more_faults_than_lanes_are_announced(judged: Path) -> None:
    many = [{"at": 0.5, "kind": "fault.armed", "index": n, "fault": "stall", "target": "broker"} for n in range(1, 30)]
    events(judged, *many)
    assert sum(name.startswith("F") for name in lanes(judged)) == FAULT_LANES


@pytest.mark.parametrize("limits", SIZES)
def test_no_page_cuts_a_command(judged: Path, limits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceproof.reports.html.run_page.SIZES", (limits,))
    record = json.loads((judged / "run.json").read_text())
    record["scenario_path"] = f"/jobs/{'x' * 300}/a b.yaml"
    (judged / "run.json").write_text(json.dumps(record))
    commands = re.findall(r'<code class="command">(.*?)</code>', of_run(judged))
    assert f"onceproof run &#39;/jobs/{'x' * 300}/a b.yaml&#39;" in " ".join(commands)
    assert f"onceproof check {judged}" in commands and not any("more characters" in one for one in commands)


@pytest.mark.parametrize("character", COSTLY)
def test_the_smallest_page_has_room_for_the_longest_commands(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceproof.reports.html.run_page.SIZES", SIZES[-1:])
    run = everything(100, character * 500)
    assert run.verdict is not None
    names = (f"{one.anomaly}/{one.output}" for one in run.verdict.findings)
    path = character * (WHOLE_COMMAND - 100)
    slices = {name: path.replace("\x00", "x").replace("\ud800", "x") for name in names}
    from onceproof.reports.html.run_page import page

    made = page(replace(run, path=Path("/" + "x" * 1_400), verdict=replace(run.verdict, slices=slices)))
    assert len(made.encode("utf-8", "replace")) <= MOST_BYTES


def plain(text: str) -> str:
    return Parsed(text).text


def test_a_violated_cell_comes_first_with_its_fix_and_its_command(qualification: Path) -> None:
    Directory(qualification).save(replace(PROGRESS, cells=(*CELLS[1:], CELLS[0])))
    text = qualification_page.write(qualification).read_text()
    top = plain(text[: text.index("<nav")])
    assert "\u2715 duplicate : in 1 cell" in top and "Fix for crash driver" in top
    assert f"Repeat it onceproof run {qualification}/cells/crash-driver-after-sink-commit.yaml" in top
    cells = re.findall(r'<(article|details) class="witness" id="([^"]+)"', text)
    assert cells[0] == ("article", "cell-crash-driver-after-sink-commit")
    assert ("details", "cell-crash-driver-after-offset-log") in cells, "what held is folded"


@pytest.mark.parametrize("character", COSTLY)
@pytest.mark.parametrize("number", [30, 3_000])
def test_the_page_of_a_qualification_has_at_most_one_megabyte(qualification: Path, character: str, number: int) -> None:
    text = (character * 700).replace("\ud800", "\ufffd")
    lists = tuple(f"{n} {text}" for n in range(50))
    cell = replace(
        CELLS[0],
        words=text,
        why=text,
        evidence=lists,
        outputs=lists,
        anomalies=dict.fromkeys(lists, 1),
        witnesses=dict.fromkeys(lists, text),
        shared=Shared("runs/a", text, True, lists),
        runs=("runs/a",) * 50,
    )
    cells = tuple(replace(cell, name=f"{n} {text}", kind=f"kind {n}", query=f"{n % 9} {text}") for n in range(number))
    progress = replace(PROGRESS, scenario=text, scenario_path=text, cells=cells)
    made = qualification_page.page(Directory(qualification), progress)
    assert len(made.encode()) <= MOST_BYTES
    shown = plain(made)
    assert "not shown here. qualification.json has all" in shown
    for noun in ("anomalies", "sentences", "runs"):
        assert re.search(rf"\d+ more {noun} are not shown here\. qualification\.json has all\.", shown), noun
    assert re.search(r", and \d+ more</p>", made) and re.search(r"; and \d+ more</p>", made), "outputs, other cells"
    ids = re.findall(r' id="([^"]+)"', made)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#([^"]+)"', made)) <= set(ids)


def test_cells_without_details_are_counted_in_the_matrix_and_below_it(
    qualification: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qualification_page, "_SIZES", (qualification_page._Size(2, 100, 4),))
    held, one = (
        next(c for c in CELLS if c.reachable and c.verdict is verdict) for verdict in (Outcome.HELD, Outcome.VIOLATED)
    )
    absent = next(cell for cell in CELLS if not cell.reachable)
    cells = (
        one,
        *(replace(held, name=f"held {n}", query="q", point=Point.AFTER_SINK_COMMIT, kind="crash") for n in range(5)),
        replace(held, name="elsewhere", query="another", point=Point.AFTER_COMMIT_LOG, kind="stall"),
        *(replace(absent, name=f"absent {n}") for n in range(2)),
    )
    made = qualification_page.page(Directory(qualification), replace(PROGRESS, cells=cells))
    text = plain(made)
    assert "4 more cells" in re.findall(r'<table class="matrix">.*?</table>', made, re.DOTALL)[-1]
    assert "This page has details of 2 reachable cells, violated ones first. The matrix only counts 5 more" in text
    assert (
        "but not the 1 of them in rows, columns or queries that it does not show. qualification.json has all." in text
    )
    assert "2 more cells that do not apply are not shown here" in text and "Every cell applies" not in text


@pytest.mark.parametrize("character", COSTLY)
def test_the_page_of_a_comparison_has_at_most_one_megabyte_and_keeps_the_changes(character: str) -> None:
    text = (character * 700).replace("\ud800", "\ufffd")
    rows = (*(Row(f"{n} {text}", text, text) for n in range(9_000)), Row("changed", "a", "b"))
    side = Side(text, text, None, text)
    sections = tuple(Section(name, rows) for name in ("findings", "faults", "counts", "versions"))
    made = comparison_page.page(Comparison(side, side, text, sections, (text,) * 5))
    assert len(made.encode()) <= MOST_BYTES
    assert made.count("\u2260 changed") == 4 and "more rows are not shown here" in plain(made)


def test_a_job_that_writes_to_kafka_gets_no_advice_about_postgres(qualification: Path) -> None:
    scenario = load(find("naive-kafka-sink")).model_dump(mode="json", by_alias=True, exclude_none=True)
    run = qualification / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"scenario": scenario, "scenario_path": "a.yaml", "seed": 7}))
    Directory(qualification).save(replace(PROGRESS, first="runs/first"))
    text = qualification_page.write(qualification).read_text()
    assert "onceproof.sinks.kafka" in text and "onceproof.sinks.postgres" not in text
    (run / "run.json").write_text("{")
    assert "onceproof.sinks.postgres" in qualification_page.write(qualification).read_text(), "advice for every store"
