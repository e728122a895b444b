"""The supervisor, on real processes: when a job is started again, when it is given up, and that stopped means stopped."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceproof.base.errors import WaitTimeout
from onceproof.base.masking import hiding
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.pipeline.supervisor import Pipeline
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Owner, Service


class World:
    """What the supervisor asks of the run."""

    def __init__(self) -> None:
        self.fired = False
        self.progress = 0
        self.calm = True


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def supervise(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pipeline]]:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    timeline = Timeline(tmp_path / "events.jsonl")
    with Owner() as owner:

        def make(script: str, *, limit: int = 2) -> Pipeline:
            return Pipeline(
                [sys.executable, "-c", script],
                {"PATH": "/usr/bin:/bin"},
                owner=owner,
                timeline=timeline,
                logs=tmp_path,
                cwd=tmp_path,
                limit=limit,
                may_restart=lambda: world.fired,
                progress=lambda: world.progress,
                calm=lambda: world.calm,
            )

        yield make
    timeline.close()


@pytest.fixture
def hidden() -> Iterator[None]:
    with hiding(["s3cret"]):
        yield


SLEEP = "import time; time.sleep(600)"


def until(reason: str, probe: Callable[[], Any]) -> None:
    wait_until(reason, probe, deadline_s=20)


def test_a_job_that_dies_before_any_fault_is_not_started_again(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("raise SystemExit(3)")
    job.start()
    until("its end", lambda: job.died_before_fault)
    assert job.starts == 1 and job.exits[0].code == 3 and not job.exits[0].killed


def test_a_job_that_dies_after_a_fault_is_started_again_until_it_is_given_up(
    supervise: Callable[..., Pipeline], world: World
) -> None:
    world.fired = True
    job = supervise("raise SystemExit(3)", limit=2)
    job.start()
    until("it to be given up", lambda: job.given_up)
    assert job.starts == 3 and not job.died_before_fault


def test_restarts_while_a_fault_is_on_do_not_count(supervise: Callable[..., Pipeline], world: World) -> None:
    world.fired, world.calm = True, False
    job = supervise("raise SystemExit(3)", limit=1)
    job.start()
    until("several restarts", lambda: job.starts >= 4)
    assert not job.given_up
    world.calm = True
    until("it to be given up", lambda: job.given_up)


def test_a_killed_driver_is_started_again_and_known_as_killed(supervise: Callable[..., Pipeline]) -> None:
    job = supervise(SLEEP)
    job.start()
    before = job.pids()
    start = job.kill_driver()
    until("the restart", lambda: job.restarted_since(start) and job.is_running())
    assert start == 0 and job.exits[0].killed and job.failed_since(0.0) is None
    assert not any(psutil.pid_exists(pid) for pid in before)
    job.stop()


def test_a_job_that_ends_well_with_input_left_is_started_again(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("pass", limit=1)
    job.start()
    until("it to be given up", lambda: job.given_up)
    assert not job.died_before_fault


def test_stopped_means_stopped(supervise: Callable[..., Pipeline], world: World) -> None:
    world.fired = True
    job = supervise("raise SystemExit(1)", limit=10_000)
    job.start()
    until("some restarts", lambda: job.starts >= 3)
    job.stop()
    starts = job.starts
    assert not job.is_running()
    assert job.starts == starts and job.pids() == []


def test_while_frozen_nothing_of_the_job_runs(supervise: Callable[..., Pipeline]) -> None:
    job = supervise(SLEEP)
    job.start()

    def status() -> str:
        return str(psutil.Process(job.pids()[0]).status())

    with job.frozen():
        until("the inner freeze", lambda: status() == psutil.STATUS_STOPPED)
        with job.frozen():
            pass
        assert status() == psutil.STATUS_STOPPED  # the outer freeze still holds
    until("the thaw", lambda: status() != psutil.STATUS_STOPPED)
    job.stop()


def test_a_driver_that_was_set_aside_sleeps_on_and_its_successor_is_not_stopped_for_it(
    supervise: Callable[..., Pipeline],
) -> None:
    """Freezes count for the driver that they stopped, whichever is the driver when they end."""
    job = supervise(SLEEP)
    job.start()
    old = psutil.Process(job.pids()[0])
    with job.frozen():
        until("it to be stopped", lambda: old.status() == psutil.STATUS_STOPPED)
        job.take_over(stopped=True)
        successor = psutil.Process(job.pids()[0])
        with job.frozen():
            assert successor.status() == psutil.STATUS_STOPPED
        until("the successor to go on", lambda: successor.status() != psutil.STATUS_STOPPED)
    assert old.status() == psutil.STATUS_STOPPED and successor.status() != psutil.STATUS_STOPPED
    job.stop()


def test_a_driver_that_only_got_a_second_one_beside_it_goes_on(supervise: Callable[..., Pipeline]) -> None:
    """Also out of a freeze that had begun before: whoever froze it did so for a moment."""
    job = supervise(SLEEP)
    job.start()
    old = psutil.Process(job.pids()[0])
    with job.frozen():
        start, first = job.take_over(stopped=False)
        assert (start, job.current_start) == (0, 1) and old.status() == psutil.STATUS_STOPPED
    until("it to go on", lambda: old.status() != psutil.STATUS_STOPPED)
    assert job.is_running() and first.is_running()
    job.stop()
    assert not first.members()


def test_a_freeze_that_fails_leaves_the_driver_running(
    supervise: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = supervise(SLEEP)
    job.start()
    driver = psutil.Process(job.pids()[0])
    with monkeypatch.context() as never:
        never.setattr("onceproof.stack.processes.owner._GONE_DEADLINE_S", 0.05)
        never.setattr("onceproof.stack.processes.procfs.is_stopped", lambda _pid: False)
        with pytest.raises(WaitTimeout, match="to be stopped"), job.frozen():
            raise AssertionError("it was not stopped")
    until("it to go on", lambda: driver.status() != psutil.STATUS_STOPPED)
    with job.frozen():
        assert driver.status() == psutil.STATUS_STOPPED
    until("it to go on again", lambda: driver.status() != psutil.STATUS_STOPPED)
    job.stop()


def test_a_driver_that_was_replaced_is_supervised_no_more_and_gone_in_the_end(
    supervise: Callable[..., Pipeline],
) -> None:
    job = supervise(SLEEP)
    job.start()
    old = job.pids()[0]
    start, zombie = job.take_over(stopped=True)
    assert (start, job.current_start, job.starts) == (0, 1, 2) and old not in job.pids()
    until("it to be stopped", lambda: psutil.Process(old).status() == psutil.STATUS_STOPPED)
    zombie.thaw()
    until("it to be awake", lambda: psutil.Process(old).status() != psutil.STATUS_STOPPED)
    zombie.kill()
    job.kill_driver()
    until("the successor's restart", lambda: job.starts == 3)
    assert [one.start for one in job.exits] == [1], "the end of the old one is nobody's exit"
    job.take_over(stopped=True)
    job.stop()
    assert not any(one.members() for one in (zombie, *job._aside)) and job.pids() == []


def test_what_the_job_said_is_found_in_its_output(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("print('a temporary one')\nraise RuntimeError")
    assert not job.said("a temporary one")
    job.start()
    until("its end", lambda: job.died_before_fault)
    assert job.said("a temporary one") and not job.said("a lasting one")


def test_last_words_begin_at_the_traceback_and_mask_secrets(supervise: Callable[..., Pipeline], hidden: None) -> None:
    job = supervise("print('noise')\nraise RuntimeError('the token is s3cret')")
    job.start()
    until("its end", lambda: job.died_before_fault)
    words = job.last_words()
    assert words.startswith("Traceback (most recent call last)")
    assert "the token is ***" in words and "s3cret" not in words


def test_why_it_failed_is_told_with_its_cause_and_its_log_and_without_secrets(
    supervise: Callable[..., Pipeline], hidden: None
) -> None:
    refused = "raise ConnectionError('connection to server at \"db\", port 5432 failed: Connection refused for s3cret')"
    job = supervise(refused)
    job.start()
    until("its end", lambda: job.died_before_fault)
    failure = job.why_it_failed(["127.0.0.1:40001"])
    assert failure.causes == [
        'ConnectionError: connection to server at "db", port 5432 failed: Connection refused for ***'
    ]
    assert (failure.foreign_address, failure.log) == ("db:5432", "logs/driver-0.log")


def test_a_driver_that_awaits_an_answer_is_released_and_stopped_anew(
    supervise: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer to the driver's own loop is read as soon as it runs; one that nothing waits for stays where it is."""
    job = supervise(SLEEP)
    job.start()
    stops = 0

    def unread(_pids: list[int]) -> dict[str, int]:
        idle = {"1": 7}
        return (
            {**idle, "2": 5} if psutil.Process(job.pids()[0]).status() == psutil.STATUS_STOPPED and stops == 2 else idle
        )

    freeze = Service.freeze

    def counted(service: Service) -> None:
        nonlocal stops
        stops += 1
        freeze(service)

    monkeypatch.setattr(procfs, "unread", unread)
    monkeypatch.setattr(Service, "freeze", counted)
    with job.frozen_between_requests():
        assert stops == 3, "stopped for the idle connection, for the answer, and for good"
        assert psutil.Process(job.pids()[0]).status() == psutil.STATUS_STOPPED
    assert psutil.Process(job.pids()[0]).status() != psutil.STATUS_STOPPED


def test_what_has_arrived_and_was_not_read_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            inode = str(os.fstat(client.fileno()).st_ino)
            assert inode not in procfs.unread([os.getpid()])
            peer.sendall(b"five!")
            until("the bytes", lambda: procfs.unread([os.getpid()]).get(inode) == 5)
            client.recv(5)
            assert inode not in procfs.unread([os.getpid()])
