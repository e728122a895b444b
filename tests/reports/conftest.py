"""Verdicts to render: held, violated, inconclusive, and an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.reports.report import RunSet, ScenarioResult
from onceproof.scenario.model import ExpectedVerdict

CLAIM = {"delivery": "effectively-once", "order": "per-key", "atomic": "none", "liveness": "recovers"}
HIT = FaultReport(
    "crash", "driver", "both", 2, "after-sink-commit", True, True, True, (Evidence("the driver was started again"),)
)
MISSED = replace(
    HIT,
    hit=False,
    seen=(Evidence("left behind: offsets/2 written, commits/2 written"), Evidence("that is not the state")),
)
DUPLICATE = Finding(
    "duplicate",
    "rows",
    6000,
    "6,000 extra rows",
    tuple(
        Witness(
            {"src_partition": 0, "src_offset": offset},
            "batch 2 wrote it in start 0\nand start 1 wrote it again: [red]once[/red] is not twice",
            f"flights/0@{offset}",
            2,
            ("flights_out xid 751", "flights_out xid 760"),
        )
        for offset in range(17, 25)
    ),
    attribution={"from the replay of batch 2 (query both)": 5990, "of unknown cause": 10},
)
HELD = Verdict(
    "good",
    Outcome.HELD,
    StatedClaim(CLAIM),
    ("every claim held and every fault hit",),
    faults=(HIT,),
    counts={"input": 60000},
    seed=7,
    seconds=61.5,
)
VIOLATED = replace(
    HELD, scenario="naive", outcome=Outcome.VIOLATED, reasons=("6000 duplicates",), findings=(DUPLICATE,)
)
TRANSIENT = Finding(
    "zombie-write", "rows", 3, "3 late writes", transient=True, allowed="transient: gone at the quiet point"
)
TORN = Finding("torn-batch", "rows", 1, "1 batch in two commits", source="batch", transient=True)
ALLOWED = replace(
    DUPLICATE, output="copies", source="batch replay", allowed="at-least-once allows a duplicate: batch replay"
)
CRASHED = BatchReport("both", 2, 0, 1, 6000, ("crash driver in batch 2",), Outcome.VIOLATED, {"duplicate": 5990})
RICH = replace(
    VIOLATED,
    scenario="rich",
    claim=StatedClaim(CLAIM, {"copies": {"delivery": "at-least-once", "order": "none"}}),
    findings=(replace(DUPLICATE, source="batch replay"), TORN, ALLOWED, TRANSIENT),
    batches=(
        BatchReport("both", 1, 0, 0, 6000, (), Outcome.HELD),
        CRASHED,
        BatchReport("both", 3, 1, 1, 6000, (), Outcome.HELD),
        BatchReport("both", 4, 1, None, 6000, (), Outcome.INCONCLUSIVE),
    ),
    ignored={"rows": ["loaded_at", "id"]},
    counts={"input": 60000, "expected.rows": 60000, "late.flights": 12, "may.flights": 0, "open.rows": 5},
    slices={"duplicate/rows/batch replay": "slices/duplicate-rows-batch-replay"},
)
INCONCLUSIVE = replace(
    HELD,
    scenario="vague",
    outcome=Outcome.INCONCLUSIVE,
    reasons=("a fault did not hit",),
    faults=(MISSED,),
    not_evaluated={"reordered@rows": "the commit stream does not replay to the snapshot"},
)


@pytest.fixture
def held() -> ScenarioResult:
    return ScenarioResult("good", ExpectedVerdict(), HELD, Path("/runs/good-1"))


@pytest.fixture
def violated() -> ScenarioResult:
    expect = ExpectedVerdict(verdict="violated", anomalies=["duplicate"])
    return ScenarioResult("naive", expect, VIOLATED, Path("/runs/naive-1"))


@pytest.fixture
def rich() -> ScenarioResult:
    """A verdict with everything that a report can show."""
    return ScenarioResult("rich", ExpectedVerdict(), RICH, Path("/runs/rich-1"))


@pytest.fixture
def inconclusive() -> ScenarioResult:
    return ScenarioResult("vague", ExpectedVerdict(), INCONCLUSIVE, Path("/runs/vague-1"))


@pytest.fixture
def failed() -> ScenarioResult:
    return ScenarioResult("broken", ExpectedVerdict(), error=EnvironmentProblem("no Java", hint="install Java 21"))


@pytest.fixture
def everything(
    held: ScenarioResult, violated: ScenarioResult, inconclusive: ScenarioResult, failed: ScenarioResult
) -> RunSet:
    return RunSet((held, violated, inconclusive, failed), by_expectation=True)
