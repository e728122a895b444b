"""Task attempts in Spark's event log: which belong to a batch, and which count as a retry or as a won race."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.chaos.stall.task import describe_winner
from onceproof.faults.tasks import describe_retry
from onceproof.pipeline.spark_events import Attempt, attempts
from onceproof.pipeline.spark_tasks import TaskProcess

LOST = {
    "Reason": "ExecutorLostFailure",
    "Executor ID": "0",
    "Loss Reason": "Command exited with code 137. More follows.",
}
DIED = {"Reason": "ExceptionFailure", "Description": "Python worker exited unexpectedly (crashed). Consider this."}
OWN = {"Reason": "ExceptionFailure", "Description": "ValueError: no such plane"}
WORKER = TaskProcess("python-worker", 11, 1, "0", 10)
EXECUTOR = TaskProcess("executor", 10, 1, "0", 10)
LOCAL = TaskProcess("python-worker", 11, 1, None, 10)


def job(batch: int, *stages: int, query: str = "q") -> dict[str, Any]:
    properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": query}
    return {"Event": "SparkListenerJobStart", "Job ID": 0, "Stage IDs": list(stages), "Properties": properties}


def task(stage: int, attempt: int, executor: str, *, at: int, end: dict[str, Any] | None = None, **info: Any) -> Any:
    info = {"Index": 0, "Attempt": attempt, "Executor ID": executor, "Speculative": False, "Launch Time": at} | info
    event = {"Event": "SparkListenerTaskStart", "Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info}
    return event if end is None else event | {"Event": "SparkListenerTaskEnd", "Task End Reason": end}


def write(folder: Path, *events: dict[str, Any], name: str = "app-1.inprogress", rest: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(event) + "\n" for event in events) + rest)
    return folder


def test_only_attempts_of_the_batch_and_its_query_are_returned(tmp_path: Path) -> None:
    success = {"Reason": "Success"}
    folder = write(
        tmp_path / "e",
        {"Event": "SparkListenerLogStart", "Spark Version": "4.2.0"},
        {"Event": "SparkListenerJobStart", "Job ID": 9, "Stage IDs": [9]},  # a job outside of queries has no properties
        task(9, 0, "0", at=1, end=success),
        job(1, 0),
        task(0, 0, "0", at=2, end=success),
        job(2, 1, query="other"),
        task(1, 0, "0", at=3, end=success),
        job(2, 2, 3),
        task(2, 0, "0", at=4),
        task(3, 0, "1", at=5, end=success),
    )
    assert [(a.stage, a.executor, a.reason) for a in attempts(folder, 2, "q")] == [(2, "0", None), (3, "1", "Success")]
    assert len(attempts(folder, 2, None)) == 3
    assert attempts(folder, 3, "q") == []


def test_the_end_of_an_attempt_replaces_its_start(tmp_path: Path) -> None:
    folder = write(tmp_path / "e", job(2, 1), task(1, 0, "0", at=1), task(1, 0, "0", at=1, end=LOST))
    (one,) = attempts(folder, 2, "q")
    assert (one.reason, one.why, one.application) == ("ExecutorLostFailure", "Command exited with code 137", "app-1")
    assert "attempt 0 of task 0 in stage 1 on executor 0 ended in ExecutorLostFailure" in one.describe()


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    half = json.dumps(task(1, 0, "0", at=1, end=LOST))[:-3]
    folder = write(tmp_path / "e", job(2, 1), task(1, 0, "0", at=1), rest=half)
    assert [a.reason for a in attempts(folder, 2, "q")] == [None]


def test_each_driver_start_is_an_application_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path / "e", job(2, 5), task(5, 0, "driver", at=1, end=DIED), name="local-1")
    write(folder, job(2, 0), task(0, 0, "driver", at=9, end={"Reason": "Success"}), name="local-2.inprogress")
    found = attempts(folder, 2, "q")
    assert [a.application for a in found] == ["local-1", "local-2"]
    sentence = describe_retry(found, LOCAL)
    assert sentence is not None and sentence.endswith("of the next driver")


def one(attempt: int, executor: str, end: dict[str, Any] | None, *, at: int, task: int = 0, **more: Any) -> Attempt:
    end = end or {}
    why = str(end.get("Loss Reason") or end.get("Description") or "")
    return Attempt("app", 1, task, attempt, executor, False, at, end.get("Reason"), why, **more)


SUCCESS = one(1, "1", {"Reason": "Success"}, at=2)


@pytest.mark.parametrize(
    ("lost", "victim", "counts"),
    [
        (one(0, "0", LOST, at=1), EXECUTOR, True),
        (one(0, "0", LOST, at=1), WORKER, True),  # the worker died with its executor
        (one(0, "0", DIED, at=1), WORKER, True),
        (one(0, "0", DIED, at=1), EXECUTOR, False),
        (one(0, "0", OWN, at=1), WORKER, False),  # the task itself raised an exception
        (one(0, "1", LOST, at=1), EXECUTOR, False),  # another executor was lost
        (one(0, "0", LOST, at=1, task=7), EXECUTOR, False),  # that task was not tried again
        (one(0, "0", {"Reason": "Success"}, at=1), EXECUTOR, False),
        (one(0, "0", LOST, at=3), EXECUTOR, False),  # the success came before the loss
    ],
)
def test_a_retry_is_a_lost_attempt_and_a_later_success_at_the_same_task(
    lost: Attempt, victim: TaskProcess, counts: bool
) -> None:
    assert (describe_retry([lost, SUCCESS], victim) is not None) is counts


def test_only_the_same_task_is_a_retry() -> None:
    """The task with that number in another stage is not a retry, except in the next driver, which numbers its stages again."""
    lost = one(0, "0", DIED, at=1)
    assert describe_retry([lost, SUCCESS], WORKER) is not None
    assert describe_retry([lost, replace(SUCCESS, stage=2)], WORKER) is None
    assert describe_retry([lost, replace(SUCCESS, stage=2, application="app-2")], WORKER) is not None


def test_the_speculative_attempt_wins_if_it_alone_succeeds() -> None:
    stalled = one(0, "0", None, at=1)
    speculative = replace(SUCCESS, speculative=True)
    sentence = describe_winner([stalled, speculative], WORKER)
    assert sentence is not None and "speculative attempt 1" in sentence
    assert describe_winner([stalled], WORKER) is None
    assert (
        describe_winner([replace(stalled, reason="Success"), replace(speculative, reason="TaskKilled")], WORKER) is None
    )
    assert describe_winner([replace(stalled, executor="2"), speculative], WORKER) is None
