"""Correct pipelines have no findings, whatever they read, however they restart, and wherever they write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given

from onceproof.judge.synthetic.world import World
from onceproof.judge.verdict import judge

from .world import histories, store, worlds


@histories(200)
@given(world=worlds())
def test_clean_histories_have_no_findings(make_run: Callable[[Path], Any], world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        store(world, run)
        verdict = judge(run.save())
    assert verdict.findings == ()
    assert verdict.outcome == "held", verdict.reasons
