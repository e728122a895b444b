"""Planted bugs on real services. The gate runs one, with both controls; `tox -e full` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.api import runs
from onceproof.planted import catalogue
from onceproof.planted.results import BugResult
from onceproof.planted.session import Session
from onceproof.planted.table import line

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

#: Caught without Spark, and so quickly.
GATE = "offset-before-effect-loses"


def result(name: str, folder: Path) -> BugResult:
    planted = catalogue.load([catalogue.read()[name]])
    session = Session(folder, lambda loaded, _what: runs.run(loaded, runs_dir=folder), full=True)
    return session.work(planted)[name]


@pytest.mark.services
def test_a_planted_bug_is_caught_quiet_without_its_fault_and_held_with_its_remedy(tmp_path: Path) -> None:
    found = result(GATE, tmp_path)
    assert found.passed, line(GATE, found)
    assert found.vacuity is not None and found.vacuity.outcome == "held"


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in catalogue.read() if name != GATE])
def test_every_planted_bug(name: str, tmp_path: Path) -> None:
    found = result(name, tmp_path)
    assert found.passed, line(name, found)
