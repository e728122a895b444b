"""Histories made from a user's own files: what is read, what is refused, and that `check` judges the result."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError, UsageError
from onceproof.cli.app import app
from onceproof.imports import Sources, import_history
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import check
from onceproof.values import foreign_files
from onceproof.values.foreign_files import records, rows

SCENARIO = """
input:
  - topic: orders
outputs:
  seen: {topic: seen, identity: [id]}
  totals: {table: totals, kind: upsert, identity: [customer]}
oracle:
  kind: sql
  queries:
    seen: SELECT id, amount::DECIMAL(20,4) AS amount, _partition, _offset, _key FROM orders
    totals: SELECT customer, sum(amount::DECIMAL(20,4)) AS total FROM orders GROUP BY customer
"""
ORDERS = [{"id": n, "customer": f"c{n % 2}", "amount": n + 0.25} for n in range(6)]


def lines(path: Path, *given: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in given))
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    totals = [{"customer": "c0", "total": 6.75}, {"customer": "c1", "total": 9.75}]
    return Sources(
        inputs={"orders": lines(tmp_path / "orders.jsonl", *({"key": o["customer"], "value": o} for o in ORDERS))},
        outputs={
            "seen": lines(tmp_path / "seen.jsonl", *({"id": o["id"], "amount": o["amount"]} for o in ORDERS)),
            "totals": lines(tmp_path / "totals.jsonl", *totals),
        },
    )


def test_right_files_are_held(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    run = import_history(scenario, sources, runs_dir=tmp_path / "runs")
    verdict = check(run)
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert verdict.reasons[0].endswith("imported history: no fault was exercised")
    assert verdict.counts["effects.seen"] == 6 and verdict.counts["effects.totals"] == 2
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["latest", run.name]
    assert (tmp_path / "runs" / "latest").resolve() == run


def test_wrong_files_are_violated(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    with sources.outputs["seen"].open("a") as seen:
        seen.write('{"id": 3, "amount": 3.25}\n')
    lines(sources.outputs["totals"], {"customer": "c0", "total": 6.75}, {"customer": "c1", "total": 9.7499})
    verdict = check(import_history(scenario, sources, runs_dir=tmp_path / "runs"))
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.anomalies() == {"duplicate": 1, "wrong-value": 1}


def test_a_loss_is_not_certain_where_more_may_still_come(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    lines(sources.outputs["seen"], *({"id": o["id"], "amount": o["amount"]} for o in ORDERS[:-1]))
    lost = check(import_history(scenario, sources, runs_dir=tmp_path / "runs"))
    assert lost.outcome is Outcome.VIOLATED
    assert sum(lost.anomalies().values()) == 1
    open_end = check(import_history(scenario, sources, runs_dir=tmp_path / "runs", drained=False))
    assert open_end.outcome is not Outcome.HELD


def test_a_claim_that_needs_commits_is_inconclusive_for_a_snapshot(
    scenario: Path, sources: Sources, tmp_path: Path
) -> None:
    text = SCENARIO.replace("kind: upsert, identity: [customer]", "identity: [id]").replace(
        "SELECT customer, sum(amount::DECIMAL(20,4)) AS total FROM orders GROUP BY customer",
        "SELECT id, _partition, _offset, _key FROM orders",
    )
    scenario.write_text(text + "claim: {order: per-key}\n")
    lines(sources.outputs["totals"], *({"id": o["id"]} for o in ORDERS))
    verdict = check(import_history(scenario, sources, runs_dir=tmp_path / "runs"))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    says = (
        "reordered could not be evaluated on output totals: it was imported as a snapshot, so its commits are unknown"
    )
    assert says in verdict.reasons, verdict.reasons


def test_a_scenario_with_fields_for_a_run_is_accepted(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    scenario.write_text(
        SCENARIO.replace("- topic: orders", "- {topic: orders, dataset: numbers, chunks: 3}")
        + "pipeline: {command: [somewhere/else.sh], prepare: {topics: {seen: {partitions: 3}}}}\n"
        + "chaos: [{fault: crash, target: driver, at: {batch: 1, point: after-sink-commit}}]\n"
    )
    verdict = check(import_history(scenario, sources, runs_dir=tmp_path / "runs"))
    assert verdict.outcome is Outcome.HELD, verdict.reasons


def test_parquet_files_of_records_and_of_rows_are_read(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    keyed = {
        "key": pa.array([o["customer"].encode() for o in ORDERS]),
        "value": pa.array([json.dumps(o).encode() for o in ORDERS]),
        "partition": pa.array([n % 2 for n in range(6)], pa.int32()),
        "offset": pa.array([10 + n for n in range(6)]),
        "timestamp_ms": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 6),
    }
    pq.write_table(pa.table(keyed), tmp_path / "orders.parquet")
    totals = {"customer": ["c0", "c1"], "total": pa.array([Decimal("6.75"), Decimal("9.75")], pa.decimal128(20, 4))}
    pq.write_table(pa.table(totals), tmp_path / "totals.parquet")
    given = Sources(
        inputs={"orders": tmp_path / "orders.parquet"},
        outputs={**sources.outputs, "totals": tmp_path / "totals.parquet"},
    )
    run = import_history(scenario, given, runs_dir=tmp_path / "runs")
    assert check(run).outcome is Outcome.HELD
    stored = pq.read_table(run / "history" / "input.parquet").to_pylist()
    assert [(r["partition"], r["offset"]) for r in stored] == [(n % 2, 10 + n) for n in range(6)]
    assert {r["timestamp_ms"] for r in stored} == {1_767_225_600_000}


def test_the_oracle_can_read_a_static_table(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO.replace("FROM orders\n", "FROM orders JOIN known USING (customer)\n"))
    pq.write_table(pa.table({"customer": ["c0", "c1"]}), tmp_path / "any.parquet")
    given = Sources(sources.inputs, sources.outputs, {"known": tmp_path / "any.parquet"})
    assert check(import_history(scenario, given, runs_dir=tmp_path / "runs")).outcome is Outcome.HELD
    without = check(import_history(scenario, sources, runs_dir=tmp_path / "runs"))
    assert without.outcome is Outcome.INCONCLUSIVE


# --- the content of files -----------------------------------------------------------------------------------------------


def test_records_keep_bytes_numbers_and_nulls(tmp_path: Path) -> None:
    odd = base64.b64encode(b"\xff\x00").decode()
    path = lines(
        tmp_path / "odd.jsonl",
        '{"key": null, "value": {"n": 12345678901234567890.1230, "e": 1E-10, "big": 123456789012345678901234567890}}',
        {"key_base64": odd, "value_base64": odd},
        {"key": "k", "value": "text, not JSON"},
        {"value": None, "partition": 3},
        "",
        {"key": "", "value": [1, {"é": None}], "visibility": "aborted"},
    )
    found = list(records(path))
    assert [r["value"] for r in found] == [
        b'{"n":12345678901234567890.1230,"e":1E-10,"big":123456789012345678901234567890}',
        b"\xff\x00",
        b"text, not JSON",
        None,
        '[1,{"é":null}]'.encode(),
    ]
    assert [r["key"] for r in found] == [None, b"\xff\x00", b"k", None, b""]
    assert [(r["partition"], r["offset"]) for r in found] == [(0, 0), (0, 1), (0, 2), (3, 0), (0, 3)]
    assert found[-1]["visibility"] == "aborted"


def test_rows_of_parquet_become_json_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "at": pa.array([datetime(2013, 1, 1, 5, 30)], pa.timestamp("ns")),
            "day": pa.array([date(2013, 1, 1)]),
            "raw": pa.array([b"\x00\xff"]),
            "nan": pa.array([float("nan")]),
            "low": pa.array([float("-inf")]),
            "yes": pa.array([True]),
            "many": pa.array([[1, None]]),
            "none": pa.array([None], pa.string()),
        }
    )
    pq.write_table(table, tmp_path / "typed.parquet")
    (record,) = records(tmp_path / "typed.parquet")
    assert json.loads(record["value"], parse_float=str) == {
        "n": "1.50",
        "at": "2013-01-01T05:30:00",
        "day": "2013-01-01",
        "raw": "\\x00ff",
        "nan": "NaN",
        "low": "-Infinity",
        "yes": True,
        "many": [1, None],
        "none": None,
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"value": 1}\n{"value": }\n', ":2: not JSON"),
        ('{"value": 1}\n[1]\n', ":2: [1] is not a JSON object"),
        ('{"value": NaN}\n', "NaN is not a JSON value"),
        ('{"value": 1, "ofset": 3}\n', ":1: a record has no field 'ofset'; did you mean 'offset'?"),
        ('{"value": 1, "offset": -3}\n', ":1: offset '-3' is not a whole number from 0 up"),
        ('{"value": 1, "offset": 1.5}\n', "offset '1.5' is not a whole number"),
        ('{"value": 1, "partition": true}\n', "partition True is not a whole number"),
        ('{"value": 1, "offset": 3}\n{"value": 1, "offset": 3}\n', ":2: offset 3 of partition 0 comes after 3"),
        ('{"value": 1, "offset": 3}\n{"value": 1}\n', ":2: some rows have an offset and others do not"),
        ('{"value": 1, "visibility": "gone"}\n', "visibility 'gone' is not one of committed, aborted, open"),
        ('{"value_base64": "%%"}\n', "value_base64 is not base64"),
        ('{"value": "\xff"}\n', "not UTF-8 text"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_invalid_lines_are_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        list(records(path))
    assert says in str(caught.value)


def test_a_name_twice_in_one_object_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "some.jsonl", {"id": 1}, '{"id": 2, "v": {"a": 1, "a": 2}}')
    with pytest.raises(UsageError, match=r"some\.jsonl:2: an object has the name 'a' twice"):
        list(rows(path))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (pa.table([pa.array([1]), pa.array([2])], names=["v", "v"]), "v"),
        (
            pa.table({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])}),
            "s.a",
        ),
    ],
)
def test_a_column_twice_is_refused(tmp_path: Path, table: pa.Table, column: str) -> None:
    pq.write_table(table, tmp_path / "some.parquet")
    with pytest.raises(UsageError, match=f"some.parquet: column '{column}' occurs twice"):
        list(rows(tmp_path / "some.parquet"))


TYPED = """
input:
  - topic: orders
