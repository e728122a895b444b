"""Outputs that must stay empty, and outputs with dead letters: which rows are allowed, and what dead letters account for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge
from onceproof.scenario_files.load import load

PLACE = {"partition": "p", "offset": "o"}


def orders(run: Any, *, written: list[int], errors: dict[str, Any], claim: dict[str, str] | None = None) -> Any:
    """Six orders, of which ``written`` are in the main output, and a second output ``errors``."""
    run.scenario["outputs"] = {"orders": {"table": "orders", "identity": ["id"]}, "errors": errors}
    query = 'SELECT id, v, _partition, _offset, _key FROM "in" WHERE v < 50'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"orders": query}}
    run.scenario["claim"] = claim or {"order": "per-key", "atomic": "none"}
    for id_ in range(6):
        run.send("k", {"id": id_, "v": 10 * id_})
    run.insert("orders", *({"id": id_, "v": 10 * id_} for id_ in written))
    run.progress({0: 6})
    return run


def judged(run: Any) -> Verdict:
    return judge(run.save())


ALL = [0, 1, 2, 3, 4]
CLAIMS = [{"order": "per-key"}, {"order": "per-partition", "atomic": "batch"}, {"delivery": "at-least-once"}]


@pytest.mark.parametrize("where", ["table", "topic"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_an_output_that_stays_empty_is_held(stored_run: Any, where: str, claim: dict[str, str]) -> None:
    run = orders(stored_run, written=ALL, errors={where: "errors", "expected": "empty"}, claim=claim)
    run.batch(1, {0: (0, 6)})
    verdict = judged(run)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.HELD, {}), verdict.reasons
    assert "errors" not in " ".join(verdict.reasons)


@pytest.mark.parametrize("where", ["table", "json", "text", "bytes", "tombstone"])
def test_a_row_in_an_output_that_must_stay_empty_is_unexplained(stored_run: Any, where: str) -> None:
    kind = "table" if where == "table" else "topic"
    run = orders(stored_run, written=ALL, errors={kind: "errors", "expected": "empty"})
    if where == "table":
        run.insert("errors", {"why": "no price", "id": 5})
    else:
        run.record("errors", {"json": {"why": "no price"}, "text": "no price", "bytes": None, "tombstone": None}[where])
        run.tables["output"][-1]["raw"] = b"\xff\x00" if where == "bytes" else None
    verdict = judged(run)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.VIOLATED, {"unexplained": 1}), verdict.reasons
    (finding,) = verdict.findings
    assert (finding.output, finding.summary) == ("errors", "1 row in an output that must stay empty")
    assert "Output 'errors' must stay empty." in finding.witnesses[0].argument
    if where in ("table", "json", "text"):
        assert "no price" in str(finding.witnesses[0].identity["row"])


def test_two_equal_rows_in_an_output_that_must_stay_empty_are_unexplained(stored_run: Any) -> None:
    run = orders(stored_run, written=ALL, errors={"table": "errors", "expected": "empty"})
    run.insert("errors", {"why": "x"}, {"why": "x"}, {"why": "y"})
    assert judged(run).anomalies() == {"unexplained": 3}


BY_IDENTITY = {"table": "errors", "dead_letter_of": "orders", "identity": ["order_id"]}
BY_SOURCE = {"table": "errors", "dead_letter_of": "orders", "source": PLACE}


def write_dead_letters(run: Any, ids: list[int]) -> None:
    run.insert("errors", *({"order_id": id_, "p": 0, "o": id_, "why": "no price"} for id_ in ids))


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
@pytest.mark.parametrize("claim", CLAIMS)
def test_dead_letters_account_for_missing_rows(stored_run: Any, errors: Any, claim: dict[str, str]) -> None:
    run = orders(stored_run, written=[0, 3, 4], errors=errors, claim=claim)
    run.batch(1, {0: (0, 6)})
    write_dead_letters(run, [1, 2])
    verdict = judged(run)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.HELD, {}), verdict.reasons
    assert verdict.counts["dead.errors"] == 2
    assert "2 records of orders are in errors" in verdict.reasons[0]


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
def test_a_missing_row_without_a_dead_letter_is_a_loss(stored_run: Any, errors: Any) -> None:
    run = orders(stored_run, written=[0, 3, 4], errors=errors)
    write_dead_letters(run, [1])
    verdict = judged(run)
    assert verdict.anomalies() == {"lost-write": 1}
    assert verdict.findings[0].witnesses[0].identity == {"id": "2"}


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
def test_a_dead_letter_of_a_row_that_is_there_is_unexplained(stored_run: Any, errors: Any) -> None:
    run = orders(stored_run, written=ALL, errors=errors)
    write_dead_letters(run, [1])
    verdict = judged(run)
    assert verdict.anomalies() == {"unexplained": 1}
    (finding,) = verdict.findings
    assert (finding.output, finding.summary) == ("errors", "1 row matching no missing row in orders")
    of = "input record" if "source" in errors else "identity"
    assert f"'orders' holds a row of this {of}, or 'orders' must hold none" in finding.witnesses[0].argument


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
@pytest.mark.parametrize("id_", [77, -1])
def test_a_dead_letter_without_an_input_record_is_unexplained(stored_run: Any, errors: Any, id_: int) -> None:
    run = orders(stored_run, written=ALL, errors=errors)
    write_dead_letters(run, [id_])
    assert judged(run).anomalies() == {"unexplained": 1}


def test_the_source_of_a_dead_letter_explains_it_also_for_a_filtered_record(stored_run: Any) -> None:
    """Its source names a committed input record without an effect in the main output; its identity alone explains nothing."""
    run = orders(stored_run, written=ALL, errors=BY_SOURCE)
    write_dead_letters(run, [5])
    assert judged(run).outcome is Outcome.HELD


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
def test_the_same_dead_letter_twice_is_a_duplicate(stored_run: Any, errors: Any) -> None:
    run = orders(stored_run, written=[0, 2, 3, 4], errors=errors)
    write_dead_letters(run, [1, 1])
    verdict = judged(run)
    assert verdict.anomalies() == {"duplicate": 1}
    assert verdict.findings[0].output == "errors"


def test_dead_letters_of_aborted_input_are_unexplained(stored_run: Any) -> None:
    run = orders(stored_run, written=ALL, errors=BY_SOURCE)
    run.send("k", {"id": 6, "v": 1}, visibility="aborted")
    write_dead_letters(run, [6])
    assert judged(run).anomalies() == {"unexplained": 1}


def test_a_run_with_dead_letters_only_is_not_held(stored_run: Any) -> None:
    run = orders(stored_run, written=[], errors=BY_IDENTITY)
    write_dead_letters(run, ALL)
    verdict = judged(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "every row that output orders must hold is in errors" in verdict.reasons[0]


def test_dead_letters_in_a_topic(stored_run: Any) -> None:
    errors = {"topic": "errors", "dead_letter_of": "orders", "identity": ["id"]}
    run = orders(stored_run, written=[0, 2, 3, 4], errors=errors)
    run.record("errors", {"id": 1, "why": "no price"})
    verdict = judged(run)
    assert (verdict.outcome, verdict.counts["dead.errors"]) == (Outcome.HELD, 1), verdict.reasons


def test_dead_letters_with_a_source_need_an_oracle_with_causes(stored_run: Any) -> None:
    run = orders(stored_run, written=[0, 2, 3, 4], errors=BY_SOURCE, claim={"order": "none"})
    run.scenario["oracle"]["queries"]["orders"] = 'SELECT id, v FROM "in" WHERE v < 50'
    write_dead_letters(run, [1])
    verdict = judged(run)
    assert verdict.outcome is not Outcome.HELD
    assert any("the oracle does not say which record causes a row of 'orders'" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("errors", [BY_IDENTITY, BY_SOURCE])
@pytest.mark.parametrize("unjudged", ["orders", "errors"])
def test_an_output_and_its_dead_letters_are_judged_together_or_not_at_all(
    stored_run: Any, errors: Any, unjudged: str
) -> None:
    """A row that cannot be read may be the missing one, and a missing row may be the one that a dead letter is for."""
    run = orders(stored_run, written=[], errors={**errors, "topic": "errors", "table": None})
    run.scenario["outputs"]["orders"] = {"topic": "orders", "identity": ["id"]}
    for id_ in (0, 2, 3, 4):
        run.record("orders", {"id": id_, "v": 10 * id_})
    run.record("errors", {"order_id": 1, "p": 0, "o": 1})
    run.record(unjudged, "no JSON")
    verdict = judged(run)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.INCONCLUSIVE, {}), verdict.reasons
    assert [reason.split(" cannot")[0] for reason in verdict.reasons] == [
        f"output {unjudged}",
        f"output {({'orders', 'errors'} - {unjudged}).pop()}",
    ]


def test_dead_letters_without_their_identity_columns_are_not_judged(stored_run: Any) -> None:
    run = orders(stored_run, written=[0, 2, 3, 4], errors={**BY_IDENTITY, "identity": ["order"]})
    write_dead_letters(run, [1])
    verdict = judged(run)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.INCONCLUSIVE, {}), verdict.reasons
    assert "no row has a column 'order', which is part of the identity" in verdict.reasons[0]


def test_source_positions_may_be_strings(stored_run: Any) -> None:
    run = orders(
        stored_run, written=[0, 2, 3, 4], errors={"topic": "errors", "dead_letter_of": "orders", "source": PLACE}
    )
    run.record("errors", {"p": "0", "o": "1", "why": "no price"})
    verdict = judged(run)
    assert (verdict.outcome, verdict.counts["dead.errors"]) == (Outcome.HELD, 1), verdict.reasons


def test_a_dead_letter_accounts_for_a_row_that_a_late_record_may_change(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["start"]}}
    run.scenario["outputs"]["errors"] = {"table": "errors", "dead_letter_of": "out", "identity": ["start"]}
    query = 'SELECT t - t % 10 AS start, count(*) AS n FROM "in" GROUP BY ALL'
    closes = {"in": {"closes": "make_timestamp(1000 * (t - t % 10 + 10))"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}, "windows": closes}
    for batch, (watermark, times) in enumerate([(0, [11, 25]), (20, [12])]):
        offsets = [run.send(None, {"t": at}) for at in times]
        run.batch(batch, {0: (offsets[0], offsets[-1] + 1)})
        run.tables["batches"][-1]["watermark_ms"] = watermark
    run.progress({0: 3})
    run.insert("out", {"start": 20, "n": 1})
    run.insert("errors", {"start": 10, "why": "too many"})
    verdict = judged(run)
    assert (verdict.anomalies(), verdict.counts["may.in"]) == ({}, 1)
    assert verdict.counts["dead.errors"] == 1


SCENARIO = """
about: a job with an error table
stack: {{kafka: {{brokers: 1}}, postgres: {{}}}}
input: [{{topic: in, dataset: numbers, rows: 100, chunks: 3}}]
pipeline: {{command: ["{{python}}", "-c", "pass"]}}
outputs:
  orders: {{table: orders, identity: [id]{kind}}}
  errors: {errors}
