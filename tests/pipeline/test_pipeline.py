"""The supervisor, on real processes: when it restarts a job, when it gives up, and how it stops and freezes one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from onceproof.base.errors import WaitTimeout
from onceproof.base.masking import hiding
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.pipeline.program import Program
from onceproof.pipeline.supervisor import Pipeline
from onceproof.stack.processes.owner import Owner


class World:
    """The state of the run that the supervisor asks for."""

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

        def make(script: str, *, limit: int = 2, first: Program | None = None) -> Pipeline:
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
                first=first,
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


def test_a_job_that_dies_before_any_fault_is_not_restarted(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("raise SystemExit(3)")
    job.start()
    until("its end", lambda: job.died_before_fault)
    assert job.starts == 1 and job.exits[0].code == 3 and not job.exits[0].killed


def test_a_job_that_dies_after_a_fault_is_restarted_up_to_the_limit(
    supervise: Callable[..., Pipeline], world: World
) -> None:
    world.fired = True
    job = supervise("raise SystemExit(3)", limit=2)
    job.start()
    until("it to be given up", lambda: job.given_up)
    assert job.starts == 3 and not job.died_before_fault


def test_restarts_while_a_fault_is_in_progress_do_not_count(supervise: Callable[..., Pipeline], world: World) -> None:
    world.fired, world.calm = True, False
    job = supervise("raise SystemExit(3)", limit=1)
    job.start()
    until("several restarts", lambda: job.starts >= 4)
    assert not job.given_up
    world.calm = True
    until("it to be given up", lambda: job.given_up)


def test_a_killed_driver_is_restarted_and_its_exit_marked_as_killed(supervise: Callable[..., Pipeline]) -> None:
    job = supervise(SLEEP)
    job.start()
    before = job.pids()
    start = job.kill_driver()
    until("the restart", lambda: job.restarted_since(start) and job.is_running())
    assert start == 0 and job.exits[0].killed and job.failed_since(0.0) is None
    assert not any(psutil.pid_exists(pid) for pid in before)
    job.stop()


def wants_to_start(job: Pipeline) -> threading.Event:
    """Set when the supervisor wants to start the next driver."""
    waiting = threading.Event()
    launch = job._launch

    def noted(**more: Any) -> None:
        waiting.set()
        launch(**more)

    job._launch = noted  # type: ignore[method-assign]
    return waiting


def test_no_driver_starts_while_what_the_killed_one_left_is_read(supervise: Callable[..., Pipeline]) -> None:
    job = supervise(SLEEP)
    job.start()
    waiting = wants_to_start(job)
    with job.no_start():
        job.kill_driver()
        assert waiting.wait(20), "the supervisor wants to start the next driver"
        assert job.starts == 1 and not job.is_running()
    until("the restart", lambda: job.starts == 2 and job.is_running())
    job.stop()


def test_the_end_of_a_run_does_not_wait_for_a_fault_that_lets_no_driver_start(
    supervise: Callable[..., Pipeline],
) -> None:
    job = supervise(SLEEP)
    job.start()
    waiting = wants_to_start(job)
    with job.no_start():
        job.kill_driver()
        assert waiting.wait(20), "the supervisor wants to start the next driver"
        job.stop()
        assert not job._thread.is_alive() and job.starts == 1


class Delayed:
    """A driver whose end the supervisor's thread sees only after a takeover: it is delayed before it looks."""

    pid, returncode = 1, -9

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def is_running(self) -> bool:
        self._meanwhile()
        return False

    def wait(self, _timeout_s: float) -> int:
        return self.returncode


def test_the_end_of_a_driver_that_was_replaced_meanwhile_is_not_the_end_of_its_successor(
    supervise: Callable[..., Pipeline],
) -> None:
    job: Any = supervise(SLEEP)
    successor = SimpleNamespace(is_running=lambda: False, returncode=3, wait=lambda _s: 3)

    def take_over() -> None:
        job._service, job._starts = successor, 2

    job._service, job._starts = Delayed(take_over), 1
    assert job._wait_for_exit() == (1, successor)


def test_a_driver_that_took_over_while_the_old_one_ended_is_not_replaced(supervise: Callable[..., Pipeline]) -> None:
    job = supervise(SLEEP)
    job._launch()
    old = job._service
    job.take_over(stopped=False)
    job._launch(after=old)
    assert job.starts == 2
    job.stop()


def test_an_upgrade_replaces_the_first_version_at_the_next_start(supervise: Callable[..., Pipeline]) -> None:
    old = Program([sys.executable, "-c", f"'old'; {SLEEP}"], {"PATH": "/bin", "VERSION": "1"})
    job = supervise(SLEEP, limit=5, first=old)
    job.start()
    for _ in range(2):  # a restart alone changes nothing
        before = job.executes()
        assert before is not None and list(before.command) == list(old.command) and before.env["VERSION"] == "1"
        start = job.kill_driver()
        until("the restart", lambda start=start: job.restarted_since(start) and job.is_running())
    job.upgrade()
    start = job.kill_driver()
    until("the upgrade", lambda: job.restarted_since(start) and job.is_running())
    after = job.executes()
    assert after is not None and after.command[-1] == SLEEP and "VERSION" not in after.env
    job.stop()
    assert job.executes() is None


