"""Crash and stall of brokers and the controller: which process is struck, and which specs are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.chaos.crash.broker import _java_hash, transaction_key
from onceproof.chaos.crash.leader import led_from
from onceproof.faults.contract import Fault, Occurrence, SpecProblem, fault_of, reads_frames
from onceproof.instruments.proxy.frames import Frame, Reply
from onceproof.instruments.proxy.rules import Board
from onceproof.scenario.model import FaultSpec
from onceproof.scenario.points import Point
from onceproof.stack.api import Leadership

AT = {"batch": 1, "point": "after-offset-log"}
LEADER: dict[str, Any] = {"fault": "stall", "target": "broker", "leader_of": "out/0", "at": AT}
COORDINATOR: dict[str, Any] = {"fault": "crash", "target": "broker", "coordinator_of": "my-pipeline-0", "at": AT}
CONTROLLER: dict[str, Any] = {"fault": "crash", "target": "controller", "at": AT}
IN_TASKS: dict[str, Any] = {
    "fault": "crash",
    "target": "broker",
    "leader_of": "out/0",
    "at": {"batch": 1, "point": "in-tasks"},
}


@pytest.mark.parametrize("spec", [LEADER, COORDINATOR, CONTROLLER, IN_TASKS, {**CONTROLLER, "fault": "stall"}])
def test_brokers_and_the_controller_can_be_struck_while_a_batch_is_open(
    problems: Callable[..., list[SpecProblem]], spec: dict[str, Any]
) -> None:
    assert problems(spec) == []
    assert problems({**spec, "at": {"batch": 1, "point": "after-commit-log"}})[0].loc == ("at", "point")
    assert problems(spec, brokers=1)[0].loc in (("target",), ("leader_of",))


@pytest.mark.parametrize(
    ("spec", "loc", "words"),
    [
        ({**LEADER, "leader_of": None}, (), "leader_of is missing"),
        ({**LEADER, "leader_of": "out/9"}, ("leader_of",), "no partition 9"),
        ({**COORDINATOR, "leader_of": "out/0"}, ("leader_of",), "leader_of does not apply to the co"),
        ({**CONTROLLER, "leader_of": "out/0"}, ("leader_of",), "leader_of does not apply to this crash of controller"),
        ({**CONTROLLER, "coordinator_of": "x"}, ("coordinator_of",), "does not apply to this crash of controller"),
        ({**COORDINATOR, "target": "driver"}, ("coordinator_of",), "does not apply to this crash of driver"),
        ({**LEADER, "target": "driver"}, ("leader_of",), "does not apply to this stall of driver"),
        ({**IN_TASKS, "leader_of": "flights/0"}, ("leader_of",), "no task of the pipeline writes"),
        ({**IN_TASKS, "coordinator_of": "x"}, ("coordinator_of",), "does not apply to this crash of broker"),
        ({**IN_TASKS, "target": "python-worker"}, ("leader_of",), "does not apply to this crash of python-worker"),
        ({**IN_TASKS, "target": "python-worker", "fault": "stall"}, ("leader_of",), "this stall of python-worker"),
        (
            {**COORDINATOR, "target": "postgres", "at": {"batch": 1, "point": "before-sink-commit"}},
            ("coordinator_of",),
            "does not apply to this crash of postgres",
        ),
    ],
)
def test_an_impossible_spec_is_refused_with_its_place(
    problems: Callable[..., list[SpecProblem]], spec: dict[str, Any], loc: tuple[str, ...], words: str
) -> None:
    (problem,) = problems(spec)
    assert problem.loc == loc and words in problem.message and problem.hint


ONE_IS_ENOUGH = {"prepare": {"topics": {"out": {"partitions": 3, "config": {"min.insync.replicas": "1"}}}}}


def test_a_leader_alone_in_sync_must_be_allowed_to_acknowledge(problems: Callable[..., list[SpecProblem]]) -> None:
    alone = {**IN_TASKS, "in_sync": "leader"}
    assert problems(alone, **ONE_IS_ENOUGH) == []
    (problem,) = problems(alone)
    assert problem.loc == ("in_sync",) and "min.insync.replicas" in (problem.hint or "")
    for other in ({**alone, "at": AT}, {"fault": "crash", "target": "driver", "at": AT, "in_sync": "leader"}):
        (problem,) = problems(other, **ONE_IS_ENOUGH)
        assert problem.loc == ("in_sync",) and "in-tasks" in (problem.hint or "")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({**COORDINATOR, "target": "driver"}, "remove coordinator_of, or set target: broker"),
        ({**CONTROLLER, "leader_of": "out/0"}, "remove leader_of, or set target: broker"),
        ({**IN_TASKS, "coordinator_of": "x"}, "remove coordinator_of, or set another point"),
        (
            {**CONTROLLER, "in_sync": "leader", "target": "executor"},
            "remove in_sync, or set target: broker and point: in-tasks",
        ),
        (
            {**LEADER, "frame": {}},
            "remove frame, or set target: executor, or target: python-worker",
        ),
    ],
)
def test_a_setting_of_another_target_is_refused_with_the_targets_that_have_it(
    problems: Callable[..., list[SpecProblem]], spec: dict[str, Any], hint: str
) -> None:
    (problem,) = problems(spec)
    assert problem.hint == hint


def test_only_a_leader_crash_in_tasks_reads_frames(spec_of: Callable[..., FaultSpec]) -> None:
    assert reads_frames([spec_of(IN_TASKS)])
    assert not reads_frames([spec_of({**IN_TASKS, "at": AT})])


def test_the_plan_names_the_process_to_strike(scenario: Callable[..., Any], spec_of: Callable[..., FaultSpec]) -> None:
    specs = [spec_of(each) for each in (LEADER, COORDINATOR, CONTROLLER)]
    proofs = {spec.target + spec.fault: fault_of(spec).placement(spec, scenario()).proof for spec in specs}
    assert "leader of out/0 was stopped" in proofs["brokerstall"]
    assert "coordinator of transactional.id my-pipeline-0 was killed" in proofs["brokercrash"]
    assert "the controller was killed" in proofs["controllercrash"]


def test_a_transactional_id_is_not_found_within_another() -> None:
    log = b"\x00..." + transaction_key("flights-10") + b"\x00\x00" + transaction_key("my-flights-1")
    assert transaction_key("flights-10") in log and transaction_key("flights-1") not in log
    assert transaction_key("a") == b"\x00\x00\x00\x01a", "TransactionLogKey: version 0, then a string after its length"


def test_a_new_leaders_log_end_is_the_offset_at_which_its_epoch_began(tmp_path: Path) -> None:
    assert led_from(tmp_path, 3) == []
    noted = tmp_path / "leader-epoch-checkpoint"
    noted.write_text("0\n2\n0 0\n3 120\n")
    assert led_from(tmp_path, 3) == [], "it has not recorded an epoch of its own"
    noted.write_text("0\n4\n0 0\n3 120\n4 250\n6 300\n")
    assert led_from(tmp_path, 3) == [250]
    noted.write_text("0\n1\n4 0\n")
    assert led_from(tmp_path, 3) == [0]


def test_a_transactional_id_is_hashed_as_in_java() -> None:
    """Known values of String.hashCode; Kafka's Utils.abs makes them positive, and maps Integer.MIN_VALUE to 0."""
    assert (_java_hash(""), _java_hash("a"), _java_hash("abc")) == (0, 97, 96354)
    assert _java_hash("Hello World!") == 969099747, "its hash is -969099747"
    assert _java_hash("polygenelubricants") == 0, "its hash is Integer.MIN_VALUE"


