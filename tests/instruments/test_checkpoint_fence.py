"""A driver that is fenced at the checkpoint gate, over its socket: the tests send what a driver's JVM sends."""

from __future__ import annotations

from onceproof.base.waiting import wait_until
from onceproof.scenario.points import Point

from .gate import Driver, Serve, Struck


def test_a_held_driver_is_fenced_and_its_jvm_says_whether_it_can_be_used_again(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT))
    driver, root = Driver(gate), gate.path.parent / "a%20checkpoint"
    assert gate.why_not_fenced(1) == "the kill is not at a write of the checkpoint, where the driver waits"
    struck.go.clear()
    driver.open(root, "q")
    driver.send(f"7 create {root}/q/commits/2")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    assert gate.why_not_fenced(1) is None
    assert gate.why_not_fenced(2) is not None  # another JVM
    outcome = gate.fence(1, gate.path.parent / "driver-1.log")
    assert driver.answer() == f"fence {gate.path.parent}/driver-1.log"
    struck.go.set()
    driver.send("kept 4711 secret 63")
    assert outcome.get(timeout=5) == "kept 4711 secret 63"
    again = Driver(gate)  # the next driver in the same JVM
    again.open(root, "q")
    again.die()


def test_a_fenced_jvm_that_ends_is_lost(serve: Serve) -> None:
    gate = serve()
    driver = Driver(gate)
    outcome = gate.fence(1, gate.path.parent / "log")
    driver.die()
    assert outcome.get(timeout=5) == "lost the JVM has ended"


def test_a_driver_with_several_queries_or_with_state_is_not_fenced(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT))
    driver, root = Driver(gate), gate.path.parent / "a%20checkpoint"
    struck.go.clear()
    driver.open(root, "q")
    driver.send(f"7 create {root}/q/commits/2")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    (gate.path.parent / "a checkpoint" / "q" / "state").mkdir(parents=True)
    assert gate.why_not_fenced(1) == "the query keeps state"
    driver.open(root, "other")
    assert gate.why_not_fenced(1) == "the driver runs several queries, and only one of them waits"
    struck.go.set()
