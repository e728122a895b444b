"""After a SIGKILL of the harness, clean-up ends the processes of that run and touches nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.cleanup import clean_up
from onceproof.stack.processes import journal, procfs
from onceproof.stack.processes.owner import Owner

#: A harness that starts a service (with a child in another session), prints its pid, and never closes.
HARNESS = """
import sys, time
from pathlib import Path
from onceproof.stack.processes.owner import Owner
owner = Owner("abandoned")
child = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
service = owner.start("broker", [sys.executable, "-c", child], log=Path(sys.argv[1]))
while len(service.members()) < 2:
    time.sleep(0.01)
print(service.pid, owner.scratch, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[tuple[list[psutil.Process], Path]]:
    """The processes and the scratch folder that a killed harness left."""
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    leader, scratch = harness.stdout.readline().split()
    left = [psutil.Process(int(leader)), *psutil.Process(int(leader)).children()]
    harness.kill()
    harness.wait()
    harness.stdout.close()
    yield left, Path(scratch)
    for process in left:
        if process.is_running():
            process.kill()
    shutil.rmtree(scratch, ignore_errors=True)


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def change(run_id: str, **values: Any) -> None:
    path = journal.live_folder() / f"{run_id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_it_ends_the_processes_of_a_dead_run_and_not_those_of_a_live_run(
    abandoned: tuple[list[psutil.Process], Path], tmp_path: Path
) -> None:
    left, scratch = abandoned
    with Owner("living") as owner:
        service = owner.start("ours", ["sleep", "600"], log=tmp_path / "ours.log")
        planned = clean_up(dry_run=True)
        assert planned == [
            f"would end broker of run abandoned: 2 processes (session {left[0].pid})",
            f"would remove {scratch}",
        ]
        assert all(alive(process) for process in left)
        assert clean_up() == [
            sentence.replace("would end", "ended").replace("would remove", "removed") for sentence in planned
        ]
        assert not any(alive(process) for process in left)
        assert not scratch.exists()
        assert clean_up() == []
        assert service.is_running()
        assert [path.stem for path in journal.live_folder().iterdir()] == ["living"]


def test_a_process_that_outlived_its_leader_is_found_by_the_runs_mark(
    abandoned: tuple[list[psutil.Process], Path],
) -> None:
    left, scratch = abandoned
    os.kill(left[0].pid, signal.SIGKILL)
    wait_until("the leader to be gone", lambda: not alive(left[0]), deadline_s=10)
    assert clean_up() == [
        f"ended 1 process of run abandoned outside its sessions (pid {left[1].pid})",
        f"removed {scratch}",
    ]
    assert not alive(left[1])


def test_a_process_with_the_reused_pid_of_a_dead_one_is_not_killed(
    abandoned: tuple[list[psutil.Process], Path],
) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        change("abandoned", sessions=[{"name": "old", "sid": stranger.pid, "start_ticks": 1}])
        clean_up()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_after_a_reboot_no_process_belongs_to_the_run(abandoned: tuple[list[psutil.Process], Path]) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        stat = procfs.stat(stranger.pid)
        assert stat is not None
        matching = {"name": "old", "sid": stranger.pid, "start_ticks": stat.start_ticks}
        change("abandoned", boot="another", sessions=[matching])
        assert not any("old" in sentence for sentence in clean_up())
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_run_of_another_machine_and_an_unreadable_journal_are_left_alone(
    abandoned: tuple[list[psutil.Process], Path],
) -> None:
    left, _ = abandoned
    change("abandoned", host="elsewhere")
    torn = journal.live_folder() / "torn.json"
    torn.write_text("{")
    assert clean_up() == [
        "left run abandoned alone: it was started on elsewhere; run `onceproof cleanup` there",
        f"left {torn} alone: it is not a journal that this version can read",
    ]
    assert alive(left[0])


@pytest.mark.parametrize(
    "daemon, because",
    [
        ("unix:///nowhere.sock", "no container daemon answers"),
        ("tcp://127.0.0.1:1", "export DOCKER_HOST=tcp://127.0.0.1:1"),
    ],
)
def test_the_journal_of_a_run_with_containers_stays_until_its_daemon_answers(
    abandoned: tuple[list[psutil.Process], Path], monkeypatch: pytest.MonkeyPatch, daemon: str, because: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    change("abandoned", daemon=daemon)
    with pytest.raises(EnvironmentProblem, match="could not remove the containers of run abandoned") as refused:
        clean_up()
    assert because in str(refused.value)
    change("abandoned", daemon="")  # a run without containers needs no daemon
    assert clean_up() == [] and not list(journal.live_folder().glob("*.json"))


def test_only_scratch_folders_are_removed(abandoned: tuple[list[psutil.Process], Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    link = tmp_path / "onceproof-link"
    link.symlink_to(mine)
    change("abandoned", folders=[str(mine), str(link), str(tmp_path / "onceproof-gone")])
    clean_up()
    assert mine.is_dir()
    assert link.is_symlink()


def test_a_folder_that_cannot_be_removed_is_reported_and_its_journal_kept(
    abandoned: tuple[list[psutil.Process], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, scratch = abandoned

    def refused(_folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("onceproof.stack.cleanup.remove_folder", refused)
        with pytest.raises(EnvironmentProblem, match=f"could not remove {scratch}.*Permission denied"):
            clean_up()
    assert [path.stem for path in journal.live_folder().iterdir()] == ["abandoned"]
    assert clean_up() == [f"removed {scratch}"]
    assert list(journal.live_folder().iterdir()) == []
