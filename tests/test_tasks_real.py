"""Faults in the middle of a task, in forms that no shipped scenario has: they hit, and their evidence is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from onceproof.run import Result

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]
SCENARIO = Path(__file__).parent / "scenarios" / "in-tasks.yaml"


def test_a_crashed_driver_and_a_stalled_executor_in_a_task_cause_duplicates(
    run_once: Callable[[str | Path], Result],
) -> None:
    result = run_once(SCENARIO)
    crash, stall = result.verdict.faults
    assert crash.hit and stall.hit, result.verdict
    assert list(result.verdict.anomalies()) == ["duplicate"]
    assert "never delivered" in " ".join(crash.evidence) and "the driver was started again" in crash.evidence
    evidence = " ".join(stall.evidence)
    assert re.search(r"Python worker \d+ of executor \d+", evidence) and "ended in ExecutorLostFailure" in evidence
    assert "delivered after the batch's commit; the service answered: INSERT 0 1" in evidence
    # In both batches the rows before the frame are there twice; in the second batch the last one, the frame's row, is too.
    history = result.run_dir / "history"
    twice = f"""
        WITH rows AS (
            SELECT CAST(content ->> 'src_offset' AS INTEGER) AS position FROM '{history}/snapshot.parquet'
        ), batches AS (SELECT batch, start_offset, end_offset FROM '{history}/batches.parquet' WHERE batch IN (2, 4))
        SELECT batch, count(*) - count(DISTINCT position) FROM rows JOIN batches ON position >= start_offset AND position < end_offset
        GROUP BY batch ORDER BY batch"""
    (_, replayed), (_, woken) = duckdb.execute(twice).fetchall()
    assert replayed == 19 and woken >= 20
