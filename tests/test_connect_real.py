"""Spark Connect: the server is the driver, and its checkpoint writes stop at a point as those of any driver do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.run import Result

pytestmark = [pytest.mark.real, pytest.mark.full]

SCENARIOS = Path(__file__).parent / "scenarios"


@pytest.mark.parametrize(
    ("name", "outcome", "anomalies"),
    [
        ("connect-crash", "held", []),
        ("connect-server-crash", "held", []),
        ("connect-server-crash-naive", "violated", ["duplicate"]),
    ],
)
def test_a_batch_is_replayed_after_a_crash_of_the_server(
    name: str, outcome: str, anomalies: list[str], run_once: Callable[[Path], Result]
) -> None:
    verdict = run_once(SCENARIOS / f"{name}.yaml").verdict
    assert (verdict.outcome.value, [finding.anomaly for finding in verdict.findings]) == (outcome, anomalies)
    (fault,) = verdict.faults
    assert "batch 2 was replayed and committed" in fault.evidence


def test_a_query_continues_after_a_crash_of_its_client(run_once: Callable[[Path], Result]) -> None:
    result = run_once(SCENARIOS / "connect-client-crash.yaml")
    assert result.verdict.outcome.value == "held"
    (fault,) = result.verdict.faults
    assert any(text.startswith("its server lived on") for text in fault.evidence), fault.evidence
    assert not (result.run_dir / "logs" / "driver-1.log").exists()
