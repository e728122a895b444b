"""Unusual histories give a clear error or the right verdict, and never a wrong ``held``.

Each kind of value is judged twice: a correct one must be held, and one with a single error must be found.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import HistoryError
from onceproof.history.schema import TABLES, VERSION, VERSION_KEY
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

PLAIN = "_topic, _partition, _offset, _key"


def scenario(run: Any, query: str, *, identity: str = "i", order: str = "none", **output: Any) -> Any:
    place = output or {"topic": "out"}
    run.scenario["outputs"] = {"out": {"identity": [identity], **place}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.scenario["claim"] = {"order": order}
    return run


def done(run: Any) -> Any:
    """The verdict if the job's progress covers all input."""
    ends: dict[int, int] = {}
    for row in run.tables["input"]:
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["offset"] + 1)
    run.progress(ends)
    return judge(run.save())


def held(run: Any) -> None:
    verdict = done(run)
    assert verdict.outcome is Outcome.HELD, verdict.reasons


def violated(run: Any, **anomalies: int) -> None:
    verdict = done(run)
    assert verdict.outcome is Outcome.VIOLATED, verdict.reasons
    assert verdict.anomalies() == {name.replace("_", "-"): count for name, count in anomalies.items()}


# --- files that are not a history -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_a_truncated_table_is_refused(clean_run: Any, table: str) -> None:
    run_dir = clean_run.save()
    path = run_dir / "history" / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(HistoryError, match=rf"{table}\.parquet is damaged or cut off"):
        judge(run_dir)


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_table_is_refused(clean_run: Any, table: str) -> None:
    run_dir = clean_run.save()
    (run_dir / "history" / f"{table}.parquet").unlink()
    with pytest.raises(HistoryError, match=rf"incomplete: .*{table}\.parquet"):
        judge(run_dir)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_another_version_is_refused(clean_run: Any, table: str) -> None:
    run_dir = clean_run.save()
    path = run_dir / "history" / f"{table}.parquet"
    older = pq.read_table(path).replace_schema_metadata({VERSION_KEY: str(VERSION - 1).encode()})
    pq.write_table(older, path)
    with pytest.raises(HistoryError, match=f"history version {VERSION - 1}; this onceproof reads version {VERSION}"):
        judge(run_dir)


def test_a_table_in_one_large_row_group_is_read(clean_run: Any) -> None:
    run_dir = clean_run.save()
    for table in TABLES:
        path = run_dir / "history" / f"{table}.parquet"
        pq.write_table(pq.read_table(path), path, compression="none", row_group_size=1 << 30)
    assert judge(run_dir).outcome is Outcome.HELD


@pytest.mark.parametrize("table", ["input", "output"])
def test_repeated_record_ids_are_refused(clean_run: Any, table: str) -> None:
    clean_run.tables[table].append(dict(clean_run.tables[table][-1]))
    with pytest.raises(HistoryError, match=rf"{table}\.parquet, row \d+: .* occurs twice"):
        judge(clean_run.save())


def test_a_lost_one_of_two_equal_input_records_is_found(stored_run: Any) -> None:
    """Two equal input records are two effects: if one of these is missing, it is a loss."""
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"')
    for _ in range(2):
        run.send("k", {"i": 1})
    run.record("out", {"i": 1})
    violated(run, lost_write=1)


def test_times_that_run_backwards_are_refused(clean_run: Any) -> None:
    clean_run.tables["batches"][-1].update(planned_at=9.0, committed_at=3.0)
    with pytest.raises(
        HistoryError, match=r"batches\.parquet, row \d+: planned_at 9\.0 is greater than its committed_at 3\.0"
    ):
        judge(clean_run.save())


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [pytest.param(False, marks=pytest.mark.full), True])
def test_value_of_64_mib(stored_run: Any, wrong: bool) -> None:
    run = scenario(stored_run, f'SELECT i, s, {PLAIN} FROM "in"')
    large = "x" * (64 << 20)
    run.send("k", {"i": 1, "s": large})
    run.record("out", {"i": 1, "s": large[:-1] + "y" if wrong else large})
    verdict = done(run)
    # Describing the difference may take more memory than there is: then the run is inconclusive, and never held.
    assert verdict.outcome in ((Outcome.VIOLATED, Outcome.INCONCLUSIVE) if wrong else (Outcome.HELD,)), verdict.reasons


