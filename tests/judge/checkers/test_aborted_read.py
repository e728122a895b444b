from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

SUMS = 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'


def abort(run: Any, n: int) -> int:
    offset: int = run.send("k0", {"k": "k0", "n": n}, visibility="aborted")
    run.tables["input"][-1].update(producer_id=7, producer_epoch=0, txn_end_offset=offset + 1, txn_end_ms=2_000)
    run.skip("in", 0)
    return offset


@pytest.mark.parametrize("output", ["rows", "events"])
def test_an_effect_of_an_aborted_record_is_found(clean_run: Any, output: str) -> None:
    row = {"p": 0, "o": abort(clean_run, 50), "k": "k0", "n": 50}
    clean_run.insert("rows", row) if output == "rows" else clean_run.record("events", row)
    verdict = judge(clean_run.save())
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.output, finding.total) == ("aborted-read", output, 1)
    assert finding.attribution == {"from in/0": 1}
    (witness,) = finding.witnesses
    assert (witness.identity, witness.cause) == ({"p": "0", "o": "8"}, "in/0@8")
    assert witness.positions == (("rows xid 702",) if output == "rows" else ("events/0@6",))
    assert witness.argument.startswith("The transaction of input in/0@8 was aborted, by the marker at offset 9.\n")
    assert witness.argument.splitlines()[-1].startswith("But the ")
    assert verdict.outcome is Outcome.VIOLATED


def test_aborted_input_without_effects_is_correct(clean_run: Any) -> None:
    abort(clean_run, 50)
    verdict = judge(clean_run.save())
    assert (verdict.findings, verdict.outcome) == ((), Outcome.HELD)


def test_the_batch_of_an_aborted_read_is_named(clean_run: Any) -> None:
    offset = abort(clean_run, 50)
    clean_run.batch(2, {0: (8, 10)})
    clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    (finding,) = judge(clean_run.save()).findings
    assert finding.batches == {"q/2": 1}
    assert finding.witnesses[0].batch == 2


def test_an_effect_without_any_input_stays_unexplained(clean_run: Any) -> None:
    offset = abort(clean_run, 50)
    clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    clean_run.record("events", {"p": 0, "o": 77, "k": "k0", "n": 50})
    findings = judge(clean_run.save()).findings
    assert [(f.anomaly, f.total) for f in findings] == [("aborted-read", 1), ("unexplained", 1)]


def test_a_copy_of_an_aborted_effect_counts_too(clean_run: Any) -> None:
    offset = abort(clean_run, 50)
    for _ in range(2):
        clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.total) == ("aborted-read", 2)


@pytest.mark.parametrize("where", ["topic", "table"])
def test_a_sum_that_includes_an_aborted_record_is_found(stored_run: Any, where: str) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {where: "out", "identity": ["k"], "kind": "upsert"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": SUMS}}
    for n in (1, 2):
        run.send("k0", {"k": "k0", "n": n})
    abort(run, 40)
    run.progress({0: 4})

    def write(total: int) -> None:
        if where == "topic":
            run.record("out", {"k": "k0", "total": total})
            run.tables["output"][-1]["key"] = b"k0"
        else:
            run.commit("out", ("insert", None, {"k": "k0", "total": total}))

    write(43)
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total) == ("aborted-read", 1)
    assert finding.witnesses[0].argument.startswith(
        "If aborted input counted too, the oracle would expect exactly this content."
    )
    run.tables["output"].clear()
    write(44)
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total) == ("wrong-value", 1)
    run.tables["output"].clear()
    write(3)
    assert judge(run.save()).findings == ()


def test_the_effect_of_an_aborted_record_that_was_sent_again_is_a_duplicate(clean_run: Any) -> None:
    """The oracle sees equal records, so the effect cannot be distinguished from that of the committed one."""
    run = clean_run
    query = 'SELECT k, n FROM "in"'
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["k", "n"], "ignore": ["p", "o"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    run.tables["output"] = [row for row in run.tables["output"] if row["output"] == "events"]
    abort(run, 10)
    run.record("events", {"p": 0, "o": 4, "k": "k0", "n": 10})
    findings = judge(run.save()).findings
    assert [(f.anomaly, f.total) for f in findings] == [("duplicate", 1)]


def test_an_oracle_that_cannot_be_asked_about_aborted_input(clean_run: Any) -> None:
    run = clean_run
    for name, query in run.scenario["oracle"]["queries"].items():
        fails = "CASE WHEN n = 50 THEN error('not this one') ELSE n >= 0 END"
        run.scenario["oracle"]["queries"][name] = query.replace("n >= 0", fails)
    offset = abort(run, 50)
    assert judge(run.save()).not_evaluated == {}  # there is nothing to explain
    run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    verdict = judge(run.save())
    assert [(f.anomaly, f.output) for f in verdict.findings] == [("unexplained", "events")]
    assert list(verdict.not_evaluated) == ["aborted-read@events"]
