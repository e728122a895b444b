from __future__ import annotations

from typing import Any

from onceproof.judge.verdict import judge


def test_an_effect_without_input_is_unexplained(clean_run: Any) -> None:
    clean_run.insert("rows", {"p": 0, "o": 77, "k": "k0", "n": 1}, {"p": 0, "o": 77, "k": "k0", "n": 1})
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("unexplained", "rows", 2)
    (witness,) = finding.witnesses
    assert (witness.identity, witness.positions) == ({"p": "0", "o": "77"}, ("rows xid 702", "rows xid 702"))


def test_an_effect_of_aborted_input_is_not_unexplained(clean_run: Any) -> None:
    offset = clean_run.send("k0", {"k": "k0", "n": 50}, visibility="aborted")
    clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    assert [f.anomaly for f in judge(clean_run.save()).findings] == ["aborted-read"]


def test_a_finding_has_at_most_32_witnesses_and_the_complete_total(clean_run: Any) -> None:
    for offset in range(100, 150):
        clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 1})
    (finding,) = judge(clean_run.save()).findings
    assert (finding.total, len(finding.witnesses)) == (50, 32)
