"""The verdict as one JSON object: what ``--json`` prints, for programs."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from onceproof.judge.findings import FaultReport, Verdict
from onceproof.report import RunSet, ScenarioResult, reports


@reports.register("json")
class JsonReport:
    """One scenario: ``scenario``, ``verdict``, ``claim``, ``anomalies`` (name -> offending effects, after the claim),
    ``faults``, ``run`` (directory or null), ``seed``, ``seconds``, ``expect_met``; with an error also ``error``,
    ``hint`` and ``exit``, and ``claim``, ``seed`` and ``seconds`` are null if no run began. Several: ``{verdict, expect_met, runs: [...]}``.
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


_NO_RUN: dict[str, Any] = {"claim": None, "anomalies": {}, "faults": [], "seed": None, "seconds": None}


def _result(result: ScenarioResult) -> dict[str, Any]:
    document: dict[str, Any] = {"scenario": result.scenario, "verdict": result.outcome.value}
    document |= _verdict(result.verdict) if result.verdict is not None else _NO_RUN
    if result.error is not None:
        exit_code = result.error.exit_code
        document |= {"error": result.error.message, "hint": result.error.hint, "exit": exit_code}
    run = None if result.run_dir is None else str(result.run_dir)
    return document | {"run": run, "expect_met": result.expect_met}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "claim": verdict.claim,
        "anomalies": verdict.anomalies(),
        "faults": [_fault(fault) for fault in verdict.faults],
        "seed": verdict.seed,
        "seconds": verdict.seconds,
    }


def _fault(fault: FaultReport) -> dict[str, Any]:
    names = ("fault", "target", "query", "batch", "point", "armed", "fired", "hit")
    return {name: getattr(fault, name) for name in names}
