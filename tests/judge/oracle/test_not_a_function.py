"""Oracles that read the pipeline's output, or that are not functions of their input: each query, and the expected message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.base.errors import UsageError
from onceproof.judge.findings import Outcome
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.query import select_problem, unordered

#: A query -> what the refusal names.
REFUSED = {
    # Queries that read the output, or may.
    "FROM history.output": "history.output, which is what the pipeline wrote",
    'FROM memory."History"."Output"': "history.output, which is what the pipeline wrote",
    "FROM query('FROM history.output')": "query() runs a query given as text",
    "FROM query('FROM ' || 'history.output')": "query() runs a query given as text",
    "FROM query_table('history.output')": "query_table() runs a query given as text",
    "FROM query_table(['history.output'])": "query_table() runs a query given as text",
    "SELECT (SELECT count(*) FROM query('FROM history.output'))": "query() runs",
    "WITH o AS (FROM query('FROM history.output')) FROM o": "query() runs",
    "FROM (PIVOT history.output ON op IN ('insert') USING count(*))": "history.output, which is what the pipeline wrote",
    "FROM history.output PIVOT (count(*) FOR op IN ('insert'))": "history.output, which is what the pipeline wrote",
    "PIVOT history.output ON op USING count(*)": "a SELECT is wanted here, not MULTI",
    "FROM (DESCRIBE history.output)": "DESCRIBE describes tables",
    "FROM (SUMMARIZE history.output)": "SUMMARY describes tables",
    "SUMMARIZE history.output": "SUMMARY describes tables",
    "FROM (SHOW ALL TABLES)": "describes tables",
    "FROM judge.effects": "judge.effects, which is not the input",
    "FROM judge.effect_rows": "judge.effect_rows, which is not the input",
    "FROM history.batches": "history.batches, which is not the input",
    "FROM duckdb_tables": "duckdb_tables, which is DuckDB's own catalogue",
    "FROM duckdb_tables()": "duckdb_tables() is not a function of the input",
    "FROM duckdb_views()": "duckdb_views() is not a function of the input",
    "FROM information_schema.columns": "information_schema.columns, which is not the input",
    "FROM pg_catalog.pg_class": "pg_catalog.pg_class, which is not the input",
    "FROM sqlite_master": "sqlite_master, which is DuckDB's own catalogue",
    "FROM pragma_table_info('history.output')": "pragma_table_info() is not a function of the input",
    "FROM pragma_storage_info('history.output')": "pragma_storage_info() is not a function of the input",
    "FROM read_parquet('history/output.parquet')": "read_parquet() is not a function of the input",
    "FROM parquet_scan('history/output.parquet')": "parquet_scan() is not a function of the input",
    "FROM parquet_metadata('history/output.parquet')": "parquet_metadata() is not a function of the input",
    "FROM read_blob('history/output.parquet')": "read_blob() is not a function of the input",
    "FROM read_csv('/etc/passwd')": "read_csv() is not a function of the input",
    "FROM glob('*')": "glob() is not a function of the input",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM history.output'))": "json_execute_serialized_sql() is not",
    "FROM histogram('history.output', op)": "histogram() is not a function of the input",
    "FROM seq_scan('history', 'output')": "seq_scan() is not a function of the input",
    "COPY history.output TO 'x'": "a SELECT is wanted here, not COPY",
    "ATTACH 'x' AS y": "a SELECT is wanted here, not ATTACH",
    "PREPARE p AS FROM history.output": "a SELECT is wanted here, not PREPARE",
    "EXECUTE p": "a SELECT is wanted here, not EXECUTE",
    "CREATE VIEW v AS FROM history.output": "a SELECT is wanted here, not CREATE",
    "CREATE MACRO m() AS TABLE FROM history.output; FROM m()": "there are 2 statements",
    "CALL query('FROM history.output')": "a SELECT is wanted here, not CALL",
    "EXPLAIN ANALYZE FROM history.output": "a SELECT is wanted here, not EXPLAIN",
    "SET VARIABLE x = (SELECT count(*) FROM history.output)": "a SELECT is wanted here",
    "SELECT getvariable('open_windows')": "getvariable() gives another value",
    # What is another at each check.
    'FROM "in" USING SAMPLE 3': "a sample has other rows at each check",
    'FROM "in" USING SAMPLE reservoir(50%) REPEATABLE (7)': "a sample has other rows at each check",
    'SELECT k\nFROM "in"\nTABLESAMPLE 10%': "a sample has other rows at each check, so the verdict could change (line 2)",
    'FROM (FROM "in" TABLESAMPLE system(10%))': "a sample has other rows at each check",
    "SELECT age(TIMESTAMP '2024-01-01')": "age() of one time counts from today",
    "SELECT main.AGE(TIMESTAMPTZ '2024-01-01')": "age() of one time counts from today",
    "SELECT current_localtimestamp()": "current_localtimestamp() gives another value",
    "SELECT current_localtime()": "current_localtime() gives another value",
    "SELECT txid_current()": "txid_current() gives another value",
    "SELECT now()": "now() gives another value",
    "SELECT NOW()": "now() gives another value",
    'SELECT "now"()': "now() gives another value",
    "SELECT get_current_timestamp()": "get_current_timestamp() gives another value",
    "SELECT transaction_timestamp()": "transaction_timestamp() gives another value",
    "SELECT CURRENT_TIMESTAMP": "current_timestamp gives another value",
    "SELECT localtimestamp": "localtimestamp gives another value",
    "SELECT today()": "today() gives another value",
    "SELECT ago(INTERVAL 1 DAY)": "ago() gives another value",
    "SELECT pg_postmaster_start_time()": "pg_postmaster_start_time() gives another value",
    "SELECT random()": "random() gives another value",
    "SELECT system.main.random()": "random() gives another value",
    "SELECT setseed(0.5)": "setseed() gives another value",
    "SELECT list_transform([1], lambda x: random())": "random() gives another value",
    "FROM range(10) r(x) WHERE x IN (SELECT random())": "random() gives another value",
    "SELECT 1 ORDER BY random()": "random() gives another value",
    'FROM "in" PIVOT (sum(random()) FOR k IN (1))': "random() gives another value",
    "SELECT uuid()": "uuid() gives another value",
    "SELECT gen_random_uuid()": "gen_random_uuid() gives another value",
    "SELECT uuidv7()": "uuidv7() gives another value",
    "SELECT nextval('s')": "nextval() gives another value",
    "SELECT current_setting('threads')": "current_setting() gives another value",
    "SELECT current_query()": "current_query() gives another value",
    "SELECT reservoir_quantile(n, 0.5) FROM t": "reservoir_quantile() gives another value",
}

#: A query whose result depends on the order of equal rows -> the message about each part of it.
UNORDERED = {
    'SELECT k\nFROM "in"\nLIMIT 3': ["`LIMIT` (line 3) without ORDER BY takes arbitrary rows"],
    'SELECT k FROM "in" ORDER BY k LIMIT 3': ["`LIMIT` (line 1) takes any of several rows that are equal"],
    'SELECT k FROM "in" OFFSET 2': ["`LIMIT` (line 1) without ORDER BY"],
    'SELECT DISTINCT ON (k) n FROM "in"': ["`DISTINCT ON` (line 1) without ORDER BY"],
    'SELECT k,\n  first(n) FROM "in" GROUP BY k': ["`first(n)` (line 2) takes an arbitrary row"],
    'SELECT any_value(n) FROM "in"': ["`any_value(n)` (line 1) takes an arbitrary row"],
    'SELECT last(n ORDER BY k) FROM "in"': ["`last(n ORDER BY k)` (line 1) depends on the order of rows"],
    'SELECT arg_max(n, k) FROM "in"': ["`arg_max(n, k)` (line 1) takes any of several rows"],
    'SELECT max_by(n, k) FROM "in"': ["`max_by(n, k)` (line 1) takes any of several rows"],
    'SELECT list(n) FROM "in"': ["`list(n)` (line 1) has no ORDER BY"],
    "SELECT string_agg(k, ',') FROM \"in\"": ["`string_agg(k, ',')` (line 1) has no ORDER BY"],
    'SELECT json_group_array(k) FROM "in"': ["`json_group_array(k)` (line 1) has no ORDER BY"],
    'SELECT row_number() OVER () FROM "in"': ["`row_number() OVER ()` (line 1) has no ORDER BY"],
    'SELECT row_number() OVER (ORDER BY k) FROM "in"': [
        "(line 1) depends on the order of rows that are equal in its ORDER BY"
    ],
    'SELECT lag(n) OVER (PARTITION BY k) FROM "in"': ["`lag(n) OVER (PARTITION BY k)` (line 1) has no ORDER BY"],
    'SELECT sum(n) OVER (ORDER BY k ROWS 1 PRECEDING) FROM "in"': ["(line 1) depends on the order of rows"],
    'FROM "in" POSITIONAL JOIN planes': ["POSITIONAL JOIN pairs rows by an order that nothing fixes"],
    'SELECT approx_quantile(n, 0.5) FROM "in"': ["depends on the order in which it sees the rows"],
}

STEADY = [
    'SELECT k, n FROM "in" ORDER BY k',
    'SELECT k FROM "in" ORDER BY _offset LIMIT 3',
    'SELECT max_by(n, _offset), last(n ORDER BY _offset), list(n ORDER BY n) FROM "in" GROUP BY k',
    'SELECT list_sort(list(n)), sum(n), count(DISTINCT k), min(n) FROM "in"',
    'SELECT row_number() OVER (PARTITION BY k ORDER BY _offset), sum(n) OVER (PARTITION BY k), rank() OVER (ORDER BY k) FROM "in"',
    'SELECT DISTINCT k FROM "in"',
    "SELECT age(a, b), error('never') FROM \"in\"",
    "FROM range(3)",
    "SELECT unnest([1, 2])",
    "FROM json_each('[1]')",
    'FROM history.input SEMI JOIN main."in" ON true',
    "SELECT i.now, i.random FROM input i",
]


@pytest.mark.parametrize("query", REFUSED)
def test_queries_that_are_not_functions_of_the_input_are_refused(query: str) -> None:
    problem = select_problem(query)
    assert problem is not None
    assert REFUSED[query] in problem[0]


@pytest.mark.parametrize("query", UNORDERED)
def test_parts_that_depend_on_the_order_of_rows_are_named(query: str) -> None:
    assert select_problem(query) is None
    messages = [str(part) for part in unordered(query)]
    assert len(messages) == len(UNORDERED[query])
    assert all(expected in found for expected, found in zip(UNORDERED[query], messages, strict=True)), messages


@pytest.mark.parametrize("query", STEADY)
def test_queries_that_are_functions_of_the_input_are_accepted(query: str) -> None:
    assert select_problem(query) is None
    assert unordered(query) == []


def test_every_function_that_duckdb_calls_volatile_is_refused() -> None:
    import duckdb

    names = duckdb.sql("""SELECT DISTINCT function_name FROM duckdb_functions()
        WHERE stability <> 'CONSISTENT' AND function_name <> 'error'""").fetchall()
    assert len(names) > 20
    accepted = [name for (name,) in names if select_problem(f'SELECT "{name}"()') is None]
    assert accepted == []


@pytest.mark.parametrize(
    "query",
    [
        "FROM history.output",
        "FROM query('FROM history.output')",
        "FROM query_table('history.output')",
        "FROM history.snapshot",
        "FROM read_parquet('{run}/history/output.parquet')",
        "FROM '{run}/history/output.parquet'",
        "FROM '{run}/history/*.parquet'",
        "FROM read_blob('{run}/run.json')",
        "FROM glob('{run}/*')",
        "FROM judge.effects",
        "FROM judge.effect_rows",
        "FROM query",  # a variable of the program that runs it
    ],
)
def test_the_oracle_s_database_does_not_hold_the_output(clean_run: Any, query: str) -> None:
    """Even without the check of queries, the database gives no access to what the pipeline wrote."""
    import duckdb

    run = clean_run.save()
    with open_case(run) as case:
        assert case.no_oracle is None
        with pytest.raises(duckdb.Error):
            case.inputs.seen().sql(query.format(run=run)).fetchall()
        tables = {row[0] for row in case.inputs.seen().sql("SELECT table_name FROM duckdb_tables()").fetchall()}
        assert not tables & {"output", "snapshot", "commits", "effects", "effect_rows"}


def with_query(run: Any, query: str, identity: list[str], **output: Any) -> Any:
    run.scenario["outputs"] = {"totals": {"topic": "totals", "identity": identity, **output}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"totals": query}}
    run.scenario["claim"] = {"order": "none"}
    return run


@pytest.mark.parametrize("query", ["FROM query('FROM history.output')", 'FROM "in" USING SAMPLE 3'])
def test_a_stored_run_with_a_refused_query_is_inconclusive(stored_run: Any, query: str) -> None:
    run = with_query(stored_run, query, ["k"])
    run.send("a", {"k": "a"})
    run.record("totals", {"k": "a"})
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "output 'totals' cannot be run" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ('SELECT k, first(n) AS n FROM "in" GROUP BY k', "`first(n)` (line 1)"),
        ('SELECT k, any_value(n) AS n FROM "in" GROUP BY k', "`any_value(n)` (line 1)"),
        ('SELECT k, arg_max(n, k) AS n FROM "in" GROUP BY k', "`arg_max(n, k)` (line 1)"),
        ('SELECT k, list(n)::VARCHAR AS n FROM "in" GROUP BY k', "`list(n)` (line 1)"),
        ("SELECT k, string_agg(n, '') AS n FROM \"in\" GROUP BY k", "`string_agg(n, '')` (line 1)"),
        ('SELECT k, n FROM "in" LIMIT 1', "`LIMIT` (line 1)"),
        ('SELECT k, n FROM "in"\nQUALIFY row_number() OVER (PARTITION BY k ORDER BY k) = 1', "(line 2)"),
        ('SELECT DISTINCT ON (k) k, n FROM "in"', "`DISTINCT ON` (line 1)"),
    ],
)
def test_a_dependence_on_the_order_of_rows_is_found_by_asking_twice(stored_run: Any, query: str, part: str) -> None:
    run = with_query(stored_run, query, ["k"])
    for number in (1, 2, 3):
        run.send("a", {"k": "a", "n": number})
    run.record("totals", {"k": "a", "n": 1})
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    (reason,) = verdict.reasons
    assert "output totals cannot be judged: the oracle expects other rows" in reason
    assert """the first is {"k":"a"}: """ in reason
    assert part in reason


def test_a_dependence_on_the_order_of_a_static_table_is_found(stored_run: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    query = 'SELECT k, (SELECT first(name) FROM names) AS name FROM "in"'
    run = with_query(stored_run, query, ["k"])
    (run.path / "history" / "tables").mkdir(parents=True)
    pq.write_table(pa.table({"name": ["one", "two"]}), run.path / "history" / "tables" / "names.parquet")
    run.send("a", {"k": "a"})
    run.record("totals", {"k": "a", "name": "one"})
    (reason,) = judge(run.save()).reasons
    assert '"name":"one"' in reason and '"name":"two"' in reason


def test_sums_of_doubles_need_a_tolerance(stored_run: Any) -> None:
    query = "SELECT 'all' AS k, sum(n::DOUBLE) AS n FROM \"in\""
    for number in (1e16, 1.0, -1e16, 1.0):
        stored_run.send("a", {"n": number})
    stored_run.record("totals", {"k": "all", "n": 1.0})
    run = with_query(stored_run, query, ["k"])
    (reason,) = judge(run.save()).reasons
    assert "A sum of DOUBLE depends on the order: cast n to DECIMAL, or give it a tolerance" in reason
    run.scenario["outputs"]["totals"]["tolerance"] = {"n": {"absolute": 5}}
    assert judge(run.save()).outcome is Outcome.HELD


def test_an_order_that_does_not_matter_is_held(stored_run: Any) -> None:
    run = with_query(stored_run, 'SELECT k, any_value(n) AS n FROM "in" GROUP BY k', ["k"])
    for _ in range(3):
        run.send("a", {"k": "a", "n": 7})
    run.record("totals", {"k": "a", "n": 7})
    assert judge(run.save()).outcome is Outcome.HELD


def test_a_cause_that_depends_on_the_order_of_rows_is_found(stored_run: Any) -> None:
    query = 'SELECT k, any_value(_partition) AS _partition, any_value(_offset) AS _offset FROM "in" GROUP BY k'
    run = with_query(stored_run, query, ["k"])
    for _ in range(2):
        run.send("a", {"k": "a"})
    run.record("totals", {"k": "a"})
    (reason,) = judge(run.save()).reasons
    assert "in/0@0" in reason and "in/0@1" in reason


def test_an_output_without_a_query_is_a_usage_error(clean_run: Any) -> None:
    path = clean_run.save()
    document = json.loads((path / "run.json").read_text())
    del document["scenario"]["oracle"]["queries"]["events"]
    (path / "run.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="does not describe output 'events'; it describes rows"):
        judge(path)
