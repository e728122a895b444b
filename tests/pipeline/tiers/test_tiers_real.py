"""The kept tier on a real job: which JVM each restart had, and that the verdict does not depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.api import runs
from onceproof.api.faults import Crash
from onceproof.base.timeline import read_events
from onceproof.history.run_record import JvmRecord, RunRecord
from onceproof.judge.findings import Outcome
from onceproof.reports import tiers

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def jvms_of(run_dir: Path) -> list[JvmRecord]:
    job = RunRecord.read(run_dir).job
    assert job is not None
    return job.jvms


@pytest.mark.full
def test_a_kept_jvm_serves_each_restart_and_a_naive_job_is_caught(tmp_path: Path) -> None:
    """At every point where the checkpoint gate holds a driver without state: only the replay of batch 1 writes twice."""
    chaos = [
        Crash("driver", batch=1, point="after-sink-commit"),
        Crash("driver", batch=2, point="after-offset-log"),
        Crash("driver", batch=3, point="before-offset-log"),
        Crash("driver", batch=4, point="after-commit-log"),
    ]
    done = runs.run("naive-append", chaos=chaos, runs_dir=tmp_path, tier="kept")
    assert all(fault.hit for fault in done.verdict.faults), done.verdict.faults
    assert done.verdict.outcome is Outcome.VIOLATED and set(done.verdict.anomalies()) == {"duplicate"}
    assert [(jvm.start, jvm.tier, jvm.why) for jvm in jvms_of(done.run_dir)] == [
        (0, "real", None),
        *((start, "kept", None) for start in range(1, 5)),
    ]
    committed = [one.data["batch"] for one in read_events(done.run_dir) if one.kind == "batch.committed"]
    assert sorted(set(committed)) == list(range(7))  # batch 0 has no input
    assert "4 of 4 restarts used the running JVM again" in str(tiers.sentence(RunRecord.read(done.run_dir)))
