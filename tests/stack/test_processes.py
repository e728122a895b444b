"""The owner of a run finds all of its processes by their sessions and ends them with the run."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

import psutil
import pytest

from onceproof.base.errors import EnvironmentProblem, ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.stack.processes import connections, journal, procfs
from onceproof.stack.processes.owner import Owner, Service

#: A leader with three children: an ordinary one, one that leads its own process group (as PySpark's daemon does), and one
#: that leads its own session (as a Postgres backend does). Each child prints a line when it runs.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, process_group=0)
subprocess.Popen(sleep, start_new_session=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


def start_family(owner: Owner, log: Path) -> Service:
    service = owner.start("family", [sys.executable, "-c", FAMILY], log=log)
    wait_until("three children", lambda: service.log_tail().count("up") == 3, deadline_s=30)
    return service


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a killed grandchild remains as a zombie until init reaps it."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_members_are_found_in_other_process_groups_and_sessions(tmp_path: Path) -> None:
    with Owner() as owner:
        service = start_family(owner, tmp_path / "log")
        members = service.members()
        assert len(members) == 4
        assert len({os.getpgid(one.pid) for one in members}) == 3
        service.kill()
        assert not any(alive(one) for one in members)
        assert service.members() == []
        assert service.returncode == -signal.SIGKILL
        service.kill()


def test_members_that_outlive_their_leader_are_killed(tmp_path: Path) -> None:
    with Owner() as owner:
        service = start_family(owner, tmp_path / "log")
        members = service.members()
        os.kill(service.pid, signal.SIGKILL)
        service.wait(10)
        assert not service.is_running()
        assert len(service.members()) == 2, "the child in another session cannot be found without its parent"
    assert not any(alive(one) for one in members), "at the end of the run it is found by the run's mark"


def test_the_error_for_a_service_that_ended_has_its_log_and_names_a_full_disk(tmp_path: Path) -> None:
    with Owner() as owner:
        for number, output in enumerate(("java.io.IOException: No space left on device", "bye")):
            program = f"print({output!r}); print('last\\n' * 30); raise SystemExit(1)"
            service = owner.start("broker", [sys.executable, "-c", program], log=tmp_path / str(number))
            service.wait(10)
            with pytest.raises(ServiceFailed, match="broker ended with exit code 1") as failed:
                service.check_running()
            assert "last" in str(failed.value)
            assert ("disk is full" in (failed.value.hint or "")) == (number == 0)


def test_close_removes_processes_scratch_and_journal(tmp_path: Path) -> None:
    owner = Owner("some-run")
    service = start_family(owner, tmp_path / "log")
    members, path = service.members(), journal.live_folder() / "some-run.json"
    assert stat.S_IMODE(owner.scratch.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = journal.read(path)
    assert entry is not None
    assert entry.harness_is_alive()
    assert [(one.name, one.sid) for one in entry.sessions] == [("family", service.pid)]
    assert entry.folders == (str(owner.scratch),)
    owner.close()
    assert not any(alive(one) for one in members)
    assert not owner.scratch.exists()
    assert not path.exists()
    owner.close()


def test_close_is_in_reverse_order_and_a_failing_callback_does_not_stop_it(tmp_path: Path) -> None:
    order: list[str] = []
    running: list[bool] = []

    def failing() -> None:
        order.append("failing")
        raise OSError("cannot")

    with Owner() as owner:
        owner.push(lambda: order.append("pushed first"))
        service = owner.start("sleep", ["sleep", "600"], log=tmp_path / "log")
        owner.push(lambda: running.append(service.is_running()))
        owner.push(failing)
        owner.push(lambda: order.append("pushed last"))
    assert order == ["pushed last", "failing", "pushed first"]
    assert running == [True], "a callback pushed after the service is called while the service still runs"
    assert not service.is_running()


def test_services_are_stopped_even_if_a_callback_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceproof.stack.processes.owner._CLOSE_GRACE_S", 0.1)
    forever = threading.Event()
    with Owner() as owner:
        service = owner.start("sleep", ["sleep", "600"], log=tmp_path / "log")
        owner.push(forever.wait)
    assert not service.is_running()
    forever.set()


def test_stop_resumes_a_frozen_process_so_that_it_can_exit_normally(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print('up', flush=True); time.sleep(600)"
    )
    with Owner() as owner:
        service = owner.start("polite", [sys.executable, "-c", script], log=tmp_path / "log")
        wait_until("the handler", lambda: "up" in service.log_tail(), deadline_s=30)
        os.kill(service.pid, signal.SIGSTOP)
        service.stop(30)
        assert service.returncode == 7


def test_no_thread_of_a_frozen_process_runs(tmp_path: Path) -> None:
    """One thread takes the signal: on a busy machine the others run on until it is scheduled."""
    script = """
import threading, time
def spin():
    while True: time.sleep(0.0001)
