"""Stall of a task: when a stopped process and another attempt's success count as a hit, shown on a real process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.waiting import wait_until
from onceproof.chaos.stall.driver import _is_stopped
from onceproof.chaos.stall.task import TaskStall, TaskStallSpec
from onceproof.faults.contract import Occurrence, Proof
from onceproof.faults.tasks import Victim, describe_winner
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import Hit
from onceproof.pipeline.spark_events import Attempt
from onceproof.pipeline.spark_tasks import TaskProcess
from onceproof.scenario.points import Point
from onceproof.stack.processes import procfs

WORKER = TaskProcess("python-worker", 3, 1, "0", 2)
LOST = Attempt("app", 4, 1, 0, "0", False, 10, "TaskKilled")
WON = Attempt("app", 4, 1, 1, "1", True, 20, "Success")


def test_the_other_attempt_must_succeed_at_the_same_task() -> None:
    assert describe_winner([LOST, WON], WORKER) is not None
    for other in (replace(WON, stage=5), replace(WON, task=2), replace(WON, application="next")):
        assert describe_winner([LOST, other], WORKER) is None
    assert describe_winner([replace(LOST, reason="Success"), WON], WORKER) is None


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as one:
        yield one
        one.kill()


@pytest.fixture
def proven(
    process: subprocess.Popen[bytes], seen: Callable[..., Occurrence], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Proof]:
    """The proof of a stall of ``process``, with ``meanwhile()`` done to it before its batch is committed."""

    def prove(meanwhile: Callable[[], None], hit: Hit) -> Proof:
        at = {"batch": 2, "point": "in-tasks"}
        stall = TaskStall(TaskStallSpec.model_validate({"fault": "stall", "target": "python-worker", "at": at}))
        victim = Victim(replace(WORKER, pid=process.pid), hit, "127.0.0.1:2", ("it was sent",))
        monkeypatch.setattr(stall, "_find", lambda *_: victim)
        monkeypatch.setattr(stall, "_stopped", SimpleNamespace(rule=SimpleNamespace(release=lambda: None)))
        looked: list[None] = []

        def committed(*_args: object) -> bool:
            looked.append(None)
            if len(looked) == 1:  # before the process is stopped
                return False
            meanwhile()
            return True

        monkeypatch.setattr("onceproof.faults.tasks.committed", committed)
        monkeypatch.setattr("onceproof.chaos.stall.task.wait_for_event_log", lambda *_: "another attempt won")
        context: Any = SimpleNamespace(job=SimpleNamespace(current_start=0))
        return stall.prove(context, seen(Point.AFTER_OFFSET_LOG))

    return prove


def hit(**more: Any) -> Hit:
    return Hit(Frame(b"", "statement"), "postgres", "127.0.0.1:1", 0.0, **more)


ANSWERED = Answer(b"", Frame(b"", "statement"), {"tags": ["INSERT 0 1"]})


def test_a_process_that_stayed_stopped_until_its_batch_was_committed_is_a_hit(
    proven: Callable[..., Proof], process: subprocess.Popen[bytes]
) -> None:
    proof = proven(lambda: None, hit(answer=ANSWERED))
    assert proof.hit and "INSERT 0 1" in " ".join(map(str, proof.evidence))
    wait_until("it to go on", lambda: not procfs.is_stopped(process.pid), deadline_s=5)


def test_a_process_that_something_else_resumed_is_a_miss(
    proven: Callable[..., Proof], process: subprocess.Popen[bytes]
) -> None:
    def wake() -> None:
        os.kill(process.pid, signal.SIGCONT)
        wait_until("it to go on", lambda: not procfs.is_stopped(process.pid), deadline_s=5)

    proof = proven(wake, hit(answer=ANSWERED))
    assert not proof.hit and "was no longer stopped" in proof.evidence[-1]


def test_an_undeliverable_frame_is_a_miss(proven: Callable[..., Proof]) -> None:
    proof = proven(lambda: None, hit(undeliverable="the service had gone"))
    assert not proof.hit and "the service had gone" in proof.evidence[-1]
    assert "was delivered" not in " ".join(map(str, proof.evidence))


def test_a_driver_counts_as_stopped_only_while_all_its_processes_are(process: subprocess.Popen[bytes]) -> None:
    service: Any = SimpleNamespace(pid=process.pid, is_running=lambda: process.poll() is None)
    assert not _is_stopped(service)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until("it to be stopped", lambda: _is_stopped(service), deadline_s=5)
    process.kill()
    process.wait()
    assert not _is_stopped(service)
