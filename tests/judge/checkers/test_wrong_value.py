from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.verdict import judge


def alter(run: Any, output: str, offset: int, **values: Any) -> None:
    for change in run.tables["output"]:
        row = json.loads(change["content"])
        if change["output"] == output and (int(row["p"]), int(row["o"])) == (0, offset):
            change["content"] = json.dumps({**row, **values}, separators=(",", ":"))


def test_an_inflated_value_is_found(clean_run: Any) -> None:
    alter(clean_run, "rows", 1, n="21")
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("wrong-value", "rows", 1)
    (witness,) = finding.witnesses
    assert (witness.identity, witness.cause) == ({"p": "0", "o": "1"}, "in/0@1")
    assert witness.argument == "Input in/0@1 is committed; expected: n = 1.\nBut found: n = 21 (inflated)."
    assert finding.attribution == {"inflated": 1}
    assert finding.batches == {"q/0": 1}
    assert finding.summary == "1 row with wrong content in n: inflated"
    assert witness.positions == ("rows xid 700",)


def test_a_missing_value_is_found(clean_run: Any) -> None:
    alter(clean_run, "events", 1, k=None)
    (finding,) = judge(clean_run.save()).findings
    assert "But found: k = null" in finding.witnesses[0].argument


def test_a_second_copy_with_another_value_is_found(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 1, "k": "k1", "n": 5})
    findings = judge(clean_run.save()).findings
    assert [(f.anomaly, f.total) for f in findings] == [("wrong-value", 1)]
    assert "expected: n = 1." in findings[0].witnesses[0].argument


def test_an_ignored_column_may_differ(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["events"]["ignore"] = ["n"]
    alter(clean_run, "events", 1, n=77)
    assert judge(clean_run.save()).findings == ()


def test_the_same_value_in_another_notation_is_no_finding(clean_run: Any) -> None:
    alter(clean_run, "events", 1, n=1.0)
    assert judge(clean_run.save()).findings == ()


def test_rounding_does_not_hide_a_wrong_value(clean_run: Any) -> None:
    alter(clean_run, "events", 1, n=1.4)
    (finding,) = judge(clean_run.save()).findings
    assert "But found: n = 1.4" in finding.witnesses[0].argument


@pytest.mark.parametrize(
    ("values", "direction"),
    [
        ({"n": 0}, "deflated"),
        ({"n": 2}, "inflated"),
        ({"n": 10**30}, "inflated"),
        ({"n": "many"}, "different"),
        ({"n": None}, "different"),
        ({"n": 2, "k": "k7"}, "different"),
    ],
)
def test_the_direction_of_the_difference_is_named(clean_run: Any, values: dict[str, Any], direction: str) -> None:
    alter(clean_run, "events", 1, **values)
    (finding,) = judge(clean_run.save()).findings
    assert finding.attribution == {direction: 1}
    assert f"in {', '.join(sorted(values))}: " in finding.summary


def test_large_numbers_that_are_the_same_double_are_distinguished(clean_run: Any) -> None:
    clean_run.tables["input"][1]["value"] = json.dumps({"k": "k1", "n": 2**60}).encode()
    for output in ("rows", "events"):
        alter(clean_run, output, 1, n=str(2**60) if output == "rows" else 2**60 + 1)
    (finding,) = judge(clean_run.save()).findings
    assert (finding.output, finding.attribution) == ("events", {"inflated": 1})


@pytest.mark.parametrize("where", ["topic", "table"])
def test_a_correct_state_that_was_overwritten_is_stale(stored_run: Any, where: str) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {where: "out", "identity": ["k"], "kind": "upsert"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'}}
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
    run.progress({0: 2})
    states = [1, 3]
    write(run, where, states)
    assert judge(run.save()).findings == ()
    write(run, where, [*states, 1])
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total, finding.attribution) == ("wrong-value", 1, {"stale": 1})
    place = "out/0@1" if where == "topic" else "out xid 701"
    assert finding.witnesses[0].argument == (
        f"Its input is committed; expected: total = 3.\nThe right content was at {place}, and was overwritten.\nBut found: total = 1 (stale)."
    )
    write(run, where, [1])
    (finding,) = judge(run.save()).findings
    assert finding.attribution == {"deflated": 1}


@pytest.mark.parametrize(
    ("other", "totals", "how"),
    [
        ({"key": "x", "partition": 1}, (1, 3), "deflated"),
        ({"key": "y"}, (1, 3), "deflated"),
        ({"key": "x"}, (3, 1), "stale"),
    ],
)
def test_only_a_later_state_under_the_same_key_in_the_same_partition_overwrites(
    stored_run: Any, other: dict[str, Any], totals: tuple[int, int], how: str
) -> None:
    """Otherwise the wrong state is older than the right one, and both can be read."""
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["k"], "kind": "upsert", "compare_key": False}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'}}
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
    run.progress({0: 2})
    run.record("out", {"k": "a", "total": totals[0]}, key="x")
    run.record("out", {"k": "a", "total": totals[1]}, **other)
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "wrong-value"]
    assert finding.attribution == {how: 1}
    assert ("overwritten" in finding.witnesses[0].argument) == (how == "stale")


def write(run: Any, where: str, totals: list[int]) -> None:
    """Write the output's complete log: these states of key ``a``, one after the other."""
    for table in ("output", "commits"):
        run.tables[table].clear()
    run._ends.pop(("out", 0), None)
    run._commits = 0
    before = None
    for total in totals:
        row = {"k": "a", "total": total}
        if where == "topic":
            run.record("out", row)
        else:
            run.commit("out", ("update" if before else "insert", before, row))
        before = row
