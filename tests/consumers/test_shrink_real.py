"""`onceproof shrink` on a real broker: it proves a minimum within its executions, and leaves a scenario that can be run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.base.errors import Interrupted, UsageError
from onceproof.consumers.schedule import ConsumerSchedule
from onceproof.explore.minimal import shrink_run
from onceproof.run import Result
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

MANY = Path(__file__).parent.parent / "scenarios" / "two-hundred-messages.yaml"
RunOnce = Callable[[str | Path], Result]


@pytest.mark.parametrize("scenario", [find("amqp-redelivery-reorders"), pytest.param(MANY, marks=pytest.mark.full)])
def test_two_messages_two_consumers_and_one_crash_are_the_minimum(run_once: RunOnce, scenario: Path) -> None:
    run_dir = run_once(scenario).run_dir
    done = shrink_run(run_dir, anomaly=None, most=60, report=print)
    assert done.anomalies == ("reordered",) and done.shrunk.best.size == (2, 2, 1)
    assert done.shrunk.minimal and done.confirmed and done.exit_code == 0 and done.shrunk.executions <= 60
    held_back = {f"message {m}" for m in done.shrunk.best.messages} | {f"consumer {c}" for c in done.shrunk.best.names}
    (fault,) = done.shrunk.best.faults
    assert {tried.without for tried in done.shrunk.tried} == {*held_back, f"crash of {fault.target}"}
    assert not any("reordered" in tried.came_to for tried in done.shrunk.tried)
    assert load(done.scenario).expect.anomalies == ["reordered"]
    assert done.run_dir is not None and json.loads((done.run_dir / "verdict.json").read_text())["verdict"] == "violated"
    assert sorted(path.suffix for path in done.scenario.parent.iterdir()) in (["", ".yaml"], ["", ".jsonl", ".yaml"])


def test_an_interrupted_search_leaves_its_best_schedule_and_a_run_of_it(run_once: RunOnce) -> None:
    def report(line: str) -> None:
        print(line)  # noqa: T201  # pytest shows it for a failure
        if line.startswith("4 of"):
            raise Interrupted("interrupted by SIGINT")

    done = shrink_run(run_once("amqp-redelivery-reorders").run_dir, anomaly="reordered", most=60, report=report)
    assert done.exit_code == 130 and done.shrunk.interrupted and not done.shrunk.minimal
    assert done.shrunk.best.size == (2, 2, 1) and isinstance(done.shrunk.best, ConsumerSchedule)
    assert done.run_dir is not None and (done.run_dir / "picture.svg").exists()
    assert load(done.scenario).claim.order == "per-partition"


def test_a_run_without_the_finding_is_refused(run_once: RunOnce) -> None:
    with pytest.raises(UsageError, match=r"the run is held.*\n.*shrink a run that is violated"):
        shrink_run(run_once("amqp-queue-per-consumer").run_dir, anomaly=None, most=60, report=print)
    with pytest.raises(UsageError, match=r"shows no 'reorderd'.*reordered"):
        shrink_run(run_once("amqp-redelivery-reorders").run_dir, anomaly="reorderd", most=60, report=print)