def test_keys_that_are_not_utf_8(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"', order="per-key")
    keys = [b"\xff\xfe", b"\xff\xfd", b"", b"\x00"]
    for i in range(8):
        run.send("k", {"i": i})
        run.tables["input"][-1]["key"] = keys[i % 4]
        run.record("out", {"i": i})
        run.tables["output"][-1]["key"] = keys[i % 4]
    held(run)
    # Records with different keys may be in any order, records with the same key may not.
    rows = [row["content"] for row in run.tables["output"]]
    for place, content in zip(run.tables["output"], [rows[1], rows[0], *rows[2:]], strict=True):
        place["content"] = content
    assert judge(run.save()).outcome is Outcome.HELD
    for place, content in zip(run.tables["output"], [rows[4], *rows[1:4], rows[0], *rows[5:]], strict=True):
        place["content"] = content
    assert judge(run.save()).anomalies() == {"reordered": 1}


def test_records_without_key_or_value(stored_run: Any) -> None:
    """A record without a value has NULL in every column. The oracle decides whether it counts."""
    run = scenario(stored_run, f'SELECT _offset AS i, n, {PLAIN} FROM "in"', order="per-key")
    for key, value in ((None, {"n": 1}), ("k", None), (None, None), ("k", {"n": None})):
        run.send(key, value)
    for i, n in enumerate((1, None, None, None)):
        run.record("out", {"i": i, "n": n})
    held(run)
    run.tables["output"][-1]["content"] = json.dumps({"i": 3, "n": 0})
    violated_again(run, wrong_value=1)


def violated_again(run: Any, **anomalies: int) -> None:
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.VIOLATED, verdict.reasons
    assert verdict.anomalies() == {name.replace("_", "-"): count for name, count in anomalies.items()}


def test_a_tombstone_in_an_append_output_cannot_be_judged(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"')
    run.send("k", {"i": 1})
    run.record("out", {"i": 1})
    run.record("out", None)
    verdict = done(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no JSON object as value, the first at out/0@1" in " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("sql_type", "sent", "right", "wrong"),
    [
        ("DOUBLE", "NaN", "NaN", "Infinity"),
        ("DOUBLE", "NaN", "NaN", "0"),
        ("DOUBLE", "-0.0", "0.0", "0.0000001"),
        ("DOUBLE", "0.1", "0.1", "0.10000000000000002"),
        (
            "DECIMAL(38,10)",
            "1234567890123456789012345678.0123456789",
            "1234567890123456789012345678.0123456789",
            "1234567890123456789012345678.0123456788",
        ),
        ("DECIMAL(10,2)", "1.50", "1.5", "1.51"),
        ("DECIMAL(10,2)", "-0.00", "0", "0.01"),
        ("BIGINT", "9007199254740993", "9007199254740993", "9007199254740992"),
        ("TIMESTAMPTZ", "2013-03-10 02:30:00-05", "2013-03-10 07:30:00+00", "2013-03-10 06:30:00+00"),
        ("TIMESTAMPTZ", "2013-11-03 01:30:00-04", "2013-11-03 06:30:00+01", "2013-11-03 06:30:00+00"),
        ("TIMESTAMP", "2013-01-01 00:00:00", "2013-01-01 00:00:00", "2013-01-01 00:00:00.000001"),
        ("DATE", "2013-01-01", "2013-01-01", "2012-12-31"),
    ],
)
@pytest.mark.parametrize("place", [{"topic": "out"}, {"table": "out"}])
def test_numbers_and_times(
    stored_run: Any, sql_type: str, sent: str, right: str, wrong: str, place: dict[str, str]
) -> None:
    run = scenario(stored_run, f'SELECT i, v::{sql_type} AS v, {PLAIN} FROM "in"', **place)
    for i in range(2):
        run.send("k", {"i": i, "v": sent})
    put = run.insert if "table" in place else run.record
    # In a topic, "1" is not the number 1; a table gives all values as text.
    value = {"DOUBLE": float, "BIGINT": int}.get(sql_type, str) if "topic" in place else str
    put("out", {"i": 0, "v": value(right)})
    put("out", {"i": 1, "v": value(wrong)})
    violated(run, wrong_value=1)
    (finding,) = judge(run.path).findings
    assert [w.identity for w in finding.witnesses] == [{"i": "1"}]


def test_null_is_neither_the_word_null_nor_an_empty_string(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, v, {PLAIN} FROM "in"')
    for i, (sent, found) in enumerate([(None, None), (None, "null"), ("", None), ("NULL", "NULL"), (None, "")]):
        run.send("k", {"i": i, "v": sent})
        run.record("out", {"i": i, "v": found})
    violated(run, wrong_value=3)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, pytest.param(100_000, marks=pytest.mark.full)])
def test_one_key_or_many(stored_run: Any, keys: int) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"', order="per-key")
    count = 100_000
    for i in range(count):
        run.send(f"k{i % keys}", {"i": i})
        run.record("out", {"i": i})
    held(run)
    outputs = run.tables["output"]
    outputs[70_000]["content"], outputs[70_001]["content"] = outputs[70_001]["content"], outputs[70_000]["content"]
    # Swap two neighbours: this breaks the order if they have the same key, and does not if they have different keys.
    verdict = judge(run.save())
    assert verdict.anomalies() == ({"reordered": 1} if keys == 1 else {})
    outputs[99_999]["content"] = outputs[99_998]["content"]
    assert judge(run.save()).anomalies() == {"duplicate": 1, "lost-write": 1, **verdict.anomalies()}


def test_empty_input_is_inconclusive(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT 1 AS i FROM "in"')
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the input topics hold no committed record" in verdict.reasons


def test_input_without_a_committed_record_is_inconclusive(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"')
    run.send("k", {"i": 1}, visibility="aborted")
    verdict = done(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the input topics hold no committed record" in verdict.reasons


def test_an_empty_output_is_not_held(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in"')
    run.send("k", {"i": 1})
    violated(run, lost_write=1)


def test_an_oracle_that_expects_nothing_is_inconclusive(stored_run: Any) -> None:
    run = scenario(stored_run, f'SELECT i, {PLAIN} FROM "in" WHERE i > 5')
    run.send("k", {"i": 1})
    verdict = done(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the oracle expects nothing in output out" in verdict.reasons


def test_a_table_without_the_columns_of_a_history_is_refused(clean_run: Any) -> None:
    run_dir = clean_run.save()
    schema = pa.schema([pa.field("topic", pa.string())], metadata={VERSION_KEY: str(VERSION).encode()})
    pq.write_table(schema.empty_table(), run_dir / "history" / "input.parquet")
    with pytest.raises(HistoryError, match="has other columns than a history of version"):
        judge(run_dir)
