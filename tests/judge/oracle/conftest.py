"""Asks oracles that run code about a stored run, as a run does at its end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.masking import hiding
from onceproof.base.timeline import Timeline
from onceproof.history.run_directory import RunDir
from onceproof.judge.proposals import store_rows
from onceproof.oracle import oracles
from onceproof.oracle.contract.precomputed import OracleRunner, PrecomputedOracle, work_out
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.owner import Owner

Ask = Callable[[Any], Path]


def no_stack(_scenario: Scenario, _where: Path) -> RunDir:
    raise AssertionError("this oracle needs no run of its own")


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Saves a run, asks its oracle, and returns its directory. ``{here}`` is the test's folder."""
    timelines = []
    with Owner() as owner:

        def asked(run: Any, observe: Any = no_stack) -> Path:
            path = run.save()
            directory = RunDir(path)
            directory.update(**json.loads((path / "run.json").read_text()))
            directory.tables.mkdir(exist_ok=True)
            timelines.append(Timeline(directory.events))
            kind = run.scenario["oracle"]["kind"]
            scenario = Scenario.model_validate(run.scenario)
            oracle = oracles.get(kind)(scenario.oracle)
            assert isinstance(oracle, PrecomputedOracle)
            values = {"here": str(tmp_path), "python": sys.executable}
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            runner = OracleRunner(scenario, directory, owner, timelines[-1], environment, values, observe, store_rows)
            with hiding(["hush-hush"]):
                work_out(oracle, kind, runner)
            return path

        yield asked
    for timeline in timelines:
        timeline.close()
