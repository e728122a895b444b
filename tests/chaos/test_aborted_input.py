"""Aborted input: where it can be placed, and which records it takes. The real scenarios show its effect."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.aborted_input import AbortedInput, AbortedInputSpec, _takes
from onceproof.faults.contract import Occurrence, SpecProblem
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
    monkeypatch.setattr("onceproof.chaos.aborted_input.Producer", Full)
    kafka = SimpleNamespace(harness_client=lambda: {"bootstrap.servers": "127.0.0.1:1"})
    context: Any = SimpleNamespace(scenario=fed, stack=SimpleNamespace(kafka=kafka))
    with pytest.raises(BufferError):
        AbortedInput(AbortedInputSpec.model_validate(SPEC)).strike(context, seen(Point.AFTER_OFFSET_LOG))
    assert Full.aborted == 1


def test_a_batchs_offset_range_is_half_open() -> None:
    batch = Batch("q", 2, {"t": {0: 5}}, {"t": {0: 8}}, None, 0.0, 0)
    assert [_takes(batch, "t", 0, [o]) for o in (4, 5, 7, 8)] == [False, True, True, False]
    assert not _takes(batch, "t", 1, [5]) and not _takes(batch, "other", 0, [5])
