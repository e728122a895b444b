"""Oracles that run Spark: a batch job over the committed input, and the pipeline itself without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.open import open_case
from onceproof.judge.verdict import check
from onceproof.run import Result

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
HERE = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        pytest.param("held-against-a-batch", "", marks=pytest.mark.full),
        pytest.param("held-against-itself", "relative to its own fault-free run", marks=pytest.mark.full),
    ],
)
def test_the_output_is_compared_with_the_job_s_own_result(
    run_once: Callable[[str | Path], Result], name: str, basis: str
) -> None:
    result = run_once(HERE / f"{name}.yaml")
    verdict = result.verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert basis in verdict.reasons[0]
    assert [f.hit for f in verdict.faults] == [True]
    assert verdict.counts["expected.departures"] == verdict.counts["effects.departures"] > 2_900
    with open_case(result.run_dir) as case:
        # The source columns of the output give the causes, so the order is judged.
        assert case.expectations["departures"].has_cause
    assert check(result.run_dir).findings == verdict.findings
