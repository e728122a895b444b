"""The verdict as one JSON object for programs, printed by ``--json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.judge.slices.cut import name_of
from onceproof.reports.report import RunSet, ScenarioResult, reports

_NO_VERDICT = Verdict("", Outcome.ERROR, StatedClaim(), ())


@reports.register("json")
class JsonReport:
    """One JSON object per command.

    The keys for one scenario: ``scenario``, ``verdict``, ``reasons``, ``claim``, ``anomalies`` (name -> number of
    effects that the claim does not allow), ``findings`` (all, allowed ones with the reason; ``witnesses`` is the file
    with all witnesses of a finding), ``faults``, ``batches`` (those with a finding or a fault), ``not_evaluated``,
    ``ignored``, ``counts``, ``run`` (directory or null), ``seed``, ``seconds``, ``expect_met``. An error adds
    ``error``, ``hint`` and ``exit``; then ``claim``, ``seed`` and ``seconds`` are null if no run began. Several
    scenarios: ``{verdict, expect_met, runs: [...]}``.
    """

    about: ClassVar[str] = "one JSON object"

    def render(self, runs: RunSet) -> str:
        if len(runs.results) == 1 and not runs.by_expectation:
            return json.dumps(_result(runs.results[0]), default=str)
        document = {
            "verdict": runs.outcome().value,
            "expect_met": all(result.expect_met for result in runs.results),
            "runs": [_result(result) for result in runs.results],
        }
        return json.dumps(document, default=str)


def _result(result: ScenarioResult) -> dict[str, Any]:
    document: dict[str, Any] = {"scenario": result.scenario, "verdict": result.outcome.value}
    document |= _verdict(result.verdict or _NO_VERDICT, result.run_dir)
    if result.verdict is None:
        document |= dict.fromkeys(("claim", "seed", "seconds"))
    if result.error is not None:
        exit_code = result.error.exit_code
        document |= {"error": result.error.message, "hint": result.error.hint, "exit": exit_code}
    run = None if result.run_dir is None else str(result.run_dir)
    return document | {"run": run, "expect_met": result.expect_met}


def _verdict(verdict: Verdict, run_dir: Path | None) -> dict[str, Any]:
    return {
        "reasons": list(verdict.reasons),
        "claim": verdict.claim.to_json(),
        "anomalies": verdict.anomalies(),
        "findings": [_finding(finding, verdict, run_dir) for finding in verdict.findings],
        "faults": [_fault(fault) for fault in verdict.faults],
        "batches": [asdict(batch) for batch in verdict.batches if batch.anomalies or batch.faults],
        "not_evaluated": verdict.not_evaluated,
        "ignored": verdict.ignored,
        "counts": verdict.counts,
        "seed": verdict.seed,
        "seconds": verdict.seconds,
    }


def _finding(finding: Finding, verdict: Verdict, run_dir: Path | None) -> dict[str, Any]:
    names = (
        "anomaly",
        "output",
        "source",
        "total",
        "summary",
        "attribution",
        "batches",
        "transient",
        "allowed",
        "undecided",
    )
    slice_ = verdict.slices.get(name_of(finding))
    where = None if slice_ is None or run_dir is None else str(run_dir / slice_)
    file = finding.witness_file
    every = None if file is None or run_dir is None else str(run_dir / file)
    return {**{name: getattr(finding, name) for name in names}, "slice": where, "witnesses": every}


def _fault(fault: FaultReport) -> dict[str, Any]:
    names = ("fault", "target", "query", "batch", "point", "armed", "fired", "hit")
    return {name: getattr(fault, name) for name in names}
