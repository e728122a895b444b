"""SIGINT, SIGTERM, SIGHUP and SIGQUIT end a command with exit code 130 after its clean-up; none is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onceproof.base.signals import interruptible, uninterrupted
from onceproof.base.waiting import wait_until
from onceproof.stack.processes import journal
from onceproof.stack.processes import owner as processes

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]

#: A command that owns a service which ignores SIGTERM for the three seconds that the clean-up waits. In the mode "patient"
#: the clean-up waits until the test makes the service end.
COMMAND = """
import sys, time
from pathlib import Path
import typer
from onceproof.cli.output import failing_well
from onceproof.stack.processes import owner as processes
from onceproof.stack.processes.owner import Owner

STUBBORN = '''
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
'''
if sys.argv[2] == "patient":
    processes._CLOSE_GRACE_S = processes._GROUP_GRACE_S = 60.0
try:
    with failing_well():
        with Owner("ending") as owner:
            service = owner.start("stubborn", [sys.executable, "-c", STUBBORN, sys.argv[1] + ".end"], log=Path(sys.argv[1]))
            while "up" not in service.log_tail():
                time.sleep(0.01)
            (owner.scratch / "pgpass").write_text("secret")
            print(owner.scratch, service.pid, flush=True)
            if sys.argv[2] == "working":
                time.sleep(600)
            print("closing", flush=True)
            if sys.argv[2] == "failing":
                raise ValueError("a failure of its own")
        print("continued", flush=True)
except typer.Exit as done:
    sys.exit(done.exit_code)
"""


class Command:
    def __init__(self, tmp_path: Path, mode: str) -> None:
        self._errors = tmp_path / "errors"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(tmp_path / "log"), mode],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.log, self.end_of_service = tmp_path / "log", tmp_path / "log.end"
        scratch, pid = self.process.stdout.readline().split()
        self.scratch, self.service = Path(scratch), int(pid)
        if mode != "working":
            assert self.process.stdout.readline() == "closing\n"

    def end(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, out, self.errors()

    def errors(self) -> str:
        return self._errors.read_text()

    def left(self) -> list[str]:
        left = [str(path) for path in (self.scratch, journal.live_folder() / "ending.json") if path.exists()]
        return left + [str(self.service)] * Path(f"/proc/{self.service}").exists()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Command]]:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    begun: list[Command] = []

    def begin(mode: str) -> Command:
        begun.append(Command(tmp_path, mode))
        return begun[-1]

    yield begin
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
    subprocess.run([sys.executable, "-m", "onceproof", "cleanup"], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        *(("working", number) for number in ALL),
        ("closing", signal.SIGINT),
        ("closing", signal.SIGHUP),
        ("failing", signal.SIGTERM),
    ],
)
def test_each_signal_ends_the_command_after_a_complete_clean_up(
    command: Callable[[str], Command], mode: str, number: signal.Signals
) -> None:
    one = command(mode)
    one.process.send_signal(number)
    code, out, err = one.end()
    assert one.left() == []
    assert (code, out) == (130, ""), err
    assert f"interrupted by {number.name}" in err
    assert "Traceback" not in err


def test_further_signals_do_not_interrupt_the_clean_up_and_print_what_it_does(
    command: Callable[[str], Command],
) -> None:
    one = command("patient")
    wait_until("the clean-up to begin", lambda: "asked to stop" in one.log.read_text(), deadline_s=30)
    for count, number in enumerate((signal.SIGINT, signal.SIGINT, signal.SIGTERM), start=1):
        one.process.send_signal(number)  # one after the other: the kernel merges equal pending signals
        wait_until("a message", lambda n=count: one.errors().count(": first ") == n, deadline_s=30)
    one.end_of_service.touch()
    code, _, err = one.end()
    assert one.left() == []
    assert code == 130
    assert err.lstrip().startswith("SIGINT: first stopping stubborn; then its temporary folders are removed\n")
    assert f"kill -KILL {one.process.pid}; afterwards: onceproof cleanup" in err


def test_a_signal_that_other_code_swallowed_still_gives_exit_code_130() -> None:
    program = """
import signal
import typer
from onceproof.cli.output import failing_well

class Noisy:
    def __del__(self):  # Python ignores errors raised in a destructor
        signal.raise_signal(signal.SIGINT)

try:
    with failing_well():
        noisy = Noisy()
        del noisy
except typer.Exit as done:
    raise SystemExit(done.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr, "Python prints one for an error in a destructor"


def test_a_command_started_with_nohup_ignores_sighup() -> None:
    program = """
import signal
from onceproof.base.signals import interruptible
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with interruptible():
    signal.raise_signal(signal.SIGHUP)
print("on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "on\n", done.stderr


def test_the_journal_stays_until_everything_that_it_lists_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("onceproof.stack.processes.owner._REMOVE_DEADLINE_S", 0.1)
    owner = processes.Owner("stays")
    path = journal.live_folder() / "stays.json"
    kept = owner.scratch.with_name(f"{owner.scratch.name}.kept")
    owner.scratch.rename(kept)
    owner.scratch.write_text("a file cannot be removed as a folder")
    try:
        owner.close()
        entry = journal.read(path)
        assert entry is not None
        assert str(owner.scratch) in entry.folders
    finally:
        owner.scratch.unlink()
        kept.rmdir()
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("words", [["import", "--help"], ["list"], ["doctor"], ["cleanup"]])
def test_ctrl_c_at_any_moment_of_a_short_command_gives_no_traceback(words: list[str]) -> None:
    for delay_s in (0.0, 0.3, 0.8):
        process = subprocess.Popen(
            [sys.executable, "-m", "onceproof", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_until("Python to be in the program", lambda p=process: _is_ready(p), deadline_s=30, every_s=0.001)
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)  # the signal may come at any moment
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert "Traceback" not in err
        assert process.returncode in (0, 130), err


def _is_ready(process: subprocess.Popen[str]) -> bool:
    """Whether it has ended, or has installed its handler of SIGHUP: Python itself starts without one."""
    if process.poll() is not None:
        return True
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGHUP - 1) & 1)


def test_uninterrupted_does_nothing_outside_a_command_and_in_other_threads() -> None:
    done: list[str] = []

    def clean_up(where: str) -> None:
        with uninterrupted("cleaning"):
            done.append(where)

    clean_up("outside")
    with interruptible():
        thread = threading.Thread(target=clean_up, args=("thread",))
        thread.start()
        thread.join()
    assert done == ["outside", "thread"]
