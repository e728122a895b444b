"""The checker in docs/add-a-checker.md, registered with the real ones, fulfils the contract, and its test passes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.cli.show.anomaly import explained
from onceproof.judge.checker import Checker, checkers
from onceproof.judge.verdict import judge

from ..guides import executed
from .properties.world import Drawn, fit_for, histories, store

pytestmark = pytest.mark.sources

GUIDE = "add-a-checker.md"


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The page's two files, as modules."""
    checkers.names()  # loads the real ones first: checkers registered from here on are removed after the test
    real = {key: item for key, item in checkers._items.items() if not item.__module__.endswith(".progress_behind")}
    monkeypatch.setattr(checkers, "_items", real)
    return {
        "checker": executed(GUIDE, "checkers/progress_behind.py", monkeypatch),
        "test": executed(GUIDE, "tests/judge/checkers/test_progress_behind.py", monkeypatch),
    }


def test_the_documented_checker_is_explained(documented: dict[str, ModuleType]) -> None:
    assert "Progress in the transaction of the data" in explained("progress-behind", as_json=False)
    assert issubclass(documented["checker"].ProgressBehind, Checker)


def test_the_documented_test_passes(documented: dict[str, ModuleType], clean_run: Any) -> None:
    documented["test"].test_last_batch_that_was_never_recorded(clean_run)


@histories(1)
@given(data=st.data())
def test_the_documented_damage_is_found_and_nothing_else(
    documented: dict[str, ModuleType], make_run: Callable[[Path], Any], data: st.DataObject
) -> None:
    (damage,) = documented["checker"].ProgressBehind.damages
    world = data.draw(fit_for(damage))
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "clean")
        store(world, run)
        assert judge(run.save()).findings == ()
        named = damage.apply(world, Drawn(data))
        run = make_run(Path(folder) / "broken")
        store(world, run)
        findings = judge(run.save()).findings
    assert {(f.anomaly, f.output): f.total for f in findings} == {
        where: sum(who.values()) for where, who in named.items()
    }
