"""Crash: where it can be placed. The real scenarios show its effect and its proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.chaos.crash.driver import DriverCrash, DriverCrashSpec
from onceproof.faults.contract import Fault, Occurrence, SpecProblem
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

Problems = Callable[..., list[SpecProblem]]


def at(point: str) -> dict[str, Any]:
    return {"batch": 2, "point": point}


@pytest.mark.parametrize(
    "point", ["before-offset-log", "after-offset-log", "before-sink-commit", "after-sink-commit", "after-commit-log"]
)
def test_a_driver_can_crash_at_every_point_that_an_instrument_sees(problems: Problems, point: str) -> None:
    assert problems({"fault": "crash", "target": "driver", "at": at(point)}) == []


@pytest.mark.parametrize("point", ["between-sinks", "commit-lost"])
def test_a_point_without_an_instrument_is_refused(problems: Problems, point: str) -> None:
    (problem,) = problems({"fault": "crash", "target": "driver", "at": at(point)})
    assert problem.loc == ("at", "point") and point in problem.message and "after-sink-commit" in (problem.hint or "")


def test_leader_of_is_refused_for_a_driver(problems: Problems) -> None:
    (problem,) = problems({"fault": "crash", "target": "driver", "leader_of": "out/0", "at": at("after-sink-commit")})
    assert problem.loc == ("leader_of",)


@pytest.mark.parametrize(
    ("leader_of", "words"),
    [(None, "leader_of is missing"), ("nowhere/0", "no topic is named 'nowhere'"), ("out/3", "no partition 3")],
)
def test_a_broker_needs_an_existing_partition_that_it_leads(
    problems: Problems, leader_of: str | None, words: str
) -> None:
    spec = {"fault": "crash", "target": "broker", "leader_of": leader_of, "at": at("after-offset-log")}
    assert [p for p in problems(spec) if words in p.message]


def test_a_leader_can_only_be_struck_if_another_broker_can_take_over(problems: Problems) -> None:
    spec = {"fault": "crash", "target": "broker", "leader_of": "out/0", "at": at("after-offset-log")}
    assert problems(spec, brokers=3) == []
    assert problems(spec, brokers=1)[0].loc == ("target",)


def test_a_broker_can_only_be_struck_while_a_batch_is_open(problems: Problems) -> None:
    spec = {"fault": "crash", "target": "broker", "leader_of": "out/0", "at": at("after-commit-log")}
    assert problems(spec)[0].loc == ("at", "point")
    assert problems({**spec, "at": at("before-offset-log")})[0].loc == ("at", "point")


def test_a_driver_crash_after_the_sinks_commit_is_fired_at_the_checkpoint(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    crash = fault({"fault": "crash", "target": "driver", "at": at("after-sink-commit")})
    assert crash.matches(seen(Point.AFTER_SINK_COMMIT, "checkpoint"))
    assert crash.matches(seen(Point.AFTER_SINK_COMMIT, "watcher"))
    # The sink reports before Spark knows that the batch is done; with two sinks it would even report between them.
    assert not crash.matches(seen(Point.AFTER_SINK_COMMIT, "failpoint", "postgres"))
    assert not crash.matches(seen(Point.AFTER_OFFSET_LOG))


def test_state_partly_committed_needs_batch_1_or_later(problems: Problems) -> None:
    spec = {"fault": "crash", "target": "driver", "at": at("state-partly-committed")}
    assert problems(spec) == []
    assert problems({**spec, "at": {"batch": 0, "point": "state-partly-committed"}})[0].loc == ("at", "batch")


def test_before_offset_log_is_seen_only_by_the_checkpoint_file_system(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    crash = fault({"fault": "crash", "target": "driver", "at": at("before-offset-log")})
    assert crash.matches(seen(Point.BEFORE_OFFSET_LOG, "checkpoint"))
    assert not crash.matches(seen(Point.BEFORE_OFFSET_LOG, "watcher"))


@pytest.mark.parametrize(
    ("point", "ours", "theirs"),
    [
        ("before-offset-log", "exact", "n/a"),
        ("state-partly-committed", "exact", "n/a"),
        ("after-offset-log", "exact", "approximate"),
        ("after-sink-commit", "exact", "approximate"),
        ("after-commit-log", "exact", "approximate"),
        ("before-sink-commit", "exact", "exact"),
    ],
)
@pytest.mark.parametrize("where", ["command", "env"])
def test_for_a_job_with_its_own_file_manager_the_plan_is_approximate_or_not_applicable(
    scenario: Callable[..., Scenario], point: str, ours: str, theirs: str, where: str
) -> None:
    spec = DriverCrashSpec.model_validate({"fault": "crash", "target": "driver", "at": at(point)})
    plain = scenario()
    assert DriverCrash.placement(spec, plain).exactness == ours
    setting = f"-D{FILE_MANAGER}=users.Own"
    update = (
        {"command": ["python", "job.py", setting]} if where == "command" else {"env": {"SPARK_SUBMIT_OPTS": setting}}
    )
    own = plain.model_copy(update={"pipeline": plain.pipeline.model_copy(update=update)})
    placed = DriverCrash.placement(spec, own)
    assert placed.exactness == theirs
    assert FILE_MANAGER in placed.why or theirs == "exact"


def test_before_the_commit_of_a_file_sink_the_checkpoint_file_system_holds_the_driver() -> None:
    files = load(find("file-sink"))
    spec = files.chaos[1]
    assert isinstance(spec, DriverCrashSpec) and spec.at.point is Point.BEFORE_SINK_COMMIT
    placed = DriverCrash.placement(spec, files)
    assert (placed.exactness, placed.instrument) == ("exact", "checkpoint file system")
    assert "_spark_metadata/2" in placed.why
    assert DriverCrash.placement(spec, load(find("delta-append"))).instrument == "failpoint in the sink"
