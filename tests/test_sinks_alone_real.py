"""A job with onceproof-sinks, in which the harness cannot be imported, is held at its failpoints and killed like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.run import Result

from .sinks.distribution import ROOT, build, uv

pytestmark = [pytest.mark.real, pytest.mark.full]

#: From here on, every import of the harness fails.
WITHOUT_HARNESS = 'import sys\nsys.modules["onceproof"] = None\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """`driver-crash-postgres` with a copy of its job that imports the installed `onceproof_sinks`, and writes from the tasks."""
    for name in ("flights_to_postgres.py", "common.py"):
        text = (ROOT / "scenarios/jobs" / name).read_text(encoding="utf-8")
        changed = text.replace("from onceproof.sinks.", "from onceproof_sinks.")
        assert changed != text
        first = "from __future__ import annotations\n"
        (tmp_path / name).write_text(changed.replace(first, first + WITHOUT_HARNESS), encoding="utf-8")
    uv("pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "installed", build(tmp_path))
    document = {
        "base": "driver-crash-postgres",
        "pipeline": {
            "command": ["{python}", "{here}/flights_to_postgres.py"],
            "args": {"staged": True},
            "env": {"PYTHONPATH": "{here}/installed"},
        },
        "chaos": [
            {"fault": "crash", "target": "driver", "at": {"batch": batch, "point": point}}
            for batch, point in ((1, "before-sink-commit"), (3, "after-sink-commit"))
        ],
    }
    path = tmp_path / "alone.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_job_without_the_harness_is_held(scenario: Path, run_once: Callable[[Path], Result]) -> None:
    verdict = run_once(scenario).verdict
    assert verdict.outcome.value == "held"
    assert all(fault.hit for fault in verdict.faults) and len(verdict.faults) == 2
