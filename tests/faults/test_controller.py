"""The controller: which position fires which fault, and that it heals every fault however the run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.masking import hiding
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.faults.controller import FaultController
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.instruments.failpoints import Parked, SinkEvent
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point


class Recorded:
    """A fault that does nothing and records the calls of its methods."""

    Spec: ClassVar[type[FaultSpec]] = FaultSpec
    about: ClassVar[str] = "for this test"
    strikes: ClassVar[Callable[[], None]]
    proves: ClassVar[Callable[[], Proof]]

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.calls: list[str] = []

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        return []

    @classmethod
    def placement(cls, spec: Any, scenario: Scenario) -> Placement:
        return Placement("n/a", "", "", "")

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self.spec.at.point

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self.calls.append("strike")
        type(self).strikes()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        self.calls.append("prove")
        return type(self).proves()

    def heal(self, context: FaultContext) -> None:
        self.calls.append("heal")


class Queries:
    """The part of the checkpoint watcher that the controller uses: batch 0 is empty, each other batch has seven records."""

    def query_of_id(self, query_id: str) -> str | None:
        return {"id-1": "checkpoint"}.get(query_id)

    def batch(self, query: str, batch: int) -> Batch:
        return Batch(query, batch, {"t": {0: 7 * max(batch - 1, 0)}}, {"t": {0: 7 * batch}}, None, 0.0, 0)

    def reads_nothing(self, query: str, batch: int) -> bool:
        return batch == 0

    def batches(self) -> list[Batch]:
        return []


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    one = Timeline(tmp_path / "events.jsonl")
    yield one
    one.close()


@pytest.fixture
def conduct(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FaultController]:
    def make(*specs: FaultSpec, arm: bool = True) -> FaultController:
        monkeypatch.setattr(faults, "get", lambda *_key: Recorded)
        Recorded.strikes = staticmethod(lambda: None)
        Recorded.proves = staticmethod(lambda: Proof(True, ("seen",)))
        controller = FaultController(list(specs), timeline)
        if arm:
            controller.arm(FaultContext(cast(Any, None), cast(Any, None), cast(Any, Queries()), timeline))
        return controller

    return make


def spec(
    batch: int = 2,
    point: Point = Point.AFTER_SINK_COMMIT,
    query: str | None = None,
    target: str = "driver",
    attempt: int | None = None,
) -> FaultSpec:
    return FaultSpec(fault="recorded", target=target, at=At(batch=batch, point=point, query=query, attempt=attempt))


def calls(controller: FaultController, index: int = 0) -> list[str]:
    return cast(Recorded, controller.armed[index].fault).calls


def settle(controller: FaultController) -> None:
    wait_until("the fault to settle", lambda: controller.any_fired and controller.quiet, deadline_s=5)
    wait_until("its proof", lambda: all(a.proof for a in controller.armed if a.fired_at), deadline_s=5)


def test_only_the_named_position_fires(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(batch=2, query="checkpoint"))
    controller.on_log("checkpoint", 1, Point.AFTER_SINK_COMMIT)
    controller.on_log("checkpoint", 2, Point.AFTER_OFFSET_LOG)
    controller.on_log("other", 2, Point.AFTER_SINK_COMMIT)
    assert not controller.any_fired
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    assert calls(controller) == ["strike", "prove", "heal"]
    assert controller.rows()[0]["hit"] is True


def test_a_fault_fires_once(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec())
    for _ in range(3):
        controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    assert calls(controller).count("strike") == 1


def test_a_fault_that_names_an_attempt_fires_in_that_attempt(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(attempt=3), spec(attempt=2), spec())
    for attempt in (1, 2, 3):
        controller.on_write("checkpoint", 2, Point.AFTER_SINK_COMMIT, attempt)
        fired = [armed.fired_at is not None for armed in controller.armed]
        assert fired == [attempt == 3, attempt >= 2, True]
    settle(controller)
    rows = controller.rows()
    first_lines = [row["evidence"].splitlines()[0] for row in rows]
    assert first_lines == ["it struck attempt 3 at batch 2", "it struck attempt 2 at batch 2", "seen"]


def test_a_fault_that_names_an_attempt_does_not_fire_where_attempts_are_not_counted(
    conduct: Callable[..., FaultController],
) -> None:
    controller = conduct(spec(attempt=2))
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    assert not controller.any_fired
    evidence = controller.rows()[0]["evidence"]
    assert evidence.startswith("armed, but batch 2 was never seen at after-sink-commit in attempt 2")
    assert ("does not count attempts" in evidence) and "leave out `attempt`" in evidence


def test_at_one_position_all_targets_are_struck_once_and_the_driver_last(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(spec(), spec(target="broker"), spec(target="postgres"), spec(target="broker"))
    order: list[str] = []
    monkeypatch.setattr(Recorded, "strike", lambda self, context, seen: order.append(self.spec.target))
    controller.on_write("checkpoint", 2, Point.AFTER_SINK_COMMIT, 1)
    settle(controller)
    assert order == ["broker", "postgres", "driver"], "each target is struck once"
    assert [armed.fired_at is not None for armed in controller.armed] == [True, True, True, False]


def test_damage_to_the_checkpoint_counts_as_a_strike_at_the_driver(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(spec(target="checkpoint"), spec(target="broker"), spec())
    order: list[str] = []
    monkeypatch.setattr(Recorded, "strike", lambda self, context, seen: order.append(self.spec.target))
    controller.on_write("checkpoint", 2, Point.AFTER_SINK_COMMIT, 1)
    settle(controller)
    assert order == ["broker", "checkpoint"]


def test_a_parked_sink_waits_for_all_strikes_even_if_one_fault_is_settled_early(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(
        spec(7, Point.BEFORE_SINK_COMMIT, target="postgres"), spec(7, Point.BEFORE_SINK_COMMIT, target="kafka")
    )
    done: list[str] = []

    def strike(self: Recorded, context: FaultContext, seen: Occurrence) -> None:
        done.append(self.spec.target)
        if self.spec.target == "postgres":
            raise RuntimeError("it fails")

    monkeypatch.setattr(Recorded, "strike", strike)
    controller.on_point(Parked(Point.BEFORE_SINK_COMMIT, "kafka", 7, "id-1", {}, lambda: done.append("released")))
    settle(controller)
    assert done[:3] == ["postgres", "kafka", "released"]


def test_secrets_are_masked_in_evidence_events_and_errors(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller = conduct(spec(), spec(target="broker"))

    def leaks(*_args: object) -> None:
        raise RuntimeError("postgres://u:hunter2@host is away")

    Recorded.proves = staticmethod(lambda: Proof(True, (f"{'long ' * 199}hunter2",)))
    monkeypatch.setattr(Recorded, "heal", leaks)
    with hiding(["hunter2"]):
        controller.on_sink_event(
            SinkEvent("attempt-failed", "postgres", 2, "id-1", {"message": "no hunter2", "n": 1}, at=5.0)
        )
        controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
        settle(controller)
        for thread in controller._threads:
            thread.join(5)
    assert "***" in controller.rows()[0]["evidence"] and "***" in str(controller.armed[0].not_healed)
    written = (tmp_path / "events.jsonl").read_text() + str(controller.rows())
    assert "hunter2" not in written and "no ***" in written


def test_a_strike_that_fails_does_not_prevent_the_others(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(spec(), spec(target="broker"))

    def strike(self: Recorded, context: FaultContext, seen: Occurrence) -> None:
        if self.spec.target == "broker":
            raise RuntimeError("no leader")

    monkeypatch.setattr(Recorded, "strike", strike)
    controller.on_write("checkpoint", 2, Point.AFTER_SINK_COMMIT, 1)
    settle(controller)
    assert [row["hit"] for row in controller.rows()] == [True, False]


def test_a_parked_sink_is_released_once_all_faults_have_struck(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(
        spec(7, Point.BEFORE_SINK_COMMIT, target="postgres"), spec(7, Point.BEFORE_SINK_COMMIT, target="kafka")
    )
    done: list[str] = []

    def strike(self: Recorded, context: FaultContext, seen: Occurrence) -> None:
        assert seen.release is not None
        seen.release()
        done.append(self.spec.target)

    hold = threading.Event()
    monkeypatch.setattr(Recorded, "strike", strike)
    Recorded.proves = staticmethod(lambda: Proof(hold.wait(5), ()))
    controller.on_point(Parked(Point.BEFORE_SINK_COMMIT, "kafka", 7, "id-1", {}, lambda: done.append("released")))
    hold.set()
    assert done[:3] == ["postgres", "kafka", "released"]


def test_a_log_write_is_held_only_for_a_fault_that_asks_for_it(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(spec(batch=2), spec(batch=3))
    resume: list[Callable[[], None]] = []

    def strike(self: Recorded, context: FaultContext, seen: Occurrence) -> None:
        if seen.batch == 3:
            assert seen.hold is not None
            resume.append(seen.hold())

    monkeypatch.setattr(Recorded, "strike", strike)
    assert controller.on_write("checkpoint", 2, Point.AFTER_SINK_COMMIT, 1) is None
    held = controller.on_write("checkpoint", 3, Point.AFTER_SINK_COMMIT, 1)
    settle(controller)
    assert held is not None and not held.is_set(), (
        "the driver stays held after the fault is settled, until the fault resumes it"
    )
    resume[0]()
    assert held.is_set()


def test_nothing_fires_before_it_is_armed(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(), arm=False)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    assert not controller.any_fired
    assert "never armed" in controller.rows()[0]["evidence"]


def test_a_fault_that_never_fired_reports_where_it_waited(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(batch=9), spec(batch=9, query="flights"))
    row, of_query = controller.rows()
    assert row["hit"] is False and row["fired_at"] is None
    assert row["evidence"] == "armed, but batch 9 was never seen at after-sink-commit"
    assert of_query["evidence"] == "armed, but batch 9 of query flights was never seen at after-sink-commit"


def test_a_strike_that_fails_is_a_miss_and_is_healed(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec())

    def broken() -> None:
        raise RuntimeError("proxy gone")

    Recorded.strikes = staticmethod(broken)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    assert calls(controller) == ["strike", "heal"]
    assert controller.rows()[0]["hit"] is False
    assert "proxy gone" in controller.rows()[0]["evidence"]


def test_a_proof_that_fails_is_a_miss_and_is_healed(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec())

    def broken() -> Proof:
        raise RuntimeError("no election")

    Recorded.proves = staticmethod(broken)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    assert calls(controller) == ["strike", "prove", "heal"]
    assert controller.rows()[0]["hit"] is False


def test_a_parked_sink_that_no_fault_waits_for_is_released_at_once(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(batch=7, point=Point.BEFORE_SINK_COMMIT))
    released: list[int] = []
    controller.on_point(Parked(Point.BEFORE_SINK_COMMIT, "kafka", 6, "id-1", {}, lambda: released.append(1)))
    assert released == [1]
    assert not controller.any_fired


def test_a_parked_sink_is_released_when_its_fault_is_settled(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(batch=7, point=Point.BEFORE_SINK_COMMIT, query="checkpoint"))
    released: list[int] = []
    controller.on_point(Parked(Point.BEFORE_SINK_COMMIT, "kafka", 7, "id-1", {}, lambda: released.append(1)))
    settle(controller)
    wait_until("the release", lambda: released, deadline_s=5)


def test_sink_events_are_found_by_sink_query_batch_and_time(
    conduct: Callable[..., FaultController], timeline: Timeline
) -> None:
    controller = conduct(spec())
    context = controller._context
    assert context is not None
    controller.on_sink_event(SinkEvent("commit-failed", "postgres", 2, "id-1", {"error": "x"}, at=5.0))
    assert context.sink_event_since(6.0, "commit-failed", sink="postgres", query="checkpoint", batch=2) is None
    assert context.sink_event_since(5.0, "commit-failed", sink="kafka", query="checkpoint", batch=2) is None
    assert context.sink_event_since(5.0, "commit-failed", sink="postgres", query="other", batch=2) is None
    assert context.sink_event_since(5.0, "commit-failed", sink="postgres", query="checkpoint", batch=2) is not None


def test_heal_all_heals_what_is_in_progress(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec())
    hold = threading.Event()

    def slow() -> Proof:
        hold.wait(5)
        return Proof(True, ())

    Recorded.proves = staticmethod(slow)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    assert not controller.quiet
    controller.heal_all()
    controller.heal_all()
    assert calls(controller).count("heal") == 1 and controller.quiet
    hold.set()


def test_a_fault_in_a_batch_without_data_is_a_miss(conduct: Callable[..., FaultController]) -> None:
    controller = conduct(spec(batch=0))
    controller.on_log("checkpoint", 0, Point.AFTER_SINK_COMMIT)
    settle(controller)
    row = controller.rows()[0]
    assert row["hit"] is False
    assert "batch 0 read no input" in row["evidence"]


def test_a_heal_that_fails_is_an_environment_problem(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Recorded, context: FaultContext) -> None:
        raise RuntimeError("the broker does not come back")

    monkeypatch.setattr(Recorded, "heal", broken)
    controller = conduct(spec())
    controller.check()
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    with pytest.raises(EnvironmentProblem, match="could not be healed: the broker does not come back"):
        controller.check()


def test_heal_briefly_does_not_wait_for_a_slow_heal(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()
    monkeypatch.setattr(Recorded, "heal", lambda self, context: hold.wait(10))
    controller = conduct(spec())
    Recorded.proves = staticmethod(lambda: Proof(hold.wait(10), ()))
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    controller.heal_briefly(0.1)
    assert not controller.quiet
    hold.set()


def test_the_feed_continues_only_for_a_fault_that_needs_input(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, go_on = conduct(spec()), threading.Event()

    def waits() -> Proof:
        go_on.wait(5)
        return Proof(True, ("seen",))

    Recorded.proves = staticmethod(waits)
    assert controller.feeds
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    assert not controller.feeds and not controller.quiet
    monkeypatch.setattr(Recorded, "needs_input", True, raising=False)
    assert controller.feeds and not controller.quiet
    go_on.set()
    settle(controller)
