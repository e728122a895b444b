"""Fence: where it can be placed, what it holds, and which drivers count as alive. The real scenarios show its effect."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.waiting import wait_until
from onceproof.chaos.fence import Fence, FenceSpec, _driver_of, _why_not_alive
from onceproof.faults.contract import Fault, Occurrence, SpecProblem, faults
from onceproof.faults.placement import RESTART_S
from onceproof.faults.takeover import Takeover
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.sinks import failpoints
from onceproof.stack.processes import procfs

Problems = Callable[..., list[SpecProblem]]


def spec(point: str, batch: int = 2) -> dict[str, Any]:
    return {"fault": "fence", "target": "driver", "at": {"batch": batch, "point": point}}


@pytest.mark.parametrize("point", ["after-offset-log", "before-sink-commit", "after-sink-commit"])
def test_a_driver_can_be_held_while_its_batch_is_open(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []


@pytest.mark.parametrize("point", ["after-commit-log", "before-offset-log", "in-tasks"])
def test_a_point_at_which_the_driver_has_nothing_left_to_write_is_refused(problems: Problems, point: str) -> None:
    (problem,) = problems(spec(point))
    assert problem.loc == ("at", "point") and "after-offset-log" in (problem.hint or "")


def test_the_second_driver_must_have_a_batch_left(problems: Problems) -> None:
    assert problems(spec("after-offset-log", batch=8)) == []  # ten chunks
    (problem,) = problems(spec("after-offset-log", batch=9))
    assert problem.loc == ("at", "batch") and "batch 8 or earlier" in (problem.hint or "")


def test_a_job_with_several_queries_is_refused(problems: Problems) -> None:
    (problem,) = problems(spec("after-offset-log"), queries=["a", "b"])
    assert problem.loc == ("target",) and "stall" in (problem.hint or "")
    assert problems(spec("after-offset-log"), queries=["a"]) == []


def test_a_write_past_the_checkpoint_file_system_cannot_be_held(
    problems: Problems, scenario: Callable[..., Scenario], seen: Callable[..., Occurrence]
) -> None:
    own = {"command": ["true", "--conf", f"{FILE_MANAGER}=org.example.Own"]}
    (problem,) = problems(spec("after-sink-commit"), **own)
    assert FILE_MANAGER in problem.message and "Spark's default" in (problem.hint or "")
    held = FenceSpec.model_validate(spec("after-sink-commit"))
    assert Fence.placement(held, scenario(**own)).exactness == "n/a"
    assert Fence.placement(held, scenario()).exactness == "exact"
    assert not Fence(held).matches(seen(Point.AFTER_SINK_COMMIT, "watcher"))
    assert Fence(held).matches(seen(Point.AFTER_SINK_COMMIT, "checkpoint"))
    assert problems(spec("before-sink-commit"), **own) == []


def test_a_postgres_sink_cannot_be_held_before_its_commit(
    scenario: Callable[..., Scenario], fault: Callable[..., Fault], seen: Callable[..., Occurrence]
) -> None:
    table = {"departures": {"table": "departures", "identity": ["id"]}}
    only_postgres = Scenario.model_validate(scenario().model_dump(by_alias=True) | {"outputs": table})
    (problem,) = Fence.problems(FenceSpec.model_validate(spec("before-sink-commit")), only_postgres)
    assert "progress row" in problem.message and "after-offset-log" in (problem.hint or "")
    fence = fault(spec("before-sink-commit"))
    assert fence.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "kafka"))
    assert not fence.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "postgres"))


def test_another_fault_that_would_release_the_held_sink_is_refused(scenario: Callable[..., Scenario]) -> None:
    held = FenceSpec.model_validate(spec("before-sink-commit"))
    cut = faults.get("partition", "leader").Spec.model_validate(
        {
            "fault": "partition",
            "target": "leader",
            "leader_of": "out/0",
            "at": {"batch": 2, "point": "before-sink-commit"},
        }
    )
    (problem,) = Fence.problems(held, scenario().model_copy(update={"chaos": (held, cut)}))
    assert problem.loc == ("at", "batch") and "partition" in problem.message


def test_a_sink_stays_parked_longer_than_the_fault_waits_for_a_second_driver() -> None:
    assert RESTART_S < failpoints._LONGEST_PAUSE_S


def test_heal_kills_the_first_driver_before_it_resumes_its_query(fault: Callable[..., Fault]) -> None:
    done: list[str] = []
    first = SimpleNamespace(pid=1, members=list, kill=lambda: done.append("killed"))
    job = SimpleNamespace(take_over=lambda *, stopped: done.append(f"stopped={stopped}") or (0, first))
    context: Any = SimpleNamespace(
        job=job,
        checkpoint=SimpleNamespace(log_exists=lambda *_: True, queries=lambda: ["q"]),
        timeline=SimpleNamespace(emit=lambda *_, **__: None),
    )
    fence = fault(spec("after-offset-log"))
    fence.heal(context)  # nothing was struck
    fence.strike(
        context, Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint", hold=lambda: lambda: done.append("resumed"))
    )
    assert done == ["stopped=False"]
    fence.heal(context)
    assert done == ["stopped=False", "killed", "resumed"]


def test_in_a_job_with_several_undeclared_queries_no_query_is_held(fault: Callable[..., Fault]) -> None:
    done: list[str] = []
    context: Any = SimpleNamespace(checkpoint=SimpleNamespace(queries=lambda: ["q", "r"]))
    seen = Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint", hold=lambda: lambda: done.append("resumed"))
    fence = fault(spec("after-offset-log"))
    fence.strike(context, seen)
    assert done == ["resumed"]
    proof = fence.prove(context, seen)
    assert not proof.hit and "several queries" in proof.evidence[-1]


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1])
def test_a_zombie_that_was_killed_is_a_miss(code: int) -> None:
    first = SimpleNamespace(
        returncode=code, is_running=lambda: False, log_tail=lambda _lines: "", members=list, kill=lambda: None
    )
    context: Any = SimpleNamespace(
        job=SimpleNamespace(take_over=lambda *, stopped: (0, first), frozen=nullcontext),
        checkpoint=SimpleNamespace(log_exists=lambda *_: True, queries=lambda: ["q"]),
        timeline=SimpleNamespace(emit=lambda *_, **__: None),
        stack=SimpleNamespace(kafka=None),
    )
    takeover = Takeover(context, Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint"), stopped=True)
    takeover._written = lambda _before: []  # type: ignore[method-assign]
    proof = takeover.resume_first(lambda: None, {}, [], after="after SIGCONT")
    assert proof.hit is (code == 1), proof.evidence


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    parent = "import subprocess; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", parent], start_new_session=True) as one:
        yield one
        one.send_signal(signal.SIGCONT)
        one.kill()


def test_a_driver_is_alive_only_while_all_its_processes_run(driver: subprocess.Popen[bytes]) -> None:
    first: Any = SimpleNamespace(pid=driver.pid, returncode=None, is_running=lambda: True)
    wait_until("its child", lambda: len(_driver_of(first)) == 2, deadline_s=10)
    pids = _driver_of(first)
    child = next(pid for pid in pids if pid != driver.pid)
    assert _why_not_alive(first, pids) is None
    driver.send_signal(signal.SIGSTOP)
    wait_until("it to be stopped", lambda: procfs.is_stopped(driver.pid), deadline_s=10)
    assert _why_not_alive(first, pids) == f"process {driver.pid} was stopped"
    subprocess.run(["kill", "-KILL", str(child)], check=True)
    driver.send_signal(signal.SIGCONT)
    wait_until("its child's end", lambda: _why_not_alive(first, [child]), deadline_s=10)
    assert _why_not_alive(first, [child]) == f"process {child} has ended"
    ended: Any = SimpleNamespace(pid=driver.pid, returncode=-9, is_running=lambda: False)
    assert _why_not_alive(ended, pids) == "it ended with exit code -9"
