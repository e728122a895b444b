"""Faults in the middle of a task, in the forms that no shipped scenario has: they bite, and what is said of them is so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from onceproof.run import Result

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]
SCENARIO = Path(__file__).parent / "scenarios" / "in-tasks.yaml"


def test_a_driver_killed_in_a_task_and_an_executor_that_is_taken_for_dead(
    run_once: Callable[[str | Path], Result],
) -> None:
    result = run_once(SCENARIO)
    crash, stall = result.verdict.faults
    assert crash.hit and stall.hit, result.verdict
    assert list(result.verdict.anomalies()) == ["duplicate"]
    assert "never delivered" in " ".join(crash.evidence) and "the driver was started again" in crash.evidence
    said = " ".join(stall.evidence)
    assert re.search(r"Python worker \d+ of executor \d+", said) and "ended in ExecutorLostFailure" in said
    assert "delivered after the batch's commit; the service answered: INSERT 0 1" in said
    # The rows before the frame stand twice in both batches, and in the second the very row of the frame as well, last.
    history = result.run_dir / "history"
    twice = f"""
        WITH rows AS (
            SELECT CAST(content ->> 'src_offset' AS INTEGER) AS position FROM '{history}/snapshot.parquet'
        ), batches AS (SELECT batch, start_offset, end_offset FROM '{history}/batches.parquet' WHERE batch IN (2, 4))
        SELECT batch, count(*) - count(DISTINCT position) FROM rows JOIN batches ON position >= start_offset AND position < end_offset
        GROUP BY batch ORDER BY batch"""
    (_, replayed), (_, woken) = duckdb.execute(twice).fetchall()
    assert replayed == 19 and woken >= 20