oracle: {{kind: sql, queries: {{orders: SELECT id FROM "in"{queries}}}}}
claim: {{order: per-key}}
"""


@pytest.mark.parametrize(
    ("errors", "identity"),
    [
        ("{table: errors, expected: empty}", ["row"]),
        ("{table: errors, dead_letter_of: orders, identity: [order_id]}", ["order_id"]),
        ("{table: errors, dead_letter_of: orders, source: {partition: p, offset: o}}", ["p", "o"]),
    ],
)
def test_a_scenario_declares_a_side_output_in_one_line(tmp_path: Path, errors: str, identity: list[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SCENARIO.format(errors=errors, kind="", queries=""))
    assert load(path).outputs["errors"].identity == identity


@pytest.mark.parametrize(
    ("errors", "kind", "queries", "message"),
    [
        ("{table: errors}", "", "", "identity"),
        ("{table: errors, dead_letter_of: orders}", "", "", "identity"),
        ("{table: errors, expected: empty}", "", ", errors: SELECT 1 AS id", "must stay empty or holds dead letters"),
        ("{table: errors, dead_letter_of: order, identity: [id]}", "", "", "output 'order' does not exist"),
        (
            "{table: errors, dead_letter_of: errors, identity: [id]}",
            "",
            "",
            "output 'errors' holds dead letters itself",
        ),
        ("{table: errors, dead_letter_of: orders, identity: [a, b]}", "", "", "that of its dead letters is a, b"),
        ("{table: errors, dead_letter_of: orders, identity: [id]}", ", kind: upsert", "", "is of kind upsert"),
        ("{table: errors, dead_letter_of: orders, expected: empty}", "", "", "cannot hold dead letters"),
    ],
)
def test_impossible_side_outputs_are_refused_with_their_place(
    tmp_path: Path, errors: str, kind: str, queries: str, message: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SCENARIO.format(errors=errors, kind=kind, queries=queries))
    from onceproof.base.errors import ScenarioError

    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert message in str(refused.value)
    assert "job.yaml:" in str(refused.value)


@pytest.mark.parametrize("more", [{"headers": "compare"}, {"compare_key": True}, {"compare": ["why"]}])
def test_settings_to_compare_dead_letters_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    """Otherwise the scenario would promise a comparison that is never made."""
    from onceproof.base.errors import ScenarioError

    errors = json.dumps({"topic": "errors", "dead_letter_of": "orders", "identity": ["id"], **more})
    path = tmp_path / "job.yaml"
    path.write_text(SCENARIO.format(errors=errors, kind="", queries=""))
    with pytest.raises(ScenarioError, match="only the identity of a dead letter is compared"):
        load(path)


def test_dead_letters_do_not_change_how_many_rows_the_oracle_expects(stored_run: Any) -> None:
    """The gate compares this number: how many rows a job rejects must not look like less coverage."""
    run = orders(stored_run, written=[0, 3, 4], errors=BY_SOURCE)
    write_dead_letters(run, [1, 2])
    counts = judged(run).counts
    assert (counts["expected.orders"], counts["oracle.orders"]) == (3, 5)
    assert "oracle.errors" not in counts


@pytest.mark.parametrize("second", [BY_IDENTITY, BY_SOURCE])
@pytest.mark.parametrize("first", [BY_IDENTITY, BY_SOURCE])
def test_a_row_in_two_outputs_with_dead_letters_is_unexplained_in_the_second(
    stored_run: Any, first: Any, second: Any
) -> None:
    run = orders(stored_run, written=[0, 3, 4], errors=first)
    run.scenario["outputs"]["more"] = {**second, "table": "more"}
    write_dead_letters(run, [1])
    run.insert("more", {"order_id": 2, "p": 0, "o": 2})
    assert judged(run).outcome is Outcome.HELD
    run.insert("more", {"order_id": 1, "p": 0, "o": 1})
    verdict = judged(run)
    assert verdict.anomalies() == {"unexplained": 1}
    assert (verdict.counts["oracle.orders"], verdict.counts["dead.errors"], verdict.counts["dead.more"]) == (5, 1, 1)
    (finding,) = verdict.findings
    assert (finding.output, finding.summary) == ("more", "1 row matching no missing row in orders")
    assert "'orders' or 'errors' holds a row of this" in finding.witnesses[0].argument


@pytest.mark.parametrize("first", ["errors", "more"])
def test_a_record_is_a_dead_letter_as_a_whole_or_row_by_row(stored_run: Any, first: str) -> None:
    """Of a record with two rows, one output holds one by identity, and another the whole record by source."""
    run = orders(stored_run, written=[], errors=BY_IDENTITY)
    by = {"errors": {**BY_IDENTITY, "identity": ["order_id", "n"]}, "more": {**BY_SOURCE, "table": "more"}}
    run.scenario["outputs"] = {"orders": {"table": "orders", "identity": ["id", "n"]}}
    run.scenario["outputs"] |= {name: by[name] for name in (first, *by)}
    query = 'SELECT id, unnest([1, 2]) AS n, _partition, _offset, _key FROM "in" WHERE v < 50'
    run.scenario["oracle"]["queries"]["orders"] = query
    run.insert("orders", *({"id": id_, "n": n} for id_ in (0, 1, 2, 3) for n in (1, 2)))
    run.insert("more", {"p": 0, "o": 4})
    assert judged(run).outcome is Outcome.HELD
    run.insert("errors", {"order_id": 4, "n": 1})
    anomalies = judged(run).anomalies()
    assert anomalies == ({"unexplained": 1, "lost-write": 1} if first == "errors" else {"unexplained": 1})


@pytest.mark.parametrize("errors", [{"table": "errors", "expected": "empty"}, BY_IDENTITY])
def test_a_table_that_does_not_exist_counts_as_empty_and_is_mentioned(stored_run: Any, errors: Any) -> None:
    """Many a job creates such a table with its first row; the scenario may also misspell it."""
    run = orders(stored_run, written=ALL, errors=errors)
    note = "there is no table 'errors': nothing created it, or it has another name (did you mean 'error'?)"
    run.document["outputs"] = {"errors": {"columns": None, "note": note, "rows": 0}}
    verdict = judged(run)
    assert verdict.outcome is Outcome.HELD
    assert verdict.reasons[1:] == (f"output errors counts as empty: {note}",)
