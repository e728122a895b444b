"""For every damage, a slice of the history shows its finding, with the same witness and only observed rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from onceproof.judge.open import open_case
from onceproof.judge.slices import cut as slices
from onceproof.judge.verdict import judge, judge_case, judge_sought

from .world import DAMAGES, Drawn, fit_for, histories, store


@pytest.mark.parametrize("name", DAMAGES)
@histories(1)
@given(data=st.data())
def test_a_slice_shows_a_damage(make_run: Callable[[Path], Any], name: str, data: st.DataObject) -> None:
    anomaly, damage = DAMAGES[name]
    world = data.draw(fit_for(damage))
    damage.apply(world, Drawn(data))
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run")
        store(world, run)
        with open_case(run.save()) as case:
            whole = judge_case(case)
            finding = next(f for f in whole.findings if f.anomaly == anomaly)
            for witness in (w for f in whole.findings for w in f.witnesses):
                note(witness.argument)
                *premises, contradiction = witness.argument.splitlines()
                assert 1 <= len(premises) <= 4 and ("But " in contradiction or ", but " in contradiction)
            found = slices.export(case, whole, finding, judge_sought)
        assert found is not None
        part = judge(found)
        same = next(f for f in part.findings if slices.name_of(f) == slices.name_of(finding))
        assert any(witness in finding.witnesses for witness in same.witnesses)
        assert set(part.anomalies()) <= set(whole.anomalies())
        assert same.total <= finding.total
        for table in ("input", "output"):
            assert all(row in run.tables[table] for row in _rows(found, table)), "the run holds every row of the slice"


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "history" / f"{table}.parquet").to_pylist()
    return found
