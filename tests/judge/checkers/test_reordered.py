from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def records(run: Any) -> list[dict[str, Any]]:
    return [c for c in run.tables["output"] if c["output"] == "events" and c["partition"] == 0]


def swap(run: Any, first: int, second: int) -> None:
    """Swap two records of partition 0 of the topic."""
    found = records(run)
    found[first]["content"], found[second]["content"] = found[second]["content"], found[first]["content"]


def test_two_swapped_records_of_one_key_are_found(clean_run: Any) -> None:
    swap(clean_run, 0, 3)  # input offsets 0 and 4, both of key k0
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("reordered", "events", 1)
    (witness,) = finding.witnesses
    assert (witness.cause, witness.positions) == ("in/0@0", ("events/0@0", "events/0@3"))
    assert witness.argument == (
        "In key k0 in in/0, offset 0 comes before offset 4.\n"
        "But the record of 4 comes first, at events/0@0; that of 0 is at events/0@3."
    )


def test_two_swapped_records_of_different_keys_break_only_the_order_per_partition(clean_run: Any) -> None:
    swap(clean_run, 0, 1)
    assert judge(clean_run.save()).outcome is Outcome.HELD
    clean_run.scenario["claim"] = {"order": "per-partition"}
    assert judge(clean_run.save()).anomalies() == {"reordered": 1}


def test_reordering_without_a_claimed_order_is_allowed(clean_run: Any) -> None:
    swap(clean_run, 0, 3)
    clean_run.scenario["claim"] = {"order": "none"}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert [(f.anomaly, f.allowed) for f in verdict.findings] == [("reordered", "no order is claimed")]


def test_a_repetition_is_not_a_reordering(clean_run: Any) -> None:
    """A replayed batch comes after its successor, but its first effects were in order."""
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0})
    assert judge(clean_run.save()).anomalies() == {"duplicate": 1, "sink-disagreement": 1}


def test_commits_of_a_table_out_of_order_are_found(clean_run: Any) -> None:
    for change in clean_run.tables["output"]:
        if change["output"] == "rows":
            change["commit_order"] = 1 - change["commit_order"]
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("reordered", "rows", 6)
    assert finding.witnesses[0].positions == ("rows xid 701", "rows xid 700")


def test_rows_of_one_transaction_are_simultaneous(clean_run: Any) -> None:
    run = clean_run
    changes = [c for c in run.tables["output"] if c["output"] == "rows"]
    contents = [c["content"] for c in changes]
    for change, content in zip(changes, reversed(contents), strict=True):
        change.update(content=content, commit_order=0, xid=700)
    assert judge(run.save()).outcome is Outcome.HELD


@pytest.mark.parametrize(
    ("order", "scope"), [("per-key", "key k0 in in/0"), ("per-partition", "in/0")], ids=["key", "partition"]
)
def test_no_reader_sees_an_order_across_output_partitions(clean_run: Any, order: str, scope: str) -> None:
    clean_run.scenario["claim"] = {"order": order}
    records(clean_run)[0]["partition"] = 7
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated == {
        "reordered@events": f"the records of {scope} are in partitions 0 and 7 of events, "
        "and no reader sees an order across partitions"
    }
    clean_run.scenario["claim"] = {"order": "none"}
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.not_evaluated) == (Outcome.HELD, {})


def test_several_keys_across_output_partitions_are_counted(clean_run: Any) -> None:
    for position in range(2):
        records(clean_run)[0]["partition"] = 7 + position
    assert "(so are those of 1 more)" in judge(clean_run.save()).not_evaluated["reordered@events"]


def test_keys_with_one_record_each_may_be_in_different_partitions(clean_run: Any) -> None:
    """Different keys may be in different partitions, and so may several effects of one record."""
    query = clean_run.scenario["oracle"]["queries"]["events"]
    twice = f"SELECT p + shift AS p, * EXCLUDE (p, shift) FROM ({query}), (VALUES (0), (100)) t(shift)"
    clean_run.scenario["oracle"]["queries"]["events"] = twice.replace("n >= 0", "n < 10 OR n BETWEEN 100 AND 109")
    first = [c for c in clean_run.tables["output"] if c["output"] == "events" and json.loads(c["content"])["o"] < 3]
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] == "rows"] + first
    for effect in first:
        row = json.loads(effect["content"])
        clean_run.record("events", {**row, "p": row["p"] + 100}, partition=row["p"] + 100)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons


