"""Truth values in a database that has only numbers: MariaDB's BOOLEAN is TINYINT(1), SQLite's gives 0 and 1."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.history.schema import TABLES
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

QUERY = 'SELECT _partition AS p, _offset AS o, {flag} AS flag, _topic, _partition, _offset, _key FROM "in"'


def fill(run: Any, column_type: str, flags: tuple[str, str], expected: str = "n > 0") -> None:
    """One table in a database, with ``flags`` for what the oracle expects to be false and true."""
    run.scenario["outputs"] = {"rows": {"sql_table": "rows", "url_env": "SHOP_DATABASE", "identity": ["p", "o"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": QUERY.format(flag=expected)}}
    for n in range(4):
        offset = run.send("k", {"n": n % 2})
        content = json.dumps({"p": "0", "o": str(offset), "flag": flags[n % 2]})
        run.tables["snapshot"].append({**dict.fromkeys(TABLES["snapshot"].names), "output": "rows", "content": content})
    run.document["outputs"] = {"rows": {"columns": {"p": "INTEGER", "o": "BIGINT", "flag": column_type}, "rows": 4}}


@pytest.mark.parametrize(
    ("column_type", "flags"),
    [
        ("TINYINT(1)", ("0", "1")),
        ("BOOLEAN", ("0", "1")),
        ("BIT(1)", ("\\x00", "\\x01")),
        ("BOOLEAN", ("false", "true")),
    ],
)
def test_a_bit_equals_the_truth_value_that_is_expected(
    stored_run: Any, column_type: str, flags: tuple[str, str]
) -> None:
    fill(stored_run, column_type, flags)
    verdict = judge(stored_run.save())
    assert verdict.outcome is Outcome.HELD, (verdict.reasons, verdict.findings)


@pytest.mark.parametrize(
    ("column_type", "flags", "expected"),
    [
        ("TINYINT(1)", ("1", "0"), "n > 0"),
        ("TINYINT(1)", ("0", "2"), "n > 0"),
        ("INTEGER", ("0", "1"), "n > 0"),
        ("TINYINT(1)", ("0", "1"), "n + 1"),
    ],
)
def test_another_number_or_another_type_is_still_wrong(
    stored_run: Any, column_type: str, flags: tuple[str, str], expected: str
) -> None:
    fill(stored_run, column_type, flags, expected)
    verdict = judge(stored_run.save())
    assert "wrong-value" in {finding.anomaly for finding in verdict.findings}


def test_a_bit_is_a_number_where_a_number_is_expected(stored_run: Any) -> None:
    fill(stored_run, "TINYINT(1)", ("0", "1"), "n")
    assert judge(stored_run.save()).outcome is Outcome.HELD
