"""Nested values in topics and tables: correct ones are held, wrong ones are found, and none crashes the judge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.case.case import Case
from onceproof.judge.open import ON_DEMAND
from onceproof.judge.verdict import judge


def same(run: Any, where: str, columns: str = "*") -> Any:
    """A scenario whose output holds ``columns`` of each record."""
    meta = ("_topic", "_partition", "_offset", "_key", "_timestamp_ms", "_value")
    chosen = f"* EXCLUDE ({', '.join(meta)})" if columns == "*" else columns
    run.scenario["outputs"] = {"out": {where: "out", "identity": ["id"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": f'SELECT {chosen}, _partition, _offset FROM "in"'}}
    run.progress({0: 100})
    return run


def verdict(run: Any) -> Any:
    return judge(run.save())


@pytest.mark.parametrize(
    ("sent", "written"),
    [
        ('{"id":1,"s":{"b":[1.50,{"y":null,"x":2}],"a":"t"}}', '{"s":{"a":"t","b":[1.5,{"x":2.0,"y":null}]},"id":1}'),
        ('{"id":12345678901234567,"prices":[1.50,2.00]}', '{"id":12345678901234567,"prices":[1.5,2]}'),
        ('{"id":1,"p":[12345678901234567890.25]}', '{"id":1,"p":[12345678901234567890.25]}'),
        ('{"id":1,"e":[1e400]}', '{"id":1,"e":[1e400]}'),
    ],
)
def test_the_same_value_written_in_another_way_is_held(stored_run: Any, sent: str, written: str) -> None:
    run = same(stored_run, "topic")
    run.send("k", sent.encode())
    run.record("out", written)
    assert verdict(run).outcome == "held"


def test_decimals_in_a_list_next_to_a_long_number(stored_run: Any) -> None:
    run = same(stored_run, "topic", "id::DECIMAL(20,0) AS id, prices::DECIMAL(10,2)[] AS prices")
    run.send("k", b'{"id":12345678901234567,"prices":[1.50,2.00]}')
    run.record("out", '{"id":12345678901234567,"prices":[1.50,2.00]}')
    assert verdict(run).outcome == "held"


def test_a_field_of_mixed_types_passed_through(stored_run: Any) -> None:
    run = same(stored_run, "topic")
    for number, field in enumerate(('"x"', '{"a":1}', "null", "3", '"3"')):
        run.send("k", f'{{"id":{number},"v":{field}}}'.encode())
        run.record("out", f'{{"v":{field},"id":{number}}}')
    assert verdict(run).outcome == "held"
    run.tables["output"][-1]["content"] = '{"v":3,"id":4}'
    assert verdict(run).anomalies() == {"wrong-value": 1}


@pytest.mark.parametrize(("text", "anomaly"), [("{1,2}", {}), ("{2,1}", {"wrong-value": 1})])
def test_an_array_in_a_table(stored_run: Any, text: str, anomaly: dict[str, int]) -> None:
    run = same(stored_run, "table")
    run.send("k", {"id": 1, "a": [1, 2]})
    run.insert("out", {"id": 1, "a": text})
    assert verdict(run).anomalies() == anomaly


@pytest.mark.parametrize("odd", ["[1e99999999999999999999]", r'{"p":"\ud800"}', "[" * 3000 + "]" * 3000])
def test_a_value_that_cannot_be_read_is_wrong(stored_run: Any, odd: str) -> None:
    run = same(stored_run, "table")
    run.send("k", {"id": 1, "a": [1]})
    run.insert("out", {"id": 1, "a": odd})
    assert verdict(run).anomalies() == {"wrong-value": 1}


def test_values_in_an_aborted_transaction_are_not_read(stored_run: Any) -> None:
    run = same(stored_run, "topic")
    for number in (1, 2):
        run.send("k", {"id": number, "v": number})
        run.record("out", {"id": number, "v": number})
    run.record("out", "oops", visibility="aborted")
    run.batch(0, {0: (0, 2)}, by=(0, 1))
    run.fault(batch=0)
    run.document["wall_start"] = 1_000.0
    assert verdict(run).outcome == "held"


def test_all_checkers_report_the_same_cause_if_a_table_cannot_be_made(
    clean_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def broken(_case: Case) -> None:
        calls.append(1)
        raise ArithmeticError("no such number")

    monkeypatch.setitem(ON_DEMAND, "compare", broken)
    not_evaluated_why = verdict(clean_run).not_evaluated
    assert len(calls) == 1
    assert {"lost-write", "duplicate", "wrong-value"} <= not_evaluated_why.keys()
    assert all("no such number" in why for why in not_evaluated_why.values()), json.dumps(not_evaluated_why, indent=1)


@pytest.mark.parametrize("odd", ['{"id":0,}', '{"id":0,"v":[1,]}', '{"id":0, "v": {"a":1 , } }'])
def test_a_comma_after_the_last_member_is_no_json(stored_run: Any, odd: str) -> None:
    """DuckDB reads such a text; Jackson, and so Spark, does not."""
    run = same(stored_run, "topic", "id, v")
    for number in range(3):
        run.send("k", f'{{"id":{number},"v":[",]"]}}'.encode())
        run.record("out", f'{{"id":{number},"v":[",]"]}}')
    assert verdict(run).outcome == "held", "a comma in a text is not one after the last member"
    run.tables["output"][0]["content"] = odd
    found = verdict(run)
    assert found.outcome == "inconclusive"
    assert any("1 record has no JSON object as value" in why for why in found.reasons), found.reasons


def test_an_input_with_a_comma_after_its_last_member_has_no_fields(stored_run: Any) -> None:
    run = same(stored_run, "topic", "id")
    run.scenario["oracle"]["queries"]["out"] += " WHERE id IS NOT NULL"
    for text in (b'{"id":1,"v":[1]}', b'{"id":2,}'):
        run.send("k", text)
    run.record("out", '{"id":1}')
    assert verdict(run).outcome == "held"


def test_a_name_with_an_escaped_slash_is_the_same_name(stored_run: Any) -> None:
    run = same(stored_run, "topic", 'id, "a/b"')
    for number in range(2):
        run.send("k", f'{{"id":{number},"a/b":5}}'.encode())
        run.record("out", f'{{"id":{number},"a\\/b":5}}')
    assert verdict(run).outcome == "held"
    run.tables["output"][-1]["content"] = '{"id":1,"a\\/b":"5"}'
    assert verdict(run).anomalies() == {"wrong-value": 1}


def test_bytes_in_a_list_are_compared_and_shown_as_bytes(stored_run: Any) -> None:
    run = same(stored_run, "table", "id, [encode(a), encode(b)] AS parts")
    run.send("k", b'{"id":1,"a":"hi","b":"aGk="}')
    run.send("k", b'{"id":2,"a":"hi","b":"\\u00fc"}')
    run.insert("out", {"id": 1, "parts": '{"\\\\x6869","\\\\x61476b3d"}'})
    run.insert("out", {"id": 2, "parts": '{"\\\\x6869","\\\\xc3bc"}'})
    assert verdict(run).outcome == "held"
    run.tables["output"][-1]["content"] = json.dumps({"id": "2", "parts": '{"\\\\x6869","\\\\xc3bd"}'})
    assert verdict(run).anomalies() == {"wrong-value": 1}
