"""A broker that executions of consumers use in turn: it changes no verdict, and one on which an execution failed is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Event
from onceproof.run import Result
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find

from ..lending import LentBrokers, can_share

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]


class _Broken(Exception):
    pass


def fail_in_the_run(event: Event) -> None:
    if event.kind == "phase" and event.data["name"] == "run":
        raise _Broken


def shown(result: Result) -> tuple[Any, ...]:
    verdict = result.verdict
    findings = [(one.anomaly, one.output, one.total, one.source) for one in verdict.findings]
    return verdict.outcome, findings, [fault.hit for fault in verdict.faults], verdict.counts


def test_a_lent_broker_changes_no_verdict_and_a_failed_one_is_replaced(tmp_path: Path) -> None:
    loaded = load_file(find("member-dies-duplicates"))
    assert can_share(loaded.scenario)
    started = tmp_path / "brokers"
    with LentBrokers(started) as brokers:
        alone, lent = (brokers.run(loaded, tmp_path / "runs", []) for _ in range(2))
        assert shown(lent) == shown(alone)
        assert len(list(started.iterdir())) == 1
        with pytest.raises(EnvironmentProblem, match="_Broken"):
            brokers.run(loaded, tmp_path / "runs", [fail_in_the_run])
        assert shown(brokers.run(loaded, tmp_path / "runs", [])) == shown(alone)
        assert len(list(started.iterdir())) == 2
