"""Shared fixtures: each real scenario is run once per session, and all assertions about it use that run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from onceproof.base.timeline import Event

# By default (the gate) a few examples, the same every time, so that an unrelated change cannot make a test fail.
# HYPOTHESIS_PROFILE=full, used by `tox -e full`, takes more of them. HYPOTHESIS_PROFILE=wide draws HYPOTHESIS_EXAMPLES
# (2,000) new examples, and HYPOTHESIS_PROFILE=long 10,000 for every test, which takes hours. Machines differ in speed, so no
# example has a deadline.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile("gate", max_examples=15, derandomize=True, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("full", parent=settings.get_profile("gate"), max_examples=100)
settings.register_profile("long", parent=settings.get_profile("gate"), max_examples=10_000, derandomize=False)
settings.register_profile(
    "wide",
    parent=settings.get_profile("gate"),
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "2000")),
    derandomize=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
if settings.get_current_profile_name() in ("wide", "long"):
    os.environ.setdefault("PYTEST_TIMEOUT", "0")  # pytest-timeout reads it after this file was imported

# A program builds its commands once per process. typer's `CliRunner` would do so at each of some thousand calls, in 0.06 s.
typer.testing._get_command = cache(typer.testing._get_command)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m "real ..."`` or ``-m "sources ..."``, leave out the files without that marker: to import them takes most of the
    time of collecting."""
    marker = config.option.markexpr.partition(" ")[0]
    if marker not in ("real", "sources") or not collection_path.match("test_*.py"):
        return None
    return True if f"mark.{marker}" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, only two workers run tests with Spark."""
    if config.getvalue("dist") != "loadfile":
        return None
    from .scheduling import Scheduling

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str | Path], object]]:
    """``run_once(name or path)`` returns the `Result` of that scenario's only run in this session.

    Runs with equal stacks share services, one after the other (ONCEPROOF_FRESH_STACK=1: each starts its own).
    """
    from onceproof.run import Result, run
    from onceproof.scenario_files.load import load_file
    from onceproof.scenario_files.shipped import find
    from onceproof.stack.sharing.shared import SharedStack

    from .lending import LentBrokers, can_share

    done: dict[Path, Result] = {}
    runs_dir = tmp_path_factory.mktemp("runs")

    def print_event(event: Event) -> None:
        if event.kind in (
            "phase",
            "job.started",
            "job.exited",
            "fault.hit",
            "fault.missed",
            "warning",
            "stack.used-up",
            "stack.replaced",
        ):
            print(f"{event.at:7.2f} {event.kind} {event.data}")  # noqa: T201  # pytest shows it if a test fails

    def once(name: str | Path) -> Result:
        path = find(name)
        if path not in done:
            loaded = load_file(path)
            if shares and can_share(loaded.scenario):
                done[path] = brokers.run(loaded, runs_dir, [print_event])
            else:
                done[path] = run(loaded, runs_dir=runs_dir, listeners=[print_event], shared=stack if shares else None)
        return done[path]

    shares = not os.environ.get("ONCEPROOF_FRESH_STACK")
    with SharedStack() as stack, LentBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield once
