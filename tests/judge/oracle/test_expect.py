"""What oracles expect of stored inputs, and how the input's records become columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge


def with_oracle(run: Any, oracle: dict[str, Any], identity: list[str]) -> Any:
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": identity}}
    run.scenario["oracle"] = oracle
    run.scenario["claim"] = {"order": "none"}
    return run


def view(run: Any, query: str) -> list[tuple[Any, ...]]:
    with_oracle(run, {"kind": "sql", "queries": {"events": "SELECT 1 AS one"}}, ["one"])
    with open_case(run.save()) as case:
        assert case.no_oracle is None
        return case.inputs.seen().sql(query).fetchall()


def test_fields_of_all_records_become_typed_columns(stored_run: Any) -> None:
    for value in ({"a": 1, "b": "x"}, {"a": -2, "c": 1.5}, {"a": None, "c": 2, "d": None, "e": {"f": [True]}}):
        stored_run.send("k", value)
    types = dict(view(stored_run, 'SELECT column_name, column_type FROM (DESCRIBE "in")'))
    assert {name: types[name] for name in "abcde"} == {
        "a": "BIGINT",
        "b": "VARCHAR",
        "c": "DOUBLE",
        "d": "VARCHAR",
        "e": "STRUCT(f BOOLEAN[])",
    }
    assert view(stored_run, 'SELECT a, b, c FROM "in" ORDER BY _offset') == [
        (1, "x", None),
        (-2, None, 1.5),
        (None, None, 2.0),
    ]


def test_records_that_are_not_objects_keep_their_row(stored_run: Any) -> None:
    stored_run.send("k", {"a": 1})
    for value in (None, b"\xff\xfe", b"not json", [1], 5):
        stored_run.send(None, value)
    assert view(stored_run, 'SELECT _offset, a FROM "in" ORDER BY 1') == [(0, 1), *((n, None) for n in range(1, 6))]


def test_a_topic_without_any_object_has_the_bytes(stored_run: Any) -> None:
    stored_run.send("k", b"plain")
    assert view(stored_run, 'SELECT _key, _value FROM "in"') == [("k", b"plain")]


def test_keys_that_are_not_text_are_escaped(stored_run: Any) -> None:
    stored_run.send(None, {"a": 1})
    stored_run.tables["input"][0]["key"] = b"\xff"
    assert view(stored_run, 'SELECT _key FROM "in"') == [("\\xFF",)]


def test_uncommitted_records_are_left_out(stored_run: Any) -> None:
    stored_run.send("k", {"a": 1})
    stored_run.send("k", {"a": 2, "only": "here"}, visibility="aborted")
    assert view(stored_run, 'SELECT a FROM "in"') == [(1,)]
    assert view(stored_run, "SELECT count(*) FROM input") == [(1,)]


def test_fields_named_like_the_position_do_not_hide_it(stored_run: Any) -> None:
    stored_run.send("k", {"_offset": 99, "a": 1})
    assert view(stored_run, 'SELECT _offset FROM "in"') == [(0,)]


def test_sql_over_a_static_table(stored_run: Any) -> None:
    query = 'SELECT n, name, _partition, _offset FROM "in" LEFT JOIN names USING (n)'
    run = with_oracle(stored_run, {"kind": "sql", "queries": {"events": query}}, ["n"])
    tables = run.path / "history" / "tables"
    tables.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1], "name": ["one"]}), tables / "names.parquet")
    for number, name in ((1, "one"), (2, None)):
        run.send("k", {"n": number})
        run.record("events", {"n": number, "name": name})
    verdict = judge(run.save())
    assert verdict.outcome == "held", verdict.reasons


def test_identity_expects_each_record_that_passes_once(stored_run: Any) -> None:
    oracle = {
        "kind": "identity",
        "columns": {"events": {"id": "'n' || n"}},
        "where": {"events": "n > 1 -- the first is left out"},
    }
    run = with_oracle(stored_run, oracle, ["id"])
    for number in (1, 2, 3):
        run.send("k", {"n": number})
        if number > 1:
            run.record("events", {"id": f"n{number}", "anything": "else"})
    assert judge(run.save()).outcome == "held"
    run.record("events", {"id": "n1"})
    assert judge(run.save()).anomalies() == {"unexplained": 1}


def test_a_number_beyond_64_bits_is_judged(stored_run: Any) -> None:
    run = with_oracle(stored_run, {"kind": "sql", "queries": {"events": 'SELECT a FROM "in"'}}, ["a"])
    run.send("k", {"a": 2**64 - 1})
    run.record("events", {"a": 2**64 - 1})
    assert judge(run.save()).outcome == "held"
    run.record("events", {"a": 2**64 - 2})
    assert judge(run.save()).anomalies() == {"unexplained": 1}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('SELECT n, n + 1 AS n, _topic, _partition, _offset, _key FROM "in"', "n, n"),
        ('SELECT n, n + 1 AS N, _topic, _partition, _offset, _key FROM "in"', "n, N"),
        ('SELECT * EXCLUDE (_headers, _timestamp_ms, _value), n + 1 AS n FROM "in"', "n, n"),
    ],
)
def test_a_query_that_gives_a_column_twice_judges_nothing(stored_run: Any, query: str, named: str) -> None:
    """DuckDB would compare one of them, so that a wrong output could be held, and a right one be violated."""
    stored_run.send("k", {"n": 1})
    with open_case(with_oracle(stored_run, {"kind": "sql", "queries": {"events": query}}, ["n"]).save()) as case:
        assert case.no_oracle is not None
        assert f"several columns of one name, in upper or lower case: {named}. Name each column once" in case.no_oracle