for _ in range(40): threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
spin()
"""
    with Owner() as owner:
        busy = owner.start("busy", [sys.executable, "-c", script], log=tmp_path / "busy.log")
        wait_until("its threads", lambda: "ready" in busy.log_tail(), deadline_s=10)
        assert not procfs.is_stopped(busy.pid)
        for _ in range(20):
            busy.freeze()
            assert procfs.is_stopped(busy.pid)
            busy.thaw()
            wait_until("it to run again", lambda: not procfs.is_stopped(busy.pid), deadline_s=10)
        busy.kill()
        assert procfs.is_stopped(busy.pid)


def test_a_process_gets_its_stdin_its_environment_and_the_runs_mark(tmp_path: Path) -> None:
    script = "import os, sys; e = os.environ; print(sys.stdin.read(), e.get('A'), e['ONCEPROOF_RUN'], e.get('HOME'))"
    with Owner("r1") as owner:
        service = owner.start(
            "echo", [sys.executable, "-c", script], log=tmp_path / "log", env={"A": "1"}, stdin=b"secret"
        )
        assert service.wait(30) == 0
        assert service.log_tail() == "secret 1 r1 None\n"
        silent = owner.start("silent", [sys.executable, "-c", script], log=tmp_path / "log2")
        assert silent.wait(30) == 0
        assert silent.log_tail().startswith(" None r1 /"), "empty stdin, inherited environment"


def test_a_session_with_a_reused_id_is_left_alone(tmp_path: Path) -> None:
    with Owner() as owner:
        service = owner.start("sleep", ["sleep", "600"], log=tmp_path / "log")
        ticks, service.start_ticks = service.start_ticks, 1
        assert service.members() == []
        service.start_ticks = ticks
        assert [one.pid for one in service.members()] == [service.pid]


def test_the_error_for_a_missing_program_names_it(tmp_path: Path) -> None:
    with (
        Owner() as owner,
        pytest.raises(EnvironmentProblem, match=r"cannot start broker \(/nowhere/java\): No such file"),
    ):
        owner.start("broker", ["/nowhere/java"], log=tmp_path / "log")


def test_a_run_id_cannot_have_two_owners() -> None:
    with Owner("twice"), pytest.raises(EnvironmentProblem, match="run 'twice' is still going on"):
        Owner("twice")
    Owner("twice").close()


def test_nothing_starts_after_close(tmp_path: Path) -> None:
    owner = Owner()
    owner.close()
    with pytest.raises(RuntimeError, match="is closing"):
        owner.start("late", ["sleep", "600"], log=tmp_path / "log")
    assert not [one for one in psutil.Process().children() if one.name() == "sleep"]


def test_a_process_that_starts_programs_all_the_time_can_be_frozen(tmp_path: Path) -> None:
    """A vfork child that is stopped before it calls exec keeps its parent in an uninterruptible wait."""
    script = """
import subprocess, threading
def spawn():
    while True: subprocess.run(["/bin/true"])
for _ in range(4): threading.Thread(target=spawn, daemon=True).start()
print("ready", flush=True)
spawn()
"""
    with Owner() as owner:
        busy = owner.start("busy", [sys.executable, "-c", script], log=tmp_path / "busy.log")
        wait_until("its threads", lambda: "ready" in busy.log_tail(), deadline_s=10)
        for _ in range(60):
            busy.freeze()
            busy.thaw()
        busy.kill()


def test_an_adopted_session_is_stopped_and_killed_with_the_service(tmp_path: Path) -> None:
    with Owner() as owner:
        first = owner.start("first", ["sleep", "600"], log=tmp_path / "first.log")
        other = owner.start("other", ["sleep", "600"], log=tmp_path / "other.log")
        first.adopt(other)
        assert {one.pid for one in first.members()} == {first.pid, other.pid}
        first.freeze()
        assert procfs.is_stopped(other.pid)
        first.thaw()
        first.release(other)
        first.kill()
        assert other.is_running() and not first.is_running()
        third = owner.start("third", ["sleep", "600"], log=tmp_path / "third.log")
        third.adopt(other)
        third.kill()
        assert not other.is_running()


def test_a_signal_that_ended_a_container_is_a_signal(tmp_path: Path) -> None:
    """`docker run` ends with 128 and the signal's number; any other program may end with that code by itself."""
    with Owner() as owner:
        for_container = owner.start("process of the container", ["sleep", "600"], log=tmp_path / "sleep.log")
        first = procfs.stat(for_container.pid)
        assert first is not None
        ended = ["sh", "-c", "sleep 0.2; exit 143"]
        client, other = (owner.start(name, ended, log=tmp_path / f"{name}.log") for name in ("docker-run", "other"))
        client.adopt(first)
        assert client.wait(10) == client.returncode == -signal.SIGTERM
        assert other.wait(10) == other.returncode == 143


def test_what_could_not_be_cleaned_up_stays_in_the_journal(tmp_path: Path) -> None:
    owner = Owner()
    path = owner._journal.path
    owner.push(lambda: 1 / 0)
    owner.close()
    assert path.is_file()
    path.unlink()


def test_the_connections_of_a_stopped_process_are_cut_and_what_it_sent_arrives(tmp_path: Path) -> None:
    script = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(b"sent")
print("answered", flush=True)
try:
    connection.sendall(b"more" if connection.recv(1) else b"late")
    print("went on", flush=True)
except OSError as error:
    print("cut", flush=True)
time.sleep(600)
"""
    log = tmp_path / "log"
    with Owner() as owner:
        service = owner.start("peer", [sys.executable, "-u", "-c", script], log=log)
        wait_until("its port", lambda: log.read_text().endswith("\n"), deadline_s=20)
        with socket.create_connection(("127.0.0.1", int(log.read_text())), timeout=5) as here:
            wait_until("its answer", lambda: "answered" in log.read_text(), deadline_s=20)
            service.freeze()
            assert connections.cut(service.pid) == 1
            assert here.recv(100) == b"sent" and here.recv(100) == b""
            service.thaw()
            wait_until("its error", lambda: "cut" in log.read_text(), deadline_s=20)
        with socket.create_connection(("127.0.0.1", int(log.read_text().split()[0])), timeout=5):
            pass  # what listens is not cut