def test_a_reordering_in_one_of_several_output_partitions_is_found(clean_run: Any) -> None:
    """Effects in the wrong order within one partition are a finding, wherever the other effects are."""
    swap(clean_run, 0, 3)
    records(clean_run)[1]["partition"] = 7  # of key k1
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"reordered": 1}
    assert "key k1" in verdict.not_evaluated["reordered@events"]


def test_records_without_a_key_have_no_order(clean_run: Any) -> None:
    swap(clean_run, 0, 3)
    records(clean_run)[1]["partition"] = 7
    for record in clean_run.tables["input"]:
        record["key"] = None
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.INCONCLUSIVE, {})


@pytest.mark.parametrize(("kept", "why"), [("_partition, _offset", "the key of a cause"), ("_key", "names no cause")])
def test_an_oracle_without_causes_or_keys_is_not_evaluated(clean_run: Any, kept: str, why: str) -> None:
    query = f'SELECT _partition AS p, _offset AS o, k, n, {kept} FROM "in"'
    clean_run.scenario["oracle"]["queries"]["events"] = query
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert why in verdict.not_evaluated["reordered@events"]


def test_the_batch_of_the_late_effect_is_named(clean_run: Any) -> None:
    swap(clean_run, 0, 3)
    (finding,) = judge(clean_run.save()).findings
    assert finding.batches == {"q/0": 1}
    assert finding.witnesses[0].batch == 0


def test_an_effect_that_first_appears_late_is_reordered(clean_run: Any) -> None:
    """The first effect counts, however late. With an earlier copy, it would be a repetition."""
    first = records(clean_run)[0]
    clean_run.tables["output"].remove(first)
    clean_run.record("events", first["content"])
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"reordered": 1}
    assert verdict.findings[0].witnesses[0].positions == ("events/0@3", "events/0@6")


def test_an_upsert_shows_no_order(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["rows"]["kind"] = "upsert"
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "last state of each identity" in verdict.not_evaluated["reordered@rows"]
    clean_run.scenario["outputs"]["rows"]["claim"] = {"order": "none"}
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.not_evaluated) == (Outcome.HELD, {})


@pytest.mark.parametrize(("totals", "late"), [((1, 3, 6), 0), ((1, 6, 3), 1), ((3, 6), 0), ((6, 1, 3), 2)])
@pytest.mark.parametrize("where", ["topic", "table"])
def test_states_of_a_changelog(stored_run: Any, totals: tuple[int, ...], late: int, where: str) -> None:
    run = stored_run
    query = 'SELECT k, sum(n) OVER (PARTITION BY k ORDER BY _offset) AS total, _partition, _offset, _key FROM "in"'
    run.scenario["outputs"] = {"out": {where: "out", "kind": "changelog", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.scenario["claim"] = {"order": "per-key"}
    for n in (1, 2, 3):
        run.send("a", {"k": "a", "n": n})
    run.progress({0: 3})
    for total in totals:
        row = {"k": "a", "total": total}
        run.insert("out", row) if where == "table" else run.record("out", row)
    assert judge(run.save()).anomalies() == ({"reordered": late} if late else {})


def touch(run: Any, column: str) -> None:
    """Update an ignored column of the table's first row after all rows were written."""
    run.scenario["outputs"]["rows"]["ignore"] = [column]
    rows = [json.loads(c["content"]) for c in run.tables["output"] if c["output"] == "rows"]
    run.commit("rows", ("update", rows[0], {**rows[0], column: "1"}))


def test_a_row_that_was_written_again_is_not_late(clean_run: Any) -> None:
    touch(clean_run, "seen")
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.INCONCLUSIVE, {})
    assert "written again" in verdict.not_evaluated["reordered@rows"]


def test_a_record_that_is_expected_twice_is_named_by_its_own_position(stored_run: Any) -> None:
    """The second of two equal records comes too early: the witness names it, and not the first."""
    run = stored_run
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["n"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": 'SELECT n, _partition, _offset, _key FROM "in"'}}
    for n in (1, 2, 1):
        run.send("k", {"n": n})
    for n in (1, 1, 2):
        run.record("events", {"n": n})
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total) == ("reordered", 1)
    assert finding.witnesses[0].positions == ("events/0@1", "events/0@2")


def test_the_number_of_witnesses_is_limited(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"rows": {"table": "rows", "identity": ["o", "i"]}}
    query = 'SELECT _offset AS o, i, _partition, _offset, _key FROM "in", range(3) t(i)'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": query}}
    for n in range(20):
        run.send("k", {"n": n})
    for n in reversed(range(20)):
        run.insert("rows", *({"o": n, "i": i} for i in range(3)))
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total, len(finding.witnesses)) == ("reordered", 57, 32)


