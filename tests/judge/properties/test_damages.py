"""With one kind of damage, the judge names exactly its anomaly and records, and otherwise only accompanying anomalies."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from onceproof.judge.checker import checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding
from onceproof.judge.synthetic.damage import Named
from onceproof.judge.verdict import judge

from .world import DAMAGES, Drawn, fit_for, histories, store


@pytest.mark.parametrize("name", DAMAGES)
@histories(200)
@given(data=st.data())
def test_the_judge_names_a_damage(make_run: Callable[[Path], Any], name: str, data: st.DataObject) -> None:
    anomaly, damage = DAMAGES[name]
    world = data.draw(fit_for(damage))
    named = damage.apply(world, Drawn(data))
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        store(world, run)
        verdict = judge(run.save())
    note(f"damage {name}: {named}")
    note("\n".join(f"{f.anomaly} in {f.output}: {f.total}, {f.source}, {f.attribution}" for f in verdict.findings))
    note(f"{verdict.outcome}: {verdict.reasons}")
    crashed = [why for why in verdict.not_evaluated.values() if "Error" in why or "Traceback" in why]
    assert crashed == []
    found = _of(verdict.findings, named)
    assert {what: total for what, (total, _) in found.items()} == {
        what: sum(who.values()) for what, who in named.items()
    }
    for what, who in named.items():
        assert found[what][1] <= set(who)
        assert found[what][1] == set(who) or sum(who.values()) > MAX_WITNESSES
    others = {f.anomaly for f in verdict.findings} - {one for one, _ in named}
    for other in others:
        event(f"{anomaly} comes with {other}")
    assert others <= checkers.get(anomaly).comes_with.keys()


def _of(findings: tuple[Finding, ...], named: Named) -> dict[tuple[str, str], tuple[int, set[Any]]]:
    """(anomaly, output) -> effects and identities, for the damage's anomalies, in all outputs."""
    found: dict[tuple[str, str], tuple[int, set[Any]]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        if finding.anomaly in {anomaly for anomaly, _ in named}:
            what = (finding.anomaly, finding.output)
            totals[what] += finding.total
            assert len(finding.witnesses) <= MAX_WITNESSES
            who = {tuple((n, str(v)) for n, v in w.identity.items()) for w in finding.witnesses}
            found[what] = (totals[what], found.get(what, (0, set()))[1] | who)
    return found
