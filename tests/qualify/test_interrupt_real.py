"""Signals and SIGKILL during a later run of a qualification: the results are kept, and `--continue` uses them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceproof.base.waiting import wait_until
from onceproof.scenario_files.shipped import find

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(900)]

ENDS_S = 15.0


class Qualify:
    """``onceproof qualify`` in a process of its own."""

    def __init__(self, log: Path, before: set[Path], *words: str) -> None:
        self.log = log
        self.before = before
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onceproof", "qualify", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_for(self, runs: Path, kind: str) -> list[psutil.Process]:
        """Wait until the second run below ``runs`` of this process records the event; return all processes that run then."""

        def seen() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            newest = max(runs.glob("02-*/events.jsonl"), key=lambda file: file.stat().st_mtime_ns, default=None)
            if newest is None or newest in self.before:
                return False
            return any(json.loads(line)["kind"] == kind for line in newest.read_text().splitlines()[:-1])

        wait_until(f"{kind} of a later run", seen, deadline_s=300, explain=lambda: self.log.read_text()[-2000:])
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Qualify]]:
    started: list[Qualify] = []

    def begin(*words: str) -> Qualify:
        started.append(Qualify(tmp_path / f"{len(started)}.log", set(tmp_path.rglob("02-*/events.jsonl")), *words))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def alive(processes: list[psutil.Process]) -> list[str]:
    return [str(p) for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def state(directory: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((directory / "qualification.json").read_text())
    return stored


def test_results_survive_signals_and_a_killed_harness(start: Callable[..., Qualify], tmp_path: Path) -> None:
    original = find("foreign-psycopg-upsert")
    scenario = tmp_path / "small.yaml"  # so few records that each cell gets a run of its own
    text = original.read_text().replace("rows: 6000", "rows: 100").replace("{here}", str(original.resolve().parent))
    scenario.write_text(text)

    runs = tmp_path / "runs"
    stopped = start(str(scenario), "--runs", str(runs))
    wait_until("the directory", lambda: list(runs.glob("qualify-small-*")), deadline_s=60)
    (directory,) = runs.glob("qualify-small-*")
    for number, kind in ((signal.SIGTERM, "job.started"), (signal.SIGINT, "fault.fired")):
        running = stopped.wait_for(directory / "runs", kind)
        assert running, "nothing was running yet: the test would prove nothing"
        stopped.process.send_signal(number)
        assert stopped.process.wait(ENDS_S) == 130, stopped.log.read_text()
        assert alive(running) == []
        assert f"onceproof qualify --continue {directory}" in stopped.log.read_text()
        assert re.search(r"interrupted: the results of 0 of \d+ cells are kept", stopped.log.read_text())
        kept = state(directory)
        assert kept["steps"] == 1 and kept["decided"] == [kept["first"]]
        stopped = start("--continue", str(directory))

    running = stopped.wait_for(directory / "runs", "fault.fired")
    stopped.process.kill()
    stopped.process.wait()
    assert alive(running), "everything died with the harness: the test would prove nothing"
    words = [sys.executable, "-m", "onceproof", "cleanup"]
    cleanup = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert cleanup.returncode == 0 and alive(running) == [], cleanup.stdout + cleanup.stderr
    assert {**state(directory), "spent_s": 0} == {**kept, "spent_s": 0}, "the state from before the killed run"
    assert len(list((directory / "runs").glob("02-*"))) == 3, "none of them counts"

    one_run = 2 * kept["first_s"] + 15
    last = start("--continue", str(directory), "--budget", f"{one_run:.0f}s")
    assert last.process.wait(300) in (0, 3), last.log.read_text()
    done = state(directory)
    assert done["steps"] > 1 and len(done["decided"]) > 1 and len(list((directory / "runs").glob("01-*"))) == 1
    assert [cell["name"] for cell in done["cells"] if cell["verdict"] == "held"]
    assert "reachable cells exercised: " in last.log.read_text()