outputs:
  typed: {table: typed, identity: [id]}
oracle:
  kind: sql
  queries:
    typed: |
      SELECT id, word::DOUBLE AS word, short, short::FLOAT AS real, clock::TIME AS clock, lasts::INTERVAL AS lasts,
             MAP {'a': short, 'b': 2.5} AS named, {'x': word::DOUBLE, 'm': MAP {1: id}} AS both, cents::DECIMAL(20,2) AS cents,
             _partition, _offset, _key
      FROM orders
"""


@pytest.mark.parametrize("wrong", [None, "word", "short", "real", "clock", "lasts", "named", "both", "cents"])
def test_values_of_parquet_are_compared_by_their_types(tmp_path: Path, wrong: str | None) -> None:
    times, lasting = ["10:15:00.5", "10:15:00", "23:59:59.999999"], ["1 day", "-00:00:01.5", "36:00:00"]
    order = {"short": 0.1, "cents": 12345678901234567.89}
    words = ["NaN", "Infinity", "-Infinity"]
    given = [
        json.dumps({"key": "k", "value": {"id": n, "word": words[n], "clock": times[n], "lasts": lasting[n], **order}})
        for n in range(3)
    ]
    exact = [line.replace(json.dumps(order["cents"]), "12345678901234567.89") for line in given]
    maps, both = pa.map_(pa.string(), pa.float32()), pa.map_(pa.int64(), pa.int64())
    columns: dict[str, Any] = {
        "id": pa.array([0, 1, 2]),
        "word": pa.array([float(word) for word in words]),
        "short": pa.array([0.1] * 3, pa.float32()),
        "real": pa.array([0.1] * 3, pa.float32()),
        "clock": pa.array([time(10, 15, 0, 500_000), time(10, 15), time(23, 59, 59, 999_999)]),
        "lasts": pa.array([timedelta(days=1), timedelta(seconds=-1.5), timedelta(hours=36)]),
        "named": pa.array([[("a", 0.1), ("b", 2.5)]] * 3, maps),
        "both": pa.array(
            [{"x": float(word), "m": [(1, n)]} for n, word in enumerate(words)],
            pa.struct([("x", pa.float64()), ("m", both)]),
        ),
        "cents": pa.array([Decimal("12345678901234567.89")] * 3),
    }
    if wrong is not None:
        columns[wrong] = pa.concat_arrays([columns[wrong].slice(1, 1), columns[wrong].slice(1)])
        if columns[wrong].slice(0, 1).equals(columns[wrong].slice(2, 1)):
            others = {
                "named": pa.array([[("a", 0.2), ("b", 2.5)]], maps),
                "cents": pa.array([Decimal("12345678901234567.91")]),
            }
            other = others.get(wrong, pa.array([0.2], pa.float32()))
            columns[wrong] = pa.concat_arrays([other, columns[wrong].slice(1)])
    pq.write_table(pa.table(columns), tmp_path / "typed.parquet")
    (tmp_path / "typed.yaml").write_text(TYPED)
    sources = Sources({"orders": lines(tmp_path / "orders.jsonl", *exact)}, {"typed": tmp_path / "typed.parquet"})
    verdict = check(import_history(tmp_path / "typed.yaml", sources, runs_dir=tmp_path / "runs"))
    assert verdict.anomalies() == ({} if wrong is None else {"wrong-value": 1}), verdict.reasons


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    lines(tmp_path / "orders.jsonl", {"n": 1})
    with pytest.raises(UsageError, match=r"does not exist\n.*did you mean 'orders\.jsonl'"):
        rows(tmp_path / "order.jsonl")
    (tmp_path / "orders.csv").write_text("n\n1\n")
    with pytest.raises(UsageError, match=r"has an unknown ending: \.csv"):
        rows(tmp_path / "orders.csv")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UsageError, match="cannot be read after row 0"):
        list(rows(tmp_path / "cut.parquet"))


# --- the arguments ------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(scenario: Path, tmp_path: Path) -> Any:
    def refusal(sources: Sources) -> str:
        with pytest.raises(UsageError) as caught:
            import_history(scenario, sources, runs_dir=tmp_path / "runs")
        assert not (tmp_path / "runs").exists(), "something half-made was left"
        return str(caught.value)

    return refusal


def test_names_that_the_scenario_lacks_are_refused(refused: Any, sources: Sources) -> None:
    order = Sources({"order": Path("x.jsonl")}, sources.outputs)
    assert "no input topic 'order'; did you mean 'orders'?" in refused(order)
    total = Sources(sources.inputs, {"total": Path("x.jsonl")})
    assert "no output 'total'; did you mean 'totals'?" in refused(total)


def test_missing_sources_are_refused(refused: Any, sources: Sources) -> None:
    assert "give --input orders=FILE, or --kafka ADDRESS" in refused(Sources({}, sources.outputs))
    only_table = Sources(sources.inputs, {"totals": sources.outputs["totals"]})
    assert "give --output seen=FILE, or --kafka ADDRESS" in refused(only_table)
    only_topic = Sources(sources.inputs, {"seen": sources.outputs["seen"]})
    assert "give --output totals=FILE, or --postgres-env VARIABLE" in refused(only_topic)


def test_an_invalid_line_leaves_no_directory(refused: Any, sources: Sources) -> None:
    with sources.outputs["totals"].open("a") as file:
        file.write("{\n")
    assert "totals.jsonl:3: not JSON" in refused(sources)


def test_a_password_is_never_shown(refused: Any, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Sources(sources.inputs, {"seen": sources.outputs["seen"]}, postgres_env="SOME_DATABASE")
    monkeypatch.delenv("SOME_DATABASE", raising=False)
    assert "environment variable 'SOME_DATABASE' is not set" in refused(live)
    for value in ("host=db password = 'hunter2", "postgresql://u:hunter2%zz@h/d", "hunter2"):
        monkeypatch.setenv("SOME_DATABASE", value)
        said = refused(live)
        assert "the value of SOME_DATABASE is not a libpq URI" in said
        assert "hunter2" not in said


def test_problems_of_the_scenario_have_a_line(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO.replace("identity: [id]", "identity: [id], ignore: [id]").replace("seen:", "sen:", 1))
    with pytest.raises(ScenarioError) as caught:
        import_history(scenario, sources, runs_dir=tmp_path / "runs")
    assert all(problem.place.line > 1 for problem in caught.value.problems)


def test_import_on_the_command_line(scenario: Path, sources: Sources, tmp_path: Path) -> None:
    argv = ["import", "--scenario", str(scenario), "--runs", str(tmp_path / "runs"), "--json"]
    argv += ["--input", f"orders={sources.inputs['orders']}"]
    argv += [word for name, path in sources.outputs.items() for word in ("--output", f"{name}={path}")]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    judged = CliRunner().invoke(app, ["check", json.loads(done.stdout)["run"]])
    assert judged.exit_code == 0, judged.output
    assert "no fault was exercised" in " ".join(judged.output.split())
    wrong = CliRunner().invoke(app, [*argv, "--table", "nowhere"])
    assert wrong.exit_code == 2
    assert "--table 'nowhere' is not NAME=FILE" in wrong.stderr


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF"])
def test_half_of_a_surrogate_pair_is_reported_with_its_line(tmp_path: Path, half: str) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(f'{{"value": "whole \\ud83d\\ude00"}}\n{{"value": {{"id": "{half}"}}}}\n')
    with pytest.raises(UsageError, match=re.escape(f"orders.jsonl:2: {half.lower()} is half of a surrogate pair")):
        list(foreign_files.records(file))


@pytest.mark.parametrize(
    ("field", "number"),
    [("offset", "1" + "0" * 19), ("offset", "9" * 5000), ("partition", str(2**31)), ("timestamp_ms", "9" * 19 + "0")],
)
def test_a_number_that_kafka_cannot_have_is_refused_with_its_place(tmp_path: Path, field: str, number: str) -> None:
    path = lines(tmp_path / "in.jsonl", '{"value": "a"}', f'{{"value": "b", "{field}": {number}}}')
    with pytest.raises(UsageError, match=rf"in.jsonl:2: {field} \d+(\.\.\.)? is too large"):
        list(records(path))
