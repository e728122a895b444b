"""Which scenarios can be watched, and what the command refuses before it reads anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.oracle.contract.query import several_records
from onceproof.scenario_files.load import load_to_judge
from onceproof.watch.per_record import problems, unjudged

GOOD = "SELECT id, _partition, _offset, _key FROM orders"


def found(folder: Path, query: str = GOOD, output: str = "{topic: out, identity: [id]}", more: str = "") -> list[str]:
    path = folder / "s.yaml"
    path.write_text(f"""
input: [{{topic: orders}}]
outputs:
  out: {output}
oracle:
  kind: sql
  queries:
    out: {query}
{more}""")
    return list(problems(load_to_judge(path)))


@pytest.mark.parametrize(
    "query",
    [
        GOOD,
        "SELECT * FROM orders",
        "SELECT id, upper(name) AS name, _partition, _offset FROM orders o WHERE id > 3 AND name IS NOT NULL",
        "SELECT unnest(items) AS item, id, _partition, _offset FROM orders",
    ],
)
def test_a_function_of_one_record_is_watched(tmp_path: Path, query: str) -> None:
    assert found(tmp_path, query) == []


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id, count(*) AS n FROM orders GROUP BY id", "has GROUP BY or HAVING"),
        ("SELECT max(id) AS id FROM orders", "has an aggregate, max()"),
        ("SELECT DISTINCT id, _partition, _offset FROM orders", "has ORDER BY, LIMIT, DISTINCT or QUALIFY"),
        (
            "SELECT id, row_number() OVER () AS n, _partition, _offset FROM orders",
            "has a window function, row_number()",
        ),
        ("SELECT id, (SELECT 1) AS n, _partition, _offset FROM orders", "has a subquery"),
        ("SELECT a.id FROM orders a JOIN orders b USING (id)", "does not read one input topic alone"),
        ("SELECT id FROM (SELECT * FROM orders)", "does not read one input topic alone"),
        ("WITH o AS (FROM orders) SELECT id FROM o", "is not one plain SELECT"),
        ("SELECT id FROM orders UNION ALL SELECT id FROM orders", "is not one plain SELECT"),
        ("SELECT id FROM orders", "does not select _partition and _offset"),
        ("SELECT id FROM input", "does not read one input topic alone"),
    ],
)
def test_what_depends_on_several_records_is_refused(tmp_path: Path, query: str, why: str) -> None:
    assert any(why in problem for problem in found(tmp_path, query)), found(tmp_path, query)


def test_a_macro_that_aggregates_is_found() -> None:
    assert several_records("SELECT list_sum([a]) AS s FROM orders", ["orders"]) is None
    assert (
        several_records("SELECT weighted_avg(a, b) AS s FROM orders", ["orders"]) == "has an aggregate, weighted_avg()"
    )


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("{table: out, identity: [id]}", "does not say how far it is"),
        ("{topic: out, kind: upsert, identity: [id]}", "is of kind upsert"),
        ("{topic: out, kind: changelog, identity: [id], claim: {order: per-key}}", "is of kind changelog"),
    ],
)
def test_outputs_that_never_become_final_are_refused(tmp_path: Path, output: str, why: str) -> None:
    assert any(why in problem for problem in found(tmp_path, output=output))


def test_what_the_claim_promises_beyond_rows_is_not_covered(tmp_path: Path) -> None:
    found(tmp_path, more="claim: {order: per-key}")
    assert list(unjudged(load_to_judge(tmp_path / "s.yaml"))) == [
        "claim order: per-key of output out is not judged by watch, which compares rows only"
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--window", "0.1s"], "--window 0.1s is too short"),
        (["--window", "2s", "--grace", "30s"], "give --window 7.5s or more"),
        (["--for", "soon"], "--for 'soon' is not a duration"),
        (["--grace", "5"], "--grace '5' is not a duration"),
    ],
)
def test_times_that_cannot_be_used_are_refused(tmp_path: Path, options: list[str], why: str) -> None:
    found(tmp_path)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "s.yaml"), "--kafka", "127.0.0.1:1", *options])
    assert result.exit_code == 2 and why in result.output


def test_the_reason_and_the_other_way_are_named(tmp_path: Path) -> None:
    found(tmp_path, "SELECT id, count(*) AS n FROM orders GROUP BY id")
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "s.yaml"), "--kafka", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "has GROUP BY or HAVING" in result.output and "onceproof import" in result.output
