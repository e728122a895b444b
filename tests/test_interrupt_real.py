"""Ctrl-C, SIGTERM and SIGKILL of the harness in each phase: no process that it started survives (or survives cleanup)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from onceproof.base.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

GONE_S = 10.0


class Harness:
    """``onceproof run`` in a separate process, with everything that it starts."""

    def __init__(self, runs: Path, scenario: str) -> None:
        self.runs = runs
        self.log = runs / "harness.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onceproof", "run", scenario, "--runs", str(runs)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def run_dir(self) -> Path:
        return (self.runs / "latest").resolve()

    def wait_for(self, kind: str, **data: object) -> None:
        def has_come() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            events = self.runs / "latest" / "events.jsonl"
            if not events.exists():
                return False
            seen = [json.loads(line) for line in events.read_text().splitlines()]
            return any(e["kind"] == kind and all(e.get(k) == v for k, v in data.items()) for e in seen)

        wait_until(f"{kind} {data}", has_come, deadline_s=120, explain=lambda: self.log.read_text()[-2000:])

    def started(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Harness]]:
    started: list[Harness] = []

    def begin(scenario: str) -> Harness:
        started.append(Harness(tmp_path, scenario))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def alive(processes: list[psutil.Process]) -> list[str]:
    return [str(p) for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("scenario", "number", "kind", "data"),
    [
        pytest.param(
            *("driver-crash-postgres", signal.SIGTERM, "stack.ready", {"service": "toxiproxy"}), marks=pytest.mark.full
        ),
        ("driver-crash-postgres", signal.SIGINT, "job.started", {"start": 0}),
        pytest.param(*("driver-crash-postgres", signal.SIGTERM, "phase", {"name": "collect"}), marks=pytest.mark.full),
        pytest.param(*("broker-crash", signal.SIGINT, "fault.fired", {}), marks=pytest.mark.full),
    ],
    ids=["while the stack starts", "while the job starts", "while collecting", "while a broker is down"],
)
def test_a_signal_in_any_phase_leaves_no_process(
    start: Callable[[str], Harness], scenario: str, number: signal.Signals, kind: str, data: dict[str, object]
) -> None:
    harness = start(scenario)
    harness.wait_for(kind, **data)
    started = harness.started()
    assert started, "no process was running yet: the test would show nothing"
    harness.process.send_signal(number)
    assert harness.process.wait(GONE_S) == 130, harness.log.read_text()
    assert alive(started) == []
    document = json.loads((harness.run_dir / "run.json").read_text())
    assert document["interrupted"] is True
    assert json.loads((harness.run_dir / "verdict.json").read_text())["verdict"] == "interrupted"


def test_cleanup_removes_what_a_killed_harness_left(start: Callable[[str], Harness]) -> None:
    harness = start("driver-crash-postgres")
    harness.wait_for("batch.planned")
    started = harness.started()
    harness.process.kill()
    harness.process.wait()
    assert alive(started), "everything died with the harness: the test would show nothing"
    cleanup = subprocess.run(
        [sys.executable, "-m", "onceproof", "cleanup"], capture_output=True, text=True, timeout=60, check=False
    )
    assert cleanup.returncode == 0, cleanup.stderr
    assert alive(started) == [], cleanup.stdout
