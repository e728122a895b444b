"""A message that the broker took back from a living consumer: it is given to another, or was settled without an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.timeline import Timeline
from onceproof.consumers import executor as executor_module
from onceproof.consumers import layout as layouts
from onceproof.consumers.executor import ScheduleExecutor
from onceproof.consumers.gate import StepReport, StepRequest
from onceproof.consumers.layout import GROUP, Message
from onceproof.consumers.state import ConsumerState
from onceproof.reports.picture.picture import of_trace
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

M4 = Message(4, "orders")
Make = Callable[..., ScheduleExecutor]


class Steps:
    """Consumer processes that all give the same reports on their steps."""

    def __init__(self, *reports: StepReport, before: str = "acknowledge") -> None:
        self._reports = list(reports)
        self._before = before

    def mark(self, name: str) -> str:
        return name

    def await_step(self, name: str) -> StepRequest:
        return StepRequest(consumer=name, before=self._before)  # type: ignore[arg-type]

    def step(self, name: str) -> StepRequest:
        return StepRequest(consumer=name, before="take", did=self._reports.pop(0))


def nothing(*_arguments: object) -> None:
    """A method of queues that does nothing."""


SHARE = {"await_gone": nothing, "committed": nothing, "lock_briefly": nothing}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The executor of three consumers, m4 published; the test decides what its processes and its broker do."""

    def made(
        processes: Any, queues: dict[str, Any], name: str = "share-group-lock-timeout-duplicates", **spec: Any
    ) -> ScheduleExecutor:
        scenario = load(find(name))
        consumers = scenario.pipeline.consumers
        assert consumers is not None
        pipeline = scenario.pipeline.model_copy(
            update={"consumers": consumers.model_copy(update={"names": ["c1", "c2", "c3"], **spec})}
        )
        layout = layouts.of_scenario(scenario.model_copy(update={"pipeline": pipeline}))
        assert pipeline.consumers is not None
        timeline, there = Timeline(tmp_path / "events.jsonl"), SimpleNamespace(**queues)
        messages = [Message(number, "orders") for number in range(1, 5)]
        executor = ScheduleExecutor(pipeline.consumers, messages, layout, processes, there, [], timeline, [], 1.0)  # type: ignore[arg-type]
        executor._published = 4
        executor._open[GROUP, 4] = 1
        executor._ready[GROUP, "orders"] = set()
        return executor

    return made


def consumer(executor: ScheduleExecutor, name: str, **state: Any) -> ConsumerState:
    (its,) = (each for each in executor._consumers if each.name == name)
    for field, value in state.items():
        setattr(its, field, value)
    return its


TAKEN = StepReport(step="take", message="m4", queue="orders")


def test_a_lock_that_ends_without_a_fault_ends_the_execution(make: Make) -> None:
    executor = make(Steps(TAKEN), SHARE)
    consumer(executor, "c1", holds=M4)
    with pytest.raises(
        executor_module._CannotContinue, match=r"c3 was given message 4, which c1 still has: the lock of c1 ended"
    ):
        executor._take(consumer(executor, "c3"))
    assert not executor.stuck, "inconclusive: it says nothing about the pipeline"


def test_a_refused_acknowledgement_of_a_consumer_that_is_not_slow_ends_the_execution(make: Make) -> None:
    executor = make(Steps(StepReport(step="acknowledge", message="m4", lost=True, fenced=True)), SHARE)
    with pytest.raises(executor_module._CannotContinue, match=r"c1 no longer has message 4: the lock of c1 ended"):
        executor._finish(consumer(executor, "c1", holds=M4))


@pytest.mark.parametrize("state", [{"kept": True, "lapsed": True}, {"lapsed": True}])
def test_the_message_of_a_slow_consumer_may_be_given_to_others(make: Make, state: dict[str, bool]) -> None:
    executor = make(Steps(TAKEN), SHARE)
    consumer(executor, "c1", holds=M4, **state)
    executor._take(consumer(executor, "c3"))
    assert consumer(executor, "c3").holds == M4


@pytest.mark.parametrize("state", [{"kept": True, "lapsed": True}, {"lapsed": True}, {"cut_off": True}])
def test_a_consumer_that_dies_without_its_message_returns_and_settles_nothing(
    make: Make, state: dict[str, bool]
) -> None:
    executor = make(Steps(), SHARE)
    dead = consumer(executor, "c1", holds=M4, acknowledged=True, reconnects=True, **state)
    executor._after_death(dead)
    assert [event.kind for event in executor.trace] == ["crash"] and executor._open[GROUP, 4] == 1
    assert not (dead.alive or dead.held_back or dead.lapsed or dead.cut_off or dead.reconnects) and dead.holds is None


def test_an_effect_counts_if_the_broker_has_its_commit_whose_answer_was_lost(make: Make) -> None:
    executor = make(Steps(), SHARE | {"committed": lambda _group: {0: 4}}, "ack-lost-transactional")
    executor._record.message("effect", "c1", M4)
    executor._record.message("lost", "c1", M4)
    executor._resolve_lost_step(consumer(executor, "c1"), M4)
    assert [event.kind for event in executor.trace] == ["effect", "lost", "commit"] and executor._open[GROUP, 4] == 0
    drawn = of_trace("t", executor.trace, ["c1"], "out", ["a"] * 4, with_effect=True)
    assert [result.message for result in drawn.results] == [4]
    assert [row.kind for row in drawn.rows] == ["effect", "lost"], "the commit is not a step of the consumer"


def test_an_effect_counts_if_its_fault_saw_the_brokers_answer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make(Steps(), SHARE, "amqp-ack-lost-transactional")
    monkeypatch.setattr(executor.faults, "armed", [None])
    monkeypatch.setattr(executor.faults, "arrived", lambda *_asked: True)
    executor._record.message("lost", "c1", M4)
    executor._resolve_lost_step(consumer(executor, "c1"), M4)
    assert [event.kind for event in executor.trace] == ["lost", "commit"] and executor._open[GROUP, 4] == 0


def test_without_transactions_a_lost_acknowledgement_that_arrived_only_settles_the_message(make: Make) -> None:
    executor = make(Steps(), SHARE | {"committed": lambda _group: {0: 4}}, "ack-lost-duplicates")
    executor._resolve_lost_step(consumer(executor, "c1"), M4)
    assert executor.trace == [] and executor._open[GROUP, 4] == 0
