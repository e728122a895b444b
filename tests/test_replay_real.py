"""`replay` and `shrink` of a Spark job: each execution starts its own services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.explore.minimal import shrink_run
from onceproof.explore.replay import replay
from onceproof.run import Result
from onceproof.scenario_files.load import load

pytestmark = [pytest.mark.real, pytest.mark.full]

RunOnce = Callable[[str | Path], Result]


def test_a_replay_of_a_job_has_the_same_verdict_and_leaves_no_folder(run_once: RunOnce) -> None:
    run_dir = run_once("naive-append").run_dir
    done = replay(run_dir, times=1, report=print)
    assert (done.same, done.verdicts, done.different, done.start_s) == (1, {"violated": 1}, (), 0.0)
    assert not (run_dir / "replays").exists()


def test_shrinking_a_job_removes_chunks_and_keeps_the_fault(run_once: RunOnce) -> None:
    run = run_once("naive-append")
    done = shrink_run(run.run_dir, anomaly=None, most=8, report=print)
    assert set(done.anomalies) == set(run.verdict.anomalies())
    small = load(done.scenario)
    assert len(small.chaos) == 1 and small.input[0].chunks < done.whole.sizes()["chunks"]
    assert done.confirmed
