from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def split(run: Any) -> Any:
    """Even numbers belong in ``even`` and odd ones in ``odd``. All are in their place."""
    query = 'SELECT _partition AS p, _offset AS o, k, n, _partition, _offset, _key FROM "in" WHERE n % 2 = {}'
    run.scenario["outputs"] = {
        "even": {"topic": "even", "identity": ["p", "o"]},
        "odd": {"table": "odd", "identity": ["p", "o"]},
    }
    run.scenario["oracle"] = {"kind": "sql", "queries": {"even": query.format(0), "odd": query.format(1)}}
    for n in range(6):
        row = {"p": 0, "o": run.send(f"k{n}", {"k": f"k{n}", "n": n}), "k": f"k{n}", "n": n}
        run.insert("odd", row) if n % 2 else run.record("even", row)
    run.batch(0, {0: (0, 6)})
    run.progress({0: 6})
    return run


def take(run: Any, output: str, offset: int) -> dict[str, Any]:
    """Remove the effect of that offset of partition 0, and return its row."""
    for change in run.tables["output"]:
        row = json.loads(change["content"])
        if change["output"] == output and (int(row["p"]), int(row["o"])) == (0, offset):
            run.tables["output"].remove(change)
            return {**row, "p": 0, "o": offset, "n": int(row["n"])}
    raise AssertionError(f"no effect of offset {offset} in {output}")


def findings_of(run: Any) -> list[Any]:
    """The findings without their consequences: a torn batch, and an order that the wrong place breaks."""
    return [f for f in judge(run.save()).findings if f.anomaly not in {"torn-batch", "sink-disagreement", "reordered"}]


def test_effects_in_their_place_are_no_finding(stored_run: Any) -> None:
    assert judge(split(stored_run).save()).outcome is Outcome.HELD


def test_an_effect_in_the_wrong_topic_is_misplaced(stored_run: Any) -> None:
    run = split(stored_run)
    run.insert("odd", take(run, "even", 2))
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.output, finding.total) == ("misplaced", "even", 1)
    assert (finding.attribution, finding.batches) == ({"in odd": 1}, {"q/0": 1})
    (witness,) = finding.witnesses
    assert (witness.identity, witness.cause, witness.batch) == ({"p": "0", "o": "2"}, "in/0@2", 0)
    assert witness.positions == ("odd xid 703",)
    assert finding.allowed is None


def test_an_effect_in_the_wrong_table_is_misplaced(stored_run: Any) -> None:
    run = split(stored_run)
    run.record("even", take(run, "odd", 3))
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.output, finding.witnesses[0].positions) == ("misplaced", "odd", ("even/0@3",))


def test_each_misplaced_effect_explains_one_loss(stored_run: Any) -> None:
    """If the row is twice in the wrong table, one is the missing effect, and the other is unexplained."""
    run = split(stored_run)
    row = take(run, "even", 2)
    run.insert("odd", row, row)
    findings = findings_of(run)
    assert [(f.anomaly, f.output, f.total) for f in findings] == [("misplaced", "even", 1), ("unexplained", "odd", 1)]


def test_an_effect_in_both_outputs_is_not_misplaced(stored_run: Any) -> None:
    run = split(stored_run)
    run.insert("odd", {"p": 0, "o": 2, "k": "k2", "n": 2})
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.output) == ("unexplained", "odd")


@pytest.mark.parametrize("output", ["rows", "events"])
def test_an_effect_in_the_wrong_row_is_misplaced(clean_run: Any, output: str) -> None:
    row = take(clean_run, output, 5)
    wrong = {**row, "o": 99}
    clean_run.insert("rows", wrong) if output == "rows" else clean_run.record("events", wrong)
    (finding,) = findings_of(clean_run)
    assert (finding.anomaly, finding.output, finding.total) == ("misplaced", output, 1)
    (witness,) = finding.witnesses
    assert (witness.identity, witness.cause) == ({"p": "0", "o": "5"}, "in/0@5")
    assert '{"p":"0","o":"99"}' in witness.argument


def test_a_row_that_may_explain_several_losses_explains_none(clean_run: Any) -> None:
    for offset in (0, 1):
        take(clean_run, "events", offset)
    clean_run.scenario["outputs"]["events"]["ignore"] = ["k", "n"]
    clean_run.record("events", {"p": 0, "o": 99, "k": "k0", "n": 0})
    found = {f.anomaly: f.total for f in findings_of(clean_run) if f.output == "events"}
    assert found == {"lost-write": 2, "unexplained": 1}


def to_partition(run: Any) -> Any:
    for name, query in run.scenario["oracle"]["queries"].items():
        run.scenario["oracle"]["queries"][name] = query.replace("_key FROM", "_key, _partition AS _to_partition FROM")
    return run


def test_an_effect_in_another_partition_than_the_oracle_s_is_misplaced(clean_run: Any) -> None:
    run = to_partition(clean_run)
    assert judge(run.save()).findings == ()
    run.record("events", take(run, "events", 4), partition=1)
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.output, finding.total) == ("misplaced", "events", 1)
    (witness,) = finding.witnesses
    assert (witness.cause, witness.batch, witness.positions) == ("in/0@4", 1, ("events/1@6",))
    assert (
        witness.argument
        == "Input in/0@4 is committed; the oracle expects its record in partition 0.\nBut its record is at events/1@6."
    )


def test_a_copy_in_another_partition_is_a_duplicate(clean_run: Any) -> None:
    run = to_partition(clean_run)
    run.record("events", {"p": 0, "o": 4, "k": "k0", "n": 10}, partition=1)
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.total) == ("duplicate", 1)


def keyed(run: Any) -> Any:
    """Three records for each of two keys, each key in its own partition."""
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["o"], "placement": "key"}}
    query = 'SELECT _offset AS o, k, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for _ in range(3):
        for number in range(2):
            key(run, run.send(f"k{number}", {"k": f"k{number}"}), number, number)
    run.progress({0: 6})
    return run


def key(run: Any, offset: int, number: int, partition: int) -> None:
    run.record("out", {"o": offset, "k": f"k{number}"}, partition=partition)
    run.tables["output"][-1]["key"] = f"k{number}".encode()


def test_records_of_one_key_in_two_partitions_are_misplaced(stored_run: Any) -> None:
    run = keyed(stored_run)
    assert judge(run.save()).findings == ()
    key(run, run.send("k1", {"k": "k1"}), 1, partition=0)
    (finding,) = findings_of(run)
    assert (finding.anomaly, finding.total, finding.attribution) == ("misplaced", 1, {"in another partition": 1})
    assert finding.witnesses[0].positions == ("out/0@3",)
    assert "the other records of its key are in partition 1" in finding.witnesses[0].argument
    run.scenario["outputs"]["out"]["placement"] = "none"
    assert judge(run.save()).findings == ()


def test_the_state_of_one_key_in_two_partitions_is_misplaced(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["k"], "kind": "upsert", "placement": "key"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, max(_offset) AS o FROM "in" GROUP BY k'}}
    for partition in (1, 1, 0):
        key(run, run.send("k0", {"k": "k0"}), 0, partition)
    run.progress({0: 3})
    findings = findings_of(run)
    assert [(f.anomaly, f.total) for f in findings if f.anomaly != "wrong-value"] == [("misplaced", 1)]
