"""Values that Python or UTF-8 cannot represent give a verdict or a clear error, and never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app

#: Written into the record's JSON as it is here.
VALUES = [
    '"half \\ud800"',
    '"\\udfff\\ud800"',
    '{"deep": "\\udc00"}',
    '["\\ud83d"]',
    '"\\u0000"',
]


def checked(run: Any) -> str:
    done = CliRunner().invoke(app, ["check", str(run.save()), "--json"])
    assert "onceproof itself failed" not in done.output, done.output
    assert "Traceback" not in done.output, done.output
    assert done.exit_code in (0, 1, 3), done.output
    return str(json.loads(done.stdout)["verdict"])


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("value", VALUES)
def test_half_of_a_surrogate_pair_in_a_value(stored_run: Any, value: str, wrong: bool) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"]}}
    query = 'SELECT i, s, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for i in range(2):
        text = f'{{"i": {i}, "s": {value if i else json.dumps("x")}}}'
        run.send("k", text.encode())
        run.record("out", text.replace("deep", "other").replace("half", "other") if wrong else text)
    run.progress({0: 2})
    assert checked(run) in (
        ("violated", "inconclusive") if wrong and ("deep" in value or "half" in value) else ("held", "inconclusive")
    )


@pytest.mark.parametrize("ms", [253_402_300_800_000, 9_000_000_000_000_000, -99_999_999_999_999, 2**63 - 1, -(2**63)])
def test_times_beyond_the_calendar(stored_run: Any, ms: int) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"]}}
    query = 'SELECT i, _timestamp_ms AS at, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.send("k", {"i": 1})
    run.tables["input"][-1]["timestamp_ms"] = ms
    run.record("out", {"i": 1, "at": ms})
    run.tables["output"][-1]["timestamp_ms"] = ms
    run.batch(1, {0: (0, 1)})
    run.tables["batches"][-1]["watermark_ms"] = ms
    run.progress({0: 1})
    assert checked(run) == "held"


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMPTZ", "DATE"])
@pytest.mark.parametrize("text", ["10000-01-01 00:00:00", "290000-12-31 00:00:00", "0044-03-15 (BC) 00:00:00"])
def test_a_time_in_the_year_10000(stored_run: Any, text: str, kind: str, wrong: bool) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i", "at"]}}
    text = text.split()[0] + text[len(text.split()[0]) :] if kind != "DATE" else text.replace(" 00:00:00", "")
    query = f'SELECT i, at::{kind} AS at, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.send("k", {"i": 1, "at": text})
    run.record("out", {"i": 1, "at": text})
    if wrong:
        run.record("out", {"i": 1, "at": text})
    run.batch(1, {0: (0, 1)})
    run.progress({0: 1})
    assert checked(run) in (("violated", "inconclusive") if wrong else ("held", "inconclusive"))
