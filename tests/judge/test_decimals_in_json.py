"""Decimals in JSON keep all their digits, with and without other long numbers in the row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.verdict import judge

from .test_models import anomalies, put, scenario


@pytest.mark.parametrize(
    ("digits", "outcome"), [("0.123456789012345678", "held"), ("0.123456789012345679", "violated")]
)
def test_a_decimal_in_json_keeps_all_its_digits(stored_run: Any, digits: str, outcome: str) -> None:
    text = 'a "1.5": 0.123456789012345678\\'
    query = f"""SELECT k, 0.123456789012345678::DECIMAL(38, 18) AS d, -12345678901234567890::DECIMAL(38, 0) AS n,
                       {len(text)} AS m, '{text}' AS t, [{{'a': 1.5}}] AS l FROM "in" """
    run = scenario(stored_run, query, topic="out")
    run.send("a", {"k": "a"})
    row = f"""{{"t": {json.dumps(text)}, "k":"a", "n": -12345678901234567890,"d": {digits} , "m":{len(text)}, "l": [{{"a": 1.5}}]}}"""
    put(run, "a", row)
    verdict = judge(run.save())
    assert verdict.outcome == outcome, verdict.reasons
    assert all("in d: " in finding.summary for finding in verdict.findings)


def test_decimals_in_json_with_and_without_long_numbers(stored_run: Any) -> None:
    """In a row with a long number, all decimals are read a second time; in other rows, none is."""
    run = scenario(stored_run, 'SELECT k, a::DECIMAL(38, 18) AS a, b::DECIMAL(9, 2) AS b, t FROM "in"', topic="out")
    for k, a, b, text in (
        ("short", "1.50", "2", '"x"'),
        ("long", "0.125", "2.5", '"1234567890.1234567890"'),
        ("none", "null", "null", "null"),
        ("mixed", "null", "7.10", '"12345678901234567"'),
    ):
        run.send(k, f'{{"k": "{k}", "a": {a}, "b": {b}, "t": {text}}}'.encode())
        put(run, k, f'{{"k": "{k}", "a": {a}, "b": {b}, "t": {text}}}')
    assert anomalies(run) == {}
    run.tables["output"][-1]["content"] = run.tables["output"][-1]["content"].replace("7.10", "7.11")
    assert anomalies(run) == {"wrong-value": 1}
