"""When the run may end: no fault is about to fire, and what became of each one is recorded with its reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceproof.base.timeline import Timeline
from onceproof.faults.contract import Proof
from onceproof.faults.controller import FaultController
from onceproof.scenario.points import Point

from . import test_controller as shared

conduct, timeline = shared.conduct, shared.timeline


def test_the_run_does_not_end_while_a_fault_is_about_to_fire(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are read first, which may take longer than the watcher waits before it says that the batch is committed."""
    controller = conduct(shared.spec(point=Point.AFTER_COMMIT_LOG))
    during: list[tuple[bool, bool, bool]] = []

    def reached(*_: object) -> None:
        during.append((controller.any_fired, controller.quiet, controller.feeds))

    monkeypatch.setattr(controller._writes, "reached", reached)
    assert controller.quiet and controller.feeds
    controller.on_log("checkpoint", 2, Point.AFTER_COMMIT_LOG)
    assert during == [(False, False, False)]
    shared.settle(controller)
    assert controller.quiet and controller.feeds and controller.rows()[0]["hit"] is True


def test_the_timeline_says_that_a_fault_hit_before_the_run_may_end(
    conduct: Callable[..., FaultController], timeline: Timeline
) -> None:
    controller = conduct(shared.spec())
    seen: list[tuple[str, bool]] = []
    timeline.listen(lambda event: seen.append((event.kind, controller.quiet)))
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    shared.settle(controller)
    assert ("fault.hit", False) in seen, seen


def test_a_miss_keeps_its_reason_although_the_watcher_never_read_the_batch(
    conduct: Callable[..., FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = conduct(shared.spec())
    shared.Recorded.proves = staticmethod(lambda: Proof(False, ("it was not hit",)))
    monkeypatch.setattr(shared.Queries, "batch", lambda *_: None)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    shared.settle(controller)
    assert "it was not hit" in str(controller.rows()[0]["evidence"])
