"""Fixtures: explorations with made-up runs and a made-up warm tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceproof.api import exploration
from onceproof.explore import real, session
from onceproof.explore.result import Exploration

from .made_up import MadeUpRuns, MadeUpTier, Quiet, Work


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> MadeUpRuns:
    made_up = MadeUpRuns()
    monkeypatch.setattr(real, "run", made_up.run)
    return made_up


@pytest.fixture
def tier(monkeypatch: pytest.MonkeyPatch) -> MadeUpTier:
    made_up = MadeUpTier()
    monkeypatch.setattr(session, "WarmTier", made_up)
    monkeypatch.setattr(session, "Judge", made_up.judge)
    return made_up


@pytest.fixture
def work(runs: MadeUpRuns, tier: MadeUpTier, tmp_path: Path) -> Work:
    """Explores a job. ``go_on``: the exploration to continue."""

    def go(
        scenario: str | Path = "callable-append",
        *,
        go_on: Exploration | None = None,
        budget_s: float = 6000,
        listener: Quiet | None = None,
        **wanted: Any,
    ) -> Exploration:
        loaded, directory, plan = (
            exploration._begun(scenario, exploration.Wanted(**wanted), tmp_path)
            if go_on is None
            else exploration._resumed(go_on.directory.path)
        )
        heard = listener or Quiet()
        one = session.Session(loaded, directory, plan, budget_s=budget_s, listener=heard, clock=lambda: runs.now)
        return one.work()

    return go