def ordered(
    run: Any, keys: list[str | None], *, cause: str = "_partition, _offset, _key", order: str = "per-key"
) -> Any:
    """One record per key, each with its row in a table, in order."""
    run.scenario["outputs"] = {"rows": {"table": "rows", "identity": ["i"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": f'SELECT i, {cause} FROM "in"'}}
    run.scenario["claim"] = {"order": order}
    for i, key in enumerate(keys):
        run.send(key, {"i": i})
        run.insert("rows", {"i": i})
    run.progress({0: len(keys)})
    return judge(run.save())


def test_an_order_of_keys_that_are_all_null_is_not_held(stored_run: Any) -> None:
    verdict = ordered(stored_run, [None, None, None])
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.reasons
    assert (
        "reordered could not be evaluated on output rows: none of its 3 expected rows could be ordered: "
        "each has a cause without a key (_key)" in verdict.reasons[0]
    )


def test_rows_that_the_claimed_order_does_not_cover_are_counted(stored_run: Any) -> None:
    verdict = ordered(stored_run, ["a", None, "a", None, "b"])
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert verdict.counts["unordered.rows"] == 2
    assert "2 of 5 rows in rows have no cause or no key, so the claimed order does not cover them" in verdict.reasons[0]


def test_no_order_is_claimed_of_records_without_keys(stored_run: Any) -> None:
    verdict = ordered(stored_run, [None, None], order="none")
    assert (verdict.outcome, "unordered.rows" in verdict.counts) == (Outcome.HELD, False)


@pytest.mark.parametrize("order", ["per-key", "per-partition"])
def test_an_order_of_causes_that_are_all_null_is_not_held(stored_run: Any, order: str) -> None:
    verdict = ordered(stored_run, ["a", "b"], cause="NULL::INT AS _partition, NULL::INT AS _offset, _key", order=order)
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.reasons
    assert "none of its 2 expected rows could be ordered: each has no cause" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("cause", "n", "first"),
    [
        ("_partition, 7000 + _offset AS _offset, _key", 3, "in/0@7000"),
        ("9 AS _partition, _offset, _key", 3, "in/9@0"),
        ("'elsewhere' AS _topic, _partition, _offset, _key", 3, "elsewhere/0@0"),
        ("_partition, CASE WHEN i = 2 THEN 50 ELSE _offset END AS _offset, _key", 1, "in/0@50"),
    ],
)
@pytest.mark.parametrize("order", ["per-key", "none"])
def test_causes_that_the_input_does_not_hold_are_inconclusive(
    stored_run: Any, cause: str, n: int, first: str, order: str
) -> None:
    verdict = ordered(stored_run, ["a", "a", "a"], cause=cause, order=order)
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.reasons
    rows = "1 expected row of output 'rows' names" if n == 1 else f"{n} expected rows of output 'rows' name"
    assert verdict.reasons[0].startswith(
        f"{rows} a cause that the committed input does not hold, the first is {first}:"
    )


def test_a_cause_in_a_gap_of_the_input_is_inconclusive(stored_run: Any) -> None:
    """The offset of a marker or of an aborted record causes nothing."""
    run = stored_run
    run.send("a", {"i": 7})
    run.skip("in", 0)
    verdict = ordered(run, ["a"], cause="_partition, CASE _offset WHEN 0 THEN 1 ELSE _offset END AS _offset, _key")
    assert verdict.outcome is not Outcome.HELD
    assert any("the first is in/0@1" in reason for reason in verdict.reasons), verdict.reasons
