"""Faults in the middle of a task: where they can be placed. The real scenarios show their effect."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.crash.task import TaskCrash, TaskCrashSpec
from onceproof.faults.contract import (
    Fault,
    Occurrence,
    SpecProblem,
    fault_of,
    reads_frames,
    strikes_at,
    strikes_tasks,
)
from onceproof.faults.tasks import Victim, mismatch
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Hit
from onceproof.pipeline.spark_tasks import TaskProcess
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario.stack import SparkStack

Make = Callable[..., Scenario]
SpecOf = Callable[[dict[str, Any]], FaultSpec]
ProblemsOf = Callable[[dict[str, Any], Scenario], list[SpecProblem]]
BOTH = pytest.mark.parametrize("kind", ["crash", "stall"])


def task(kind: str, target: str = "executor", **more: Any) -> dict[str, Any]:
    return {"fault": kind, "target": target, "at": {"batch": 2, "point": "in-tasks"}} | more


def on_a_cluster(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"stack": scenario.stack.model_copy(update={"spark": SparkStack()})})


@BOTH
def test_an_executor_can_only_be_struck_in_a_cluster(kind: str, scenario: Make, problems_of: ProblemsOf) -> None:
    (problem,) = problems_of(task(kind), scenario())
    assert problem.loc == ("target",) and "spark: {}" in (problem.hint or "") and "driver" in problem.message
    assert problems_of(task(kind), on_a_cluster(scenario())) == []
    assert problems_of(task(kind, "python-worker"), scenario()) == []


@BOTH
@pytest.mark.parametrize("word", ["--master=local[2]", "local[*]", "spark.master=local"])
def test_a_command_with_a_local_master_is_refused_for_an_executor(
    kind: str, word: str, scenario: Make, problems_of: ProblemsOf
) -> None:
    local = on_a_cluster(scenario(command=["python", "job.py", word]))
    (problem,) = problems_of(task(kind), local)
    assert word in problem.message and "{spark.master}" in (problem.hint or "")
    assert problems_of(task(kind, "python-worker"), local) == []


@BOTH
@pytest.mark.parametrize("target", ["executor", "python-worker"])
@pytest.mark.parametrize("point", ["after-offset-log", "after-sink-commit", "commit-lost"])
def test_executors_and_workers_can_only_be_struck_in_tasks(
    kind: str, target: str, point: str, scenario: Make, problems_of: ProblemsOf
) -> None:
    (problem,) = problems_of(task(kind, target) | {"at": {"batch": 2, "point": point}}, on_a_cluster(scenario()))
    assert problem.loc == ("at", "point") and "in-tasks" in (problem.hint or "")


@BOTH
def test_a_frame_is_refused_for_a_target_that_is_struck_at_a_point(
    kind: str, scenario: Make, problems_of: ProblemsOf
) -> None:
    spec = task(kind, "driver", frame={"nth": 3}) | {"at": {"batch": 1, "point": "after-sink-commit"}}
    (problem,) = problems_of(spec, scenario())
    assert problem.loc == ("frame",) and "target: executor, or" in (problem.hint or "")


@pytest.mark.parametrize(
    ("frame", "loc"),
    [
        ({"service": "kafka", "kind": "statement"}, ("frame", "kind")),
        ({"service": "postgres", "kind": "Produce"}, ("frame", "kind")),
        ({"sql": "("}, ("frame",)),
    ],
)
def test_a_frame_that_can_never_match_is_refused(
    frame: dict[str, Any], loc: tuple[str, ...], scenario: Make, problems_of: ProblemsOf
) -> None:
    (problem,) = problems_of(task("crash", "python-worker", frame=frame), scenario())
    assert problem.loc == loc


def test_the_default_service_is_kafka_where_the_stack_has_no_postgres(scenario: Make, problems_of: ProblemsOf) -> None:
    without = scenario(postgres=False)
    (problem,) = problems_of(task("crash", "python-worker", frame={"service": "postgres"}), without)
    assert problem.loc == ("frame", "service")
    assert problems_of(task("crash", "python-worker"), without) == []


def test_with_several_queries_the_default_frame_is_not_enough(scenario: Make, problems_of: ProblemsOf) -> None:
    two = scenario(queries=["a", "b"])
    for service, apart in [("postgres", {"sql": "INSERT INTO mine"}), ("kafka", {"topic": "out"})]:
        (problem,) = problems_of(task("crash", "python-worker", frame={"service": service}), two)
        assert problem.loc == ("frame",) and "name what distinguishes it" in (problem.hint or "")
        assert problems_of(task("crash", "python-worker", frame={"service": service} | apart), two) == []


def test_a_driver_can_crash_in_a_task_but_a_broker_takes_no_frame(scenario: Make, problems_of: ProblemsOf) -> None:
    assert problems_of(task("crash", "driver"), scenario()) == []
    frame = {"kind": "Produce", "topic": "out"}
    assert problems_of(task("crash", "broker", leader_of="out/0", frame=frame), scenario())[0].loc == ("frame",)
    assert problems_of(task("stall", "driver"), scenario())[0].loc == ("at", "point")


def test_a_driver_can_crash_between_state_files_of_executors_too(scenario: Make, problems_of: ProblemsOf) -> None:
    spec = {"fault": "crash", "target": "driver", "at": {"batch": 2, "point": "state-partly-committed"}}
    assert problems_of(spec, scenario()) == [] == problems_of(spec, on_a_cluster(scenario()))


@BOTH
def test_it_is_armed_when_the_batch_is_planned_and_needs_frames_and_the_event_log(
    kind: str, fault: Callable[[dict[str, Any]], Fault], spec_of: SpecOf, seen: Callable[..., Occurrence]
) -> None:
    armed = fault(task(kind))
    assert armed.matches(seen(Point.AFTER_OFFSET_LOG, "checkpoint"))
    assert not armed.matches(seen(Point.AFTER_SINK_COMMIT, "checkpoint"))
    spec = spec_of(task(kind))
    assert reads_frames([spec]) and strikes_tasks(spec) and strikes_at(spec) is Point.AFTER_OFFSET_LOG


@BOTH
def test_the_plan_is_approximate_with_a_file_manager_of_the_jobs_own(
    kind: str, spec_of: SpecOf, scenario: Make
) -> None:
    spec = spec_of(task(kind, "python-worker"))
    assert fault_of(spec).placement(spec, scenario()).exactness == "exact"
    own = scenario(command=["python", "job.py", f"-D{FILE_MANAGER}=users.Own"])
    assert fault_of(spec).placement(spec, own).exactness == "approximate"


@pytest.mark.parametrize("delivered", [False, True])
def test_a_killed_process_is_a_hit_only_if_the_proxy_did_not_deliver_its_frame(
    delivered: bool, seen: Callable[..., Occurrence], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = TaskCrash(TaskCrashSpec.model_validate(task("crash", "python-worker")))
    hit = Hit(Frame(b"", "statement"), "postgres", "127.0.0.1:1", 0.0, delivered_at=1.0 if delivered else None)
    with subprocess.Popen(["sleep", "60"]) as process:
        victim = Victim(replace(PROCESSES["worker"], pid=process.pid), hit, "127.0.0.1:2", ("it was sent",))
        monkeypatch.setattr(crash, "_find", lambda *_: victim)
        monkeypatch.setattr("onceproof.faults.tasks.committed", lambda *_: False)
        asked: list[str] = []

        def wait(reason: str, probe: Callable[[], Any], **_more: Any) -> Any:
            asked.append(reason)
            assert not probe() and process.wait() == -9, "the process is dead, and the proxy has not noticed"
            hit.client_left_at = 2.0
            return probe()

        monkeypatch.setattr("onceproof.chaos.crash.task.wait_until", wait)
        monkeypatch.setattr("onceproof.chaos.crash.task.wait_for_commit", lambda *_: "committed")
        monkeypatch.setattr("onceproof.chaos.crash.task.wait_for_event_log", lambda *_: "another attempt")
        context: Any = SimpleNamespace(job=SimpleNamespace(current_start=0))
        proof = crash.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit is not delivered and asked == ["the killed process's connection to close"]
    assert ("its frame was never delivered" in proof.evidence) is not delivered


PROCESSES = {
    "worker": TaskProcess("python-worker", 3, 1, "0", 2),
    "executor": TaskProcess("executor", 2, 1, "0", 2),
    "local worker": TaskProcess("python-worker", 3, 1, None, 2),
    "jvm": TaskProcess("driver-jvm", 2, 1, None, 2),
    "program": TaskProcess("driver", 1, 1, None, 1),
}


@pytest.mark.parametrize(
    ("target", "mine"),
    [
        ("executor", {"worker", "executor"}),
        ("python-worker", {"worker", "local worker"}),
        ("driver", {"worker", "executor", "local worker", "jvm"}),
    ],
)
def test_only_a_process_of_the_target_kind_is_struck(target: str, mine: set[str]) -> None:
    why = {name: mismatch(target, process) for name, process in PROCESSES.items()}
    assert {name for name, reason in why.items() if reason is None} == mine
    assert "local mode" in (why["local worker"] or "local mode") and (why["program"] or "")