def test_a_driver_that_ended_by_itself_is_not_marked_as_killed(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("raise SystemExit(3)")
    job._launch()  # nobody watches it yet
    until("its end", lambda: not job.is_running())
    job.kill_driver()
    job._thread.start()
    until("its exit to be seen", lambda: job.exits)
    assert job.exits[0].code == 3 and not job.exits[0].killed
    job.stop()


def test_a_driver_that_is_asked_to_end_ends_by_its_own_handler_and_is_started_again(
    supervise: Callable[..., Pipeline], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    handler = f"import pathlib, signal; signal.signal(signal.SIGTERM, lambda *_: exit(3)); pathlib.Path({str(ready)!r}).touch()"
    job = supervise(f"{handler}; {SLEEP}")
    job.start()
    until("its handler", ready.exists)
    start = job.ask_driver_to_end()
    until("the restart", lambda: job.restarted_since(start) and job.is_running())
    assert start == 0 and job.exits[0].code == 3
    assert job.exits[0].killed and job.failed_since(0.0) is None, (
        "the harness caused this end, before any other fault too"
    )
    job.stop()


def test_a_job_that_exits_with_0_before_its_input_is_drained_is_restarted(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("pass", limit=1)
    job.start()
    until("it to be given up", lambda: job.given_up)
    assert not job.died_before_fault


def test_after_stop_the_job_is_never_restarted(supervise: Callable[..., Pipeline], world: World) -> None:
    world.fired = True
    job = supervise("raise SystemExit(1)", limit=10_000)
    job.start()
    until("some restarts", lambda: job.starts >= 3)
    job.stop()
    starts = job.starts
    assert not job.is_running()
    assert job.starts == starts and job.pids() == []


def test_while_frozen_the_jobs_processes_are_stopped(supervise: Callable[..., Pipeline]) -> None:
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


def test_a_driver_stopped_by_a_takeover_stays_stopped_and_its_successor_runs(
    supervise: Callable[..., Pipeline],
) -> None:
    """A freeze counts for the driver that it stopped, even if another driver runs when the freeze ends."""
    job = supervise(SLEEP)
    job.start()
    old = psutil.Process(job.pids()[0])
    with job.frozen():
        until("it to be stopped", lambda: old.status() == psutil.STATUS_STOPPED)
        job.take_over(stopped=True)
        successor = psutil.Process(job.pids()[0])
        with job.frozen():
            assert successor.status() == psutil.STATUS_STOPPED
        until("the successor to run again", lambda: successor.status() != psutil.STATUS_STOPPED)
    assert old.status() == psutil.STATUS_STOPPED and successor.status() != psutil.STATUS_STOPPED
    job.stop()


def test_a_driver_with_a_second_one_next_to_it_keeps_running(supervise: Callable[..., Pipeline]) -> None:
    """Even if it was frozen when the second one started: the freeze ends for it as usual."""
    job = supervise(SLEEP)
    job.start()
    old = psutil.Process(job.pids()[0])
    with job.frozen():
        start, first = job.take_over(stopped=False)
        assert (start, job.current_start) == (0, 1) and old.status() == psutil.STATUS_STOPPED
    until("it to run again", lambda: old.status() != psutil.STATUS_STOPPED)
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
    until("it to run again", lambda: driver.status() != psutil.STATUS_STOPPED)
    with job.frozen():
        assert driver.status() == psutil.STATUS_STOPPED
    until("it to run once more", lambda: driver.status() != psutil.STATUS_STOPPED)
    job.stop()


def test_a_replaced_driver_is_no_longer_supervised_and_is_killed_by_stop(
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
    assert [one.start for one in job.exits] == [1], "the end of the replaced driver is not recorded as an exit"
    job.take_over(stopped=True)
    job.stop()
    assert not any(one.members() for one in (zombie, *job._replaced)) and job.pids() == []


def test_said_finds_words_in_the_jobs_output(supervise: Callable[..., Pipeline]) -> None:
    job = supervise("print('a temporary one')\nraise RuntimeError")
    assert not job.log_contains("a temporary one")
    job.start()
    until("its end", lambda: job.died_before_fault)
    assert job.log_contains("a temporary one") and not job.log_contains("a lasting one")


def test_last_words_begin_at_the_traceback_and_mask_secrets(supervise: Callable[..., Pipeline], hidden: None) -> None:
    job = supervise("print('noise')\nraise RuntimeError('the token is s3cret')")
    job.start()
    until("its end", lambda: job.died_before_fault)
    words = job.log_end()
    assert words.startswith("Traceback (most recent call last)")
    assert "the token is ***" in words and "s3cret" not in words


def test_a_failure_has_its_cause_and_its_log_and_no_secrets(supervise: Callable[..., Pipeline], hidden: None) -> None:
    refused = "raise ConnectionError('connection to server at \"db\", port 5432 failed: Connection refused for s3cret')"
    job = supervise(refused)
    job.start()
    until("its end", lambda: job.died_before_fault)
    failure = job.why_it_failed(["127.0.0.1:40001"])
    assert failure.causes == [
        'ConnectionError: connection to server at "db", port 5432 failed: Connection refused for ***'
    ]
    assert (failure.foreign_address, failure.log) == ("db:5432", "logs/driver-0.log")
