"""Retention under a Spark job: where it can be placed, what it deletes, what its proof needs, and that a naive job loses flights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.retention import LOST, DriverRetention, DriverRetentionSpec, middles
from onceproof.faults.contract import Fault, Occurrence, SpecProblem
from onceproof.pipeline.supervisor import Exit
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point

Problems = Callable[..., list[SpecProblem]]


def spec(point: str = "after-offset-log") -> dict[str, Any]:
    return {"fault": "retention", "target": "driver", "at": {"batch": 2, "point": point}}


def test_it_strikes_a_batch_that_is_planned_and_not_read(problems: Problems) -> None:
    assert problems(spec()) == []
    (problem,) = problems(spec("after-sink-commit"))
    assert problem.loc == ("at", "point") and "after-offset-log" in problem.hint
    (problem,) = problems(spec() | {"at": {"batch": 0, "point": "after-offset-log"}})
    assert problem.loc == ("at", "batch")


@pytest.mark.parametrize(("policy", "refused"), [("compact", True), ("compact,delete", False), ("delete", False)])
def test_a_topic_that_is_only_compacted_is_refused(
    policy: str,
    refused: bool,
    scenario: Callable[..., Scenario],
    problems_of: Callable[[dict[str, Any], Scenario], list[SpecProblem]],
) -> None:
    made = scenario()
    source = made.input[0].model_copy(update={"config": {"cleanup.policy": policy}})
    found = problems_of(spec(), made.model_copy(update={"input": [source]}))
    assert [problem.hint for problem in found] == ["set cleanup.policy to compact,delete"] * refused


def test_it_deletes_the_older_half_of_the_batch_in_each_partition_that_has_records() -> None:
    assert middles({0: 100, 1: 50}, {0: 200, 1: 50, 2: 1}) == {0: 150, 2: 1}, "also the only record of a partition"
    assert middles({}, {}) == {}


ERROR = "org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not available"
WARNING = (
    "WARN KafkaDataConsumer:\nSome data may have been lost because they are not available in Kafka any more; either the"
)


@pytest.mark.parametrize(
    ("oldest", "committed", "log", "hit", "shows"),
    [
        (150, True, "", True, "flights/0 began at offset 150, and batch 2 there at 100"),
        (150, True, "", True, "batch 2 was committed all the same"),
        (150, False, ERROR, True, "the next driver failed, and logged 'KafkaIllegalStateException: Some data"),
        (100, True, "", False, "the log deleted no record of batch 2"),
    ],
)
def test_its_proof_is_the_start_of_the_log_and_what_the_next_driver_did(
    oldest: int, committed: bool, log: str, hit: bool, shows: str, seen: Callable[..., Occurrence]
) -> None:
    one = struck(oldest)
    proof = one.prove(context(committed, [log]), seen(Point.AFTER_OFFSET_LOG, "checkpoint"))
    assert proof.hit is hit and shows in " ".join(map(str, proof.evidence)), proof


def test_the_error_is_remembered_when_another_start_has_emptied_the_log(seen: Callable[..., Occurrence]) -> None:
    logs, exits = [ERROR, ""], [None, Exit(1, 1, 5.0)]
    job = SimpleNamespace(
        log_contains=lambda words: words in logs.pop(0), failed_since=lambda _: exits.pop(0), restarted_since=bool
    )
    checkpoint = SimpleNamespace(log_exists=lambda *_: False)
    of_run: Any = SimpleNamespace(job=job, checkpoint=checkpoint)
    one, where = struck(150), seen(Point.AFTER_OFFSET_LOG, "checkpoint")
    assert one._went_on(of_run, where) is None, "no driver has ended yet"
    assert one._went_on(of_run, where) == f"the next driver failed, and logged {LOST!r}"


@pytest.mark.parametrize("log", ["OperationalError: the sink is down", WARNING])
def test_a_driver_that_fails_for_another_reason_shows_nothing(log: str, seen: Callable[..., Occurrence]) -> None:
    failing = context(False, [log])
    assert struck(150)._went_on(failing, seen(Point.AFTER_OFFSET_LOG, "checkpoint")) is None


def test_a_batch_that_was_committed_before_the_kill_is_a_miss(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    proof = fault(spec()).prove(context(True, [""]), seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and "was no longer open" in str(proof.evidence[0])


def struck(oldest: int) -> DriverRetention:
    one = DriverRetention(DriverRetentionSpec.model_validate(spec()))
    one._was_open, one._starts, one._oldest = True, {("flights", 0): 100}, {("flights", 0): oldest}
    return one


def context(committed: bool, logs: list[str]) -> Any:
    job = SimpleNamespace(
        log_contains=lambda words: words in logs[0],
        failed_since=lambda _at: Exit(1, 1, 5.0),
        restarted_since=lambda _start: True,
    )
    return SimpleNamespace(job=job, checkpoint=SimpleNamespace(log_exists=lambda *_: committed))
