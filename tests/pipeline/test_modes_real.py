"""Modes of Spark without a log entry before and after each batch: their runs say so, and are never held."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario_files.load import load_file

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "modes_job.py"

SCENARIO = """
stack: {{kafka: {{brokers: 1}}}}
input: [{{topic: lines, dataset: numbers, rows: 400, chunks: 4, options: {{rows: 400}}}}]
pipeline:
  command: ["{{python}}", "{job}", "{{kafka}}", "{{topic.lines}}", copies, "{{checkpoint}}/copy", {mode}]
  prepare: {{topics: {{copies: {{partitions: 1}}}}}}
outputs: {{copies: {{topic: copies, identity: [id]}}}}
oracle: {{kind: sql, queries: {{copies: "SELECT id, key, seq, payload FROM lines"}}}}
limits: {{deadline_s: 120, stuck_s: 30}}
"""


@pytest.mark.parametrize("mode", ["async", "continuous", "realtime"])
def test_a_run_in_another_mode_is_not_held_and_says_why(mode: str, tmp_path: Path) -> None:
    file = tmp_path / f"{mode}.yaml"
    file.write_text(SCENARIO.format(job=JOB, mode=mode))
    done = run(load_file(file), runs_dir=tmp_path)
    assert RunRecord.read(done.run_dir).modes == {"copy": mode}, done.verdict.reasons
    assert done.verdict.outcome is Outcome.INCONCLUSIVE, done.verdict.reasons
    assert any(reason.startswith("query copy uses ") for reason in done.verdict.reasons)
