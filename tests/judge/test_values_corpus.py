"""Values from the input to the verdict: each case is a history with its expected anomalies."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from onceproof.judge.verdict import judge


@dataclass(frozen=True)
class History:
    """Input values and output values as JSON texts, record by record, and what the judge must find in them."""

    name: str
    sent: list[str]
    written: list[str]
    found: dict[str, int] = field(default_factory=dict)
    """Anomaly -> number; empty if the run is held."""
    columns: str = "*"
    """The columns that the oracle selects of each record."""
    table: bool = False
    """Whether the output is a table: its values are then text."""
    identity: str = "id"


def copied(name: str, *sent: str, **more: Any) -> History:
    """The output holds the same values as the input."""
    return History(name, list(sent), list(sent), **more)


def changed(name: str, sent: list[str], *written: str, **more: Any) -> History:
    """One value of the output differs."""
    return History(name, sent, list(written), {"wrong-value": 1}, **more)


BIG = ['{"id":1,"v":123456789012345678901}', '{"id":2,"v":5}']
MIXED = ['{"id":1,"v":9007199254740993}', '{"id":2,"v":1.5}']
CENTS = ['{"id":1,"v":12345678901234567.89}', '{"id":2,"v":0.10}']
UNSIGNED = ['{"id":1,"v":9223372036854775808}', '{"id":2,"v":18446744073709551615}', '{"id":3,"v":-1}']
WIDE = ['{"id":1,"v":1234567890123456789012345678901234567890.5}', '{"id":2,"v":1e-3}']
LISTS = ['{"id":1,"v":[12345678901234567.89]}', '{"id":2,"v":[1]}']
OBJECTS = ['{"id":1,"v":{"a":{"b":9007199254740993}}}', '{"id":2,"v":{"a":{"b":0.5}}}']
KINDS = ['{"id":1,"v":12345678901234567.89}', '{"id":2,"v":"x"}', '{"id":3,"v":[1.1]}']
TRADES = ['{"t":1,"T":1700000000001,"p":"0.10"}', '{"t":2,"T":1700000000002,"p":"0.20"}']
TRADE = "t_2 AS id, T_1 AS at, p"

HISTORIES = [
    copied("integers beyond 64 bits", *BIG),
    changed("integers beyond 64 bits that differ in the last digit", BIG, '{"id":1,"v":123456789012345678902}', BIG[1]),
    copied("an integer beyond 64 bits as HUGEINT", *BIG, columns="id, v::HUGEINT AS v"),
    copied("an integer beyond doubles next to a fraction", *MIXED),
    changed("its neighbour", MIXED, '{"id":1,"v":9007199254740992}', MIXED[1]),
    copied("cents of a large amount", *CENTS),
    changed("one cent", CENTS, '{"id":1,"v":12345678901234567.91}', CENTS[1]),
    copied("cents of a large amount as DECIMAL", *CENTS, columns="id, v::DECIMAL(20,2) AS v"),
    changed(
        "one cent as DECIMAL", CENTS, '{"id":1,"v":12345678901234567.9}', CENTS[1], columns="id, v::DECIMAL(20,2) AS v"
    ),
    History(
        "short fractions as decimals of many places",
        ['{"id":1,"v":1.15}', '{"id":2,"v":1.005}'],
        ['{"id":1,"v":"1.150000000000000000"}', '{"id":2,"v":"1.005000000000000000"}'],
        columns="id, v::DECIMAL(38,18) AS v",
    ),
    History("rounded half up", ['{"id":1,"v":1.005}'], ['{"id":1,"v":1.01}'], columns="id, v::DECIMAL(20,2) AS v"),
    copied("integers between 63 and 64 bits", *UNSIGNED),
    changed("one less", UNSIGNED, UNSIGNED[0], '{"id":2,"v":18446744073709551614}', UNSIGNED[2]),
    copied("more digits than any decimal has", *WIDE),
    changed("the last of them", WIDE, '{"id":1,"v":1234567890123456789012345678901234567890.6}', WIDE[1]),
    copied("numbers too large for a double", '{"id":1,"v":1e400}', '{"id":2,"v":2e400}'),
    changed("another one", ['{"id":1,"v":1e400}'], '{"id":1,"v":2e400}'),
    copied("large doubles", '{"id":1,"v":1.7976931348623157E308}', '{"id":2,"v":4.9E-324}'),
    History("a double written otherwise", ['{"id":1,"v":10000000000.5}'], ['{"id":1,"v":1.00000000005E10}']),
    copied("long fractions in a list", *LISTS),
    changed("one of them", LISTS, '{"id":1,"v":[12345678901234567.91]}', LISTS[1]),
    copied("integers beyond doubles in objects", *OBJECTS),
    changed("one of those", OBJECTS, '{"id":1,"v":{"a":{"b":9007199254740992}}}', OBJECTS[1]),
    copied("several types in one field", *KINDS),
    changed("a digit in one of them", KINDS, '{"id":1,"v":12345678901234567.9}', *KINDS[1:]),
    changed(
        "a fraction where a whole number is expected",
        ['{"id":1,"v":12345678901234568}'],
        '{"id":1,"v":12345678901234567.6}',
    ),
    # Tables hold text.
    History("big numbers in a table", [*BIG, '{"id":3,"v":0.5}'], [*BIG, '{"id":3,"v":0.50}'], table=True),
    changed("another one in a table", MIXED, '{"id":1,"v":"9007199254740992"}', MIXED[1], table=True),
    History(
        "an array of a table", LISTS, ['{"id":1,"v":"{12345678901234567.89}"}', '{"id":2,"v":"{1.00}"}'], table=True
    ),
    # Strings and numbers.
    changed("a text where a whole number is expected", ['{"id":1,"v":5}'], '{"id":1,"v":"5"}'),
    changed("a text where a fraction is expected", ['{"id":1,"v":5.5}'], '{"id":1,"v":"5.5"}'),
    changed("a number where a text is expected", ['{"id":1,"v":"5"}'], '{"id":1,"v":5}'),
    changed("a truth value where a text is expected", ['{"id":1,"v":"true"}'], '{"id":1,"v":true}'),
    changed("a text where a truth value is expected", ['{"id":1,"v":true}'], '{"id":1,"v":"true"}'),
    changed("underscores make no number", ['{"id":1,"v":1000.5}'], '{"id":1,"v":"1_000.5"}', table=True),
    History("a DECIMAL as text", ['{"id":1,"v":"5.50"}'], ['{"id":1,"v":"5.5"}'], columns="id, v::DECIMAL(9,2) AS v"),
    History("a DECIMAL as number", ['{"id":1,"v":"5.50"}'], ['{"id":1,"v":5.5}'], columns="id, v::DECIMAL(9,2) AS v"),
    History("a number of 128 bits as text", ['{"id":1,"v":5}'], ['{"id":1,"v":"5"}'], columns="id, v::HUGEINT AS v"),
    History(
        "a time as text",
        ['{"id":1,"v":"2024-01-02 03:04:05"}'],
        ['{"id":1,"v":"2024-01-02T03:04:05.000Z"}'],
        columns="id, v::TIMESTAMP AS v",
    ),
    History(
        "words for what is not a number", ['{"id":1,"v":"NaN"}'], ['{"id":1,"v":"NaN"}'], columns="id, v::DOUBLE AS v"
    ),
    History("an escaped name", ['{"id":1,"v":5}'], ['{"id":1,"\\u0076":5}']),
    changed("a text under an escaped name", ['{"id":1,"v":5}'], '{"id":1,"\\u0076":"5"}'),
    # The same name twice in one object: the last counts.
    History("a name twice in the input", ['{"id":1,"v":"a","v":"b"}'], ['{"id":1,"v":"b"}']),
    changed("its first value", ['{"id":1,"v":"a","v":"b"}'], '{"id":1,"v":"a"}'),
    History("a name twice within", ['{"id":1,"v":{"a":1,"a":2}}'], ['{"id":1,"v":{"a":2}}']),
    changed("its first value within", ['{"id":1,"v":{"a":1,"a":2}}'], '{"id":1,"v":{"a":1}}'),
    History("a name twice in the output", ['{"id":1,"v":"b"}'], ['{"id":1,"v":"a","v":"b"}']),
    changed("the first of them", ['{"id":1,"v":"a"}'], '{"id":1,"v":"a","v":"b"}'),
    # Names that differ only by case.
    copied("names that differ by case, copied", *TRADES, identity="t_2"),
    History(
        "names that differ by case, renamed by the job",
        TRADES,
        ['{"id":1,"at":1700000000001,"p":"0.10"}', '{"id":2,"at":1700000000002,"p":"0.20"}'],
        columns=TRADE,
    ),
    changed(
        "names that differ by case, one for the other",
        TRADES,
        '{"id":1,"at":1,"p":"0.10"}',
        '{"id":2,"at":1700000000002,"p":"0.20"}',
        columns=TRADE,
    ),
    changed("names that differ by case, copied wrong", TRADES, '{"t":1,"T":1,"p":"0.10"}', TRADES[1], identity="t_2"),
    History("one of them is null and left out", ['{"id":1,"T":1,"t":null}'], ['{"id":1,"T":1}']),
    changed("and the other is wrong", ['{"id":1,"T":1,"t":null}'], '{"id":1,"T":2}'),
    changed("one of them is lost in each record", ['{"id":1,"T":1,"t":2}'], '{"id":1,"T":1}'),
    History("one of them next to a name like theirs", ['{"id":1,"T":1,"t":null,"x_1":5}'], ['{"id":1,"T":1,"x_1":5}']),
    copied("columns of a table that differ by case", *TRADES, identity="t_2", table=True),
    copied("names within that differ by case", '{"id":1,"v":{"t":1,"T":2.5}}', '{"id":2,"v":{"t":3}}'),
    changed("one of them within", ['{"id":1,"v":{"t":1,"T":2}}'], '{"id":1,"v":{"t":1,"T":1}}'),
    # Types with several spellings.
    History("a float", ['{"id":1,"v":0.1}'], ['{"id":1,"v":0.10000000149011612}'], columns="id, v::FLOAT AS v"),
    changed("another float", ['{"id":1,"v":0.1}'], '{"id":1,"v":0.1000001}', columns="id, v::FLOAT AS v"),
    History(
        "a time of day", ['{"id":1,"v":"10:15:00.5"}'], ['{"id":1,"v":"10:15:00.500000"}'], columns="id, v::TIME AS v"
    ),
    History("a duration", ['{"id":1,"v":"1 day"}'], ['{"id":1,"v":"24:00:00"}'], columns="id, v::INTERVAL AS v"),
    changed("a longer one", ['{"id":1,"v":"1 day"}'], '{"id":1,"v":"24:00:01"}', columns="id, v::INTERVAL AS v"),
    changed("a month", ['{"id":1,"v":"1 month"}'], '{"id":1,"v":"30 days"}', columns="id, v::INTERVAL AS v"),
    History("a map", ['{"id":1,"v":2.5}'], ['{"id":1,"v":{"a":2.50}}'], columns="id, MAP {'a': v::DECIMAL(9,2)} AS v"),
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_the_judge_finds_the_expected_anomalies(stored_run: Any, history: History) -> None:
    run = stored_run
    meta = "_topic, _partition, _offset, _key, _timestamp_ms, _value"
    chosen = f"* EXCLUDE ({meta})" if history.columns == "*" else history.columns
    run.scenario["outputs"] = {"out": {"table" if history.table else "topic": "out", "identity": [history.identity]}}
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"out": f'SELECT {chosen}, _partition, _offset, _key FROM "in"'},
    }
    for text in history.sent:
        run.send("k", text.encode())
    for text in history.written:
        if history.table:
            run.insert("out", json.loads(text, parse_float=str, parse_int=str))
        else:
            run.record("out", text)
    run.batch(0, {0: (0, len(history.sent))})
    run.progress({0: len(history.sent)})
    verdict = judge(run.save())
    assert verdict.not_evaluated == {}
    assert (verdict.anomalies(), verdict.outcome) == (history.found, "violated" if history.found else "held"), (
        verdict.reasons
    )


@pytest.mark.parametrize(("more", "found"), [(1, {}), (5, {"wrong-value": 1})])
@pytest.mark.parametrize("digits", [10, 20, 30, 38, 45, 300])
def test_a_tolerance_of_large_numbers(stored_run: Any, digits: int, more: int, found: dict[str, int]) -> None:
    """Two numbers of many digits may be the same double although they differ by more than the tolerance."""
    run, least = stored_run, 10 ** (digits - 1)
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"], "tolerance": {"v": {"absolute": 1}}}}
    query = 'SELECT id, v, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.send("k", {"id": 1, "v": least})
    run.record("out", {"id": 1, "v": least + more}, key="k")
    run.progress({0: 1})
    assert judge(run.save()).anomalies() == found
