"""Which Go builds Toxiproxy, and failed builds. (Every real test uses the binary and so tests that it builds.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.progress import FetchStopped, Progress
from onceproof.stack.toxiproxy import build as toxiproxy_build


def fake_go(folder: Path, script: str) -> Path:
    path = folder / "go"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("output", "used"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.23 linux/amd64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("something else", False),
    ],
)
def test_only_a_go_that_is_new_enough_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, used: bool
) -> None:
    go = fake_go(tmp_path, f"echo '{output}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toxiproxy_build.system_go() == (go if used else None)


def test_without_go_on_the_path_there_is_no_system_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toxiproxy_build.system_go() is None


def test_the_error_for_a_failed_build_has_the_tools_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = fake_go(tmp_path, "echo 'dial tcp: no route to the module mirror' >&2; exit 1")
    monkeypatch.setattr(toxiproxy_build, "system_go", lambda: go)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(EnvironmentProblem, match="no route to the module mirror"):
        toxiproxy_build.build(target, Progress(show=False))
    assert list(target.iterdir()) == []


def running(pid: str) -> bool:
    try:
        return (Path("/proc") / pid / "stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupted_build_ends_the_tool_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(show=False)
    pids = tmp_path / "pids"
    # The tool and its child write their pids, then wait until the whole session is killed.
    go = fake_go(tmp_path, f"(echo $$ >> {pids}; sleep 1000) & echo $! >> {pids}; wait")
    monkeypatch.setattr(toxiproxy_build, "system_go", lambda: go)
    target = tmp_path / "target"
    target.mkdir()

    class Interrupting(Progress):
        def check(self) -> None:
            if pids.exists() and len(pids.read_text().split()) == 2:
                progress.stopped.set()
            progress.check()

    with pytest.raises(FetchStopped):
        toxiproxy_build.build(target, Interrupting(show=False))
    for pid in pids.read_text().split():
        # The kernel still lists a killed process for a moment.
        wait_until(f"process {pid} to be gone", lambda pid=pid: not running(pid), deadline_s=5)
