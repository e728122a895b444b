"""A job with a trigger of an hour, which ``pipeline: {trigger: fast}`` shortens from outside, in each start of the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.timeline import read_events
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario_files.load import load_file

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]

SCENARIO = """
base: orders-with-payments
pipeline: {args: {trigger: 1 hour}, trigger: fast}
"""


def test_a_query_does_not_wait_for_its_trigger_and_the_verdict_says_so(tmp_path: Path) -> None:
    file = tmp_path / "hourly.yaml"
    file.write_text(SCENARIO)
    done = run(load_file(file), runs_dir=tmp_path)
    assert done.verdict.outcome is Outcome.HELD, done.verdict.reasons
    record = RunRecord.read(done.run_dir)
    assert record.triggers == {"orders": 3600.0}
    assert not record.nudged, "the second driver waits less too, although it replays its first batch"
    assert "query orders did not wait for its trigger of 3600 s (pipeline: trigger: fast)" in done.verdict.reasons
    events = read_events(done.run_dir)
    assert len([event for event in events if event.kind == "trigger.shortened"]) == 1
    assert len({event.data["batch"] for event in events if event.kind == "batch.committed"}) > 6
