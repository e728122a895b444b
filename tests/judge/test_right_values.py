"""Values that a correct job writes are held, and only these, whichever way the judge compares them."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.relations import digests
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.inputs import InputRecords


@pytest.fixture(params=["rows", "digests"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compare: row by row, and digests first."""
    if request.param == "digests":
        monkeypatch.setattr(digests, "MOST_WHOLE", -1)
        monkeypatch.setattr(InputRecords, "is_cheap", lambda _: False)


def judged(run: Any, sent: list[str], found: list[str], columns: str = "id, x", **output: Any) -> Any:
    """The verdict on records, and on the records of a job that should have written ``columns`` of each."""
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"], **output}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": f'SELECT {columns}, _partition, _offset FROM "in"'}}
    for text in sent:
        run.send("k", text.encode())
    for text in found:
        run.record("out", text)
    run.progress({0: 100})
    return judge(run.save())


@pytest.mark.parametrize("found", ['{"a":1}', '{"a":1,"b":null}', '{"b":null,"a":1}'])
def test_an_optional_member_of_an_object_is_missing(stored_run: Any, found: str) -> None:
    whole = '{"id":1,"x":{"a":1,"b":2}}'
    sent = [whole, '{"id":2,"x":{"a":1}}']
    assert judged(stored_run, sent, [whole, f'{{"id":2,"x":{found}}}']).outcome == "held"


@pytest.mark.parametrize("found", ["{}", '{"a":1,"b":3}', '{"a":null}', '{"a":1,"c":null}', "null", '[{"a":1}]'])
def test_another_object_is_wrong(stored_run: Any, found: str) -> None:
    whole = '{"id":1,"x":{"a":1,"b":2}}'
    sent = [whole, '{"id":2,"x":{"a":1}}']
    verdict = judged(stored_run, sent, [whole, f'{{"id":2,"x":{found}}}'])
    assert verdict.anomalies() == {"wrong-value": 1}


@pytest.mark.parametrize("value", ["{}", "[{}]", '{{"a":{}}}'])
@pytest.mark.parametrize("number", ["100000000000000000000", "18446744073709551616", "-36893488147419103232"])
def test_whole_numbers_beyond_64_bits_keep_their_digits(stored_run: Any, number: str, value: str) -> None:
    text = '{{"id":1,"x":{}}}'
    right = text.format(value.format(number))
    wrong = text.format(value.format(number[:-1] + "1"))
    small = '{"id":2,"x":null}'
    verdict = judged(stored_run, [right, small], [wrong, small])
    assert verdict.anomalies() == {"wrong-value": 1}
    stored_run.tables["output"][0]["content"] = right
    assert judge(stored_run.save()).outcome == "held"


@pytest.mark.parametrize(
    ("column", "right", "wrong"),
    [
        ("x", '{"a":1}', '"{\\"a\\":1}"'),
        ("MAP {'a': 1}", '{"a":1}', '"{\\"a\\":1}"'),
        ("[1, 2]", "[1,2]", '"[1,2]"'),
        ("[1, 2]", "[1,2]", '"{1,2}"'),
        ("[]::INTEGER[]", "[]", "{}"),
        ("[]::INTEGER[]", "[]", '"{}"'),
        ("""'{"a":1}'""", '"{\\"a\\":1}"', '{"a":1}'),
        ("'[1,2]'", '"[1,2]"', "[1,2]"),
    ],
)
def test_a_string_is_not_the_value_that_its_json_means(stored_run: Any, column: str, right: str, wrong: str) -> None:
    sent = ['{"id":1,"x":{"a":1}}', '{"id":2,"x":{"a":1}}']
    found = [f'{{"id":1,"x":{right}}}', f'{{"id":2,"x":{wrong}}}']
    assert judged(stored_run, sent, found, f"id, {column} AS x").anomalies() == {"wrong-value": 1}
    stored_run.tables["output"][1]["content"] = found[0].replace('"id":1', '"id":2')
    assert judge(stored_run.save()).outcome == "held"


def test_a_value_in_an_upsert_topic_that_is_not_json_makes_it_unreadable(stored_run: Any) -> None:
    sent = ['{"id":1,"x":1}', '{"id":2,"x":2}']
    verdict = judged(stored_run, sent, [sent[0], "garbage", sent[1]], kind="upsert")
    assert verdict.outcome == "inconclusive"
    assert any(reason.startswith("output out cannot be judged") for reason in verdict.reasons), verdict.reasons