def test_a_broker_whose_restart_failed_is_restarted_again(fault: Callable[..., Fault], tmp_path: Path) -> None:
    away = fault(COORDINATOR)
    away._node, tried = 2, []

    def restart(node: int) -> None:
        tried.append(node)
        if len(tried) == 1:
            raise EnvironmentProblem("it does not answer")

    timeline = Timeline(tmp_path / "events.jsonl")
    context: Any = SimpleNamespace(
        stack=SimpleNamespace(kafka=SimpleNamespace(is_running=lambda _: False, restart_broker=restart)),
        timeline=timeline,
    )
    with pytest.raises(EnvironmentProblem):
        away.heal(context)
    away.heal(context)
    away.heal(context)
    assert tried == [2, 2]
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["kind"], event["broker"]) == ("broker.back", 2), "said once, when it is back"


class Late(list[Reply]):
    """What was heard of the leader: nothing at the first look, although its acknowledgement is on its way."""

    def __init__(self, reply: Reply) -> None:
        super().__init__([reply])
        self._looks = 0

    def __iter__(self) -> Iterator[Reply]:
        self._looks += 1
        return super().__iter__() if self._looks > 1 else iter(())


@pytest.mark.parametrize(("acks", "acknowledged"), [(1, True), (-1, False)])
def test_a_leader_that_is_asked_for_its_own_acknowledgement_alone_is_not_killed_before_it_gives_it(
    monkeypatch: pytest.MonkeyPatch, spec_of: Callable[[dict[str, Any]], FaultSpec], acks: int, acknowledged: bool
) -> None:
    """On a loaded machine it may take longer than a leader that will never acknowledge is waited for."""
    monkeypatch.setattr("onceproof.chaos.crash.leader._UNACKNOWLEDGED_S", 0.0)
    spec = spec_of(
        {"fault": "crash", "target": "broker", "leader_of": "out/0", "at": {"batch": 2, "point": "in-tasks"}}
    )
    board, proxy = Board(), SimpleNamespace(add_toxic=lambda *_, **__: None, heal=lambda: None)
    kafka = SimpleNamespace(
        leader=lambda _topic, _partition: Leadership(1, 0),
        log_folders=lambda _topic: [Path("/nonexistent")],
        replication_proxy=lambda _broker: proxy,
        controller_proxy=lambda _broker: proxy,
        is_running=lambda _broker: True,
    )
    context: Any = SimpleNamespace(
        stack=SimpleNamespace(kafka=kafka),
        job=SimpleNamespace(frozen=nullcontext),
        checkpoint=SimpleNamespace(log_exists=lambda *_: True),
        board=lambda _service: board,
    )
    crash: Any = fault_of(spec)(spec)
    crash.strike(context, occurrence := Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint"))
    assert board.rule_for(Frame(b"", "Produce", {"topics": ["out"], "acks": acks})) is None, "it passes"
    crash._heard = Late(Reply(1.0, "client-1", "Produce", "0", "acknowledged at offset 7", "out/0"))
    assert bool(crash._wait_for_acknowledgements(context, occurrence)) is acknowledged
    crash.heal(context)
    assert not board.active, "the requests are no longer read"
