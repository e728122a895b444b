"""Shared by the tests: real scenarios are run once a session, and every assertion about them reads that run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.events import Event


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | Path], object]:
    """``run_once(name or path)``: the `Result` of that scenario's only run in this session."""
    from onceproof.run import Result, run
    from onceproof.scenario.load import find

    done: dict[Path, Result] = {}
    runs_dir = tmp_path_factory.mktemp("runs")

    def narrate(event: Event) -> None:
        if event.kind in ("phase", "job.started", "job.exited", "fault.hit", "fault.missed", "warning"):
            print(f"{event.at:7.2f} {event.kind} {event.data}")  # noqa: T201  # pytest shows it for a failure

    def once(name: str | Path) -> Result:
        path = find(name)
        if path not in done:
            done[path] = run(path, runs_dir=runs_dir, listeners=[narrate])
        return done[path]

    return once
