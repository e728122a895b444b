"""Aborted input and late commits: where they can be placed, and which records they take. The real scenarios show their effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.aborted_input import AbortedInput, AbortedInputSpec
from onceproof.chaos.late_commit import LateCommit, LateCommitSpec
from onceproof.faults.contract import Occurrence, SpecProblem
from onceproof.faults.foreign_transaction import takes
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import InputSpec, Scenario
from onceproof.scenario.points import Point

SPEC: dict[str, Any] = {
    "fault": "aborted-input",
    "target": "input",
    "at": {"batch": 2, "point": "after-offset-log"},
}


def problems(scenario: Scenario, **more: Any) -> list[SpecProblem]:
    return AbortedInput.problems(AbortedInputSpec.model_validate({**SPEC, **more}), scenario)


@pytest.fixture
def fed(scenario: Callable[..., Scenario]) -> Scenario:
    """A scenario that feeds 1,000 of 336,776 flights."""
    made = scenario()
    return made.model_copy(update={"input": [made.input[0].model_copy(update={"rows": 1_000})]})


def test_it_takes_the_records_after_those_that_are_fed(fed: Scenario, scenario: Callable[..., Scenario]) -> None:
    assert problems(fed) == [] and problems(fed, topic="flights") == []
    (problem,) = problems(scenario())
    assert problem.loc == ("records",) and "336776 records, and all of them are fed" in problem.message
    assert "rows: 336676" in (problem.hint or "")
    assert problems(fed, records=335_776) == [] and problems(fed, records=335_777) != []


def test_the_topic_must_be_an_input(fed: Scenario) -> None:
    (problem,) = problems(fed, topic="fligths")
    assert problem.loc == ("topic",) and "flights" in (problem.hint or "")
    two = fed.model_copy(update={"input": [*fed.input, InputSpec(topic="weather", dataset="weather")]})
    assert [p.message for p in problems(two)] == ["topic is missing: the input topics are flights, weather"]


def test_it_needs_a_point_at_the_checkpoint(fed: Scenario) -> None:
    assert problems(fed, at={"batch": 2, "point": "before-sink-commit"})[0].loc == ("at", "point")


class Full:
    """A producer whose queue is full, and that counts aborted transactions."""

    aborted = 0

    def __init__(self, _config: dict[str, Any]) -> None: ...

    def init_transactions(self, _timeout: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def produce(self, *_args: Any, **_more: Any) -> None:
        raise BufferError("the local queue is full")

    def abort_transaction(self, _timeout: float) -> None:
        Full.aborted += 1


def test_a_transaction_that_fails_midway_is_aborted(
    fed: Scenario, seen: Callable[..., Occurrence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceproof.faults.foreign_transaction.Producer", Full)
    kafka = SimpleNamespace(harness_client=lambda: {"bootstrap.servers": "127.0.0.1:1"})
    context: Any = SimpleNamespace(scenario=fed, stack=SimpleNamespace(kafka=kafka))
    with pytest.raises(BufferError):
        AbortedInput(AbortedInputSpec.model_validate(SPEC)).strike(context, seen(Point.AFTER_OFFSET_LOG))
    assert Full.aborted == 1


def test_a_batchs_offset_range_is_half_open() -> None:
    batch = Batch("q", 2, {"t": {0: 5}}, {"t": {0: 8}}, None, 0.0, 0)
    assert [takes(batch, "t", 0, [o]) for o in (4, 5, 7, 8)] == [False, True, True, False]
    assert not takes(batch, "t", 1, [5]) and not takes(batch, "other", 0, [5])


LATE = LateCommitSpec.model_validate({**SPEC, "fault": "late-commit", "after_s": 1.0})


class Open:
    """A transaction of another producer, as a fault sees it. ``taken``: what it answers, one after the other."""

    def __init__(self, *taken: list[int]) -> None:
        self.taken = list(taken)
        self.ended: list[str] = []

    def places(self) -> str:
        return "flights/0@5 to 8"

    def batches(self, _seen: Occurrence) -> list[int]:
        return self.taken.pop(0) if len(self.taken) > 1 else self.taken[0]

    def commit(self) -> None:
        self.ended.append("committed")
        self.taken = [[4]]

    def abort(self) -> None:
        self.ended.append("aborted")


def late(transaction: Any, seen: Occurrence) -> tuple[LateCommit, Any]:
    began = time.monotonic()
    checkpoint = SimpleNamespace(log_exists=lambda *_: True)
    timeline = SimpleNamespace(now=lambda: time.monotonic() - began)
    fault = LateCommit(LATE)
    fault._written = transaction
    context: Any = SimpleNamespace(checkpoint=checkpoint, timeline=timeline)
    return fault, context


def test_a_late_commit_hit_if_a_batch_took_the_records_before_it(seen: Callable[..., Occurrence]) -> None:
    transaction = Open([], [3])
    fault, context = late(transaction, seen(Point.AFTER_OFFSET_LOG))
    proof = fault.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and transaction.ended == ["committed"]
    assert [str(item) for item in proof.evidence[1:]] == [
        "batch 3 took them and was committed",
        "then their transaction was committed",
    ]


def test_a_late_commit_hit_too_if_the_job_waited_for_it(seen: Callable[..., Occurrence]) -> None:
    transaction = Open([])
    fault, context = late(transaction, seen(Point.AFTER_OFFSET_LOG))
    proof = fault.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "no batch had taken them" in str(proof.evidence[1])
    assert "batch 4 took them and was committed after that" in str(proof.evidence[2])
    fault.heal(context)
    assert transaction.ended == ["committed"]


def test_a_run_that_ends_early_aborts_the_open_transaction(seen: Callable[..., Occurrence]) -> None:
    transaction = Open([])
    fault, context = late(transaction, seen(Point.AFTER_OFFSET_LOG))
    fault.heal(context)
    fault.heal(context)
    assert transaction.ended == ["aborted"]
    assert not fault.prove(context, seen(Point.AFTER_OFFSET_LOG)).hit
