"""`replay` and `shrink` of a Spark job, on services that stay up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceproof.explore.minimal import shrink_run
from onceproof.explore.replay import replay, stored_scenario
from onceproof.explore.shrink import Shrink
from onceproof.history.run_record import RunRecord
from onceproof.kinds.contract import kind_of
from onceproof.pipeline.schedule import BatchSchedule
from onceproof.run import Result
from onceproof.scenario.schedule import Schedule
from onceproof.scenario_files.load import load

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(1200)]

RunOnce = Callable[[str | Path], Result]


def test_replays_of_a_job_have_the_same_findings_on_one_stack(run_once: RunOnce) -> None:
    run_dir = run_once("naive-append").run_dir
    done = replay(run_dir, times=2, report=print)
    assert (done.same, done.verdicts, done.different, done.starts) == (2, {"violated": 2}, (), 1)
    assert done.start_s > 0 and not (run_dir / "replays").exists()


def test_a_replay_can_start_its_own_services(run_once: RunOnce) -> None:
    done = replay(run_once("naive-append").run_dir, times=1, report=print, fresh_stack=True)
    assert (done.same, done.starts, done.start_s) == (1, 0, 0.0)


def smallest(whole: BatchSchedule) -> Iterator[BatchSchedule]:
    """Every schedule of one record in each chunk, from the smallest on: what a search by brute force tries."""
    for chunks in range(1, whole.chunks + 1):
        for fault in whole.faults:
            yield BatchSchedule(chunks, 1, (fault,))


@pytest.mark.parametrize("name", ["naive-append", "naive-kafka-sink"])
def test_shrinking_a_job_finds_the_minimum_that_brute_force_finds(
    run_once: RunOnce, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_once(name)
    results: dict[Schedule, bool] = {}
    shows = Shrink._shows

    def noted(search: Shrink, schedule: Schedule) -> bool:
        results[schedule] = shows(search, schedule)
        return results[schedule]

    monkeypatch.setattr(Shrink, "_shows", noted)
    done = shrink_run(run.run_dir, anomaly=None, most=60, report=print)
    assert set(done.anomalies) == set(run.verdict.anomalies())
    assert done.shrunk.minimal and done.confirmed and done.shrunk.executions <= 60
    small = load(done.scenario)
    best = done.shrunk.best
    assert isinstance(best, BatchSchedule) and len(small.chaos) == 1
    assert (small.input[0].chunks, small.input[0].rows) == (best.chunks, best.chunks * best.records)
    assert done.run_dir is not None and RunRecord.read(done.run_dir).shared_stack is not None

    # By brute force: of all schedules with one record in each chunk, the first that shows the finding. Smaller ones either cannot
    # reach the fault's batch (such a scenario is refused), or the search has executed them, and they did not show it.
    whole = kind_of(stored_scenario(run.run_dir)).whole(stored_scenario(run.run_dir)).schedule
    before = [each for each in smallest(whole) if each.chunks < best.chunks]
    assert best.records == 1
    assert all(not results.get(each, False) for each in before)
    assert all(each in results or each.chunks <= each.faults[0].at.batch for each in before)
