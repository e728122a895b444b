"""Problems of an oracle are reported before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.oracle import oracles
from onceproof.scenario.model import Scenario


def scenario(topics: tuple[str, ...] = ("flights",)) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "s",
            "input": [{"topic": topic, "dataset": "numbers"} for topic in topics],
            "pipeline": {"command": ["job"]},
            "outputs": {"departures": {"topic": "d", "identity": ["p", "o"]}},
            "oracle": {"kind": "reference"},
        }
    )


def problems(document: dict[str, Any], *topics: str) -> list[tuple[tuple[str | int, ...], str]]:
    kind = oracles.get(document["kind"])
    spec = kind.Spec.model_validate(document)
    found = kind.problems(spec, scenario(topics or ("flights",)))
    return [(p.loc, p.message if p.hint is None else f"{p.message} | {p.hint}") for p in found]


def test_a_valid_sql_oracle_has_no_problems() -> None:
    assert problems({"kind": "sql", "queries": {"departures": "WITH x AS (SELECT 1) SELECT * FROM x; -- done"}}) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("DELETE FROM flights", "a SELECT is wanted here, not DELETE"),
        ("COPY (SELECT 1) TO 'x'", "a SELECT is wanted here, not COPY"),
        ("SELECT 1; SELECT 2", "there are 2 statements"),
        ("", "there are 0 statements"),
        ("SELECT p, o FROM history.output", "it reads history.output, which is what the pipeline wrote"),
        ('WITH x AS (FROM "History"."SNAPSHOT") FROM x', "it reads history.snapshot, which is what the pipeline wrote"),
        ("SELECT p FROM flights WHERE random() < 0.5", "random() gives another value at each check"),
        ("SELECT p, now() AS loaded FROM flights", "now() gives another value at each check"),
        ("SELECT p FROM flights WHERE day < current_date", "current_date gives another value at each check"),
    ],
)
def test_invalid_sql_is_reported(query: str, message: str) -> None:
    ((loc, found),) = problems({"kind": "sql", "queries": {"departures": query}})
    assert loc == ("queries", "departures")
    assert message in found


def test_sql_may_read_the_observed_input_and_columns_named_like_functions() -> None:
    query = "SELECT f.now, f.current_date FROM flights f SEMI JOIN history.input i ON i.offset = f._offset"
    assert problems({"kind": "sql", "queries": {"departures": query}}) == []


def test_outputs_without_a_query_and_queries_without_an_output_are_reported() -> None:
    (unknown, missing) = problems({"kind": "sql", "queries": {"departure": "SELECT 1"}})
    assert unknown == (("queries", "departure"), "there is no output 'departure' | did you mean 'departures'?")
    assert missing[0] == ("queries",)
    assert "says nothing about output 'departures'" in missing[1]


def identity(**changes: Any) -> dict[str, Any]:
    return {"kind": "identity", "columns": {"departures": {"p": "_partition", "o": "_offset"}}, **changes}


def test_a_valid_identity_oracle_has_no_problems() -> None:
    assert problems(identity(where={"departures": "dep_time IS NOT NULL -- not cancelled"})) == []


@pytest.mark.parametrize(
    ("document", "loc", "message"),
    [
        (
            identity(columns={"departures": {"p": "_partition"}}),
            ("columns", "departures"),
            "'o' of output 'departures' is missing",
        ),
        (
            identity(columns={"departures": {"p": "1", "o": "1", "q": "1"}}),
            ("columns", "departures", "q"),
            "'q' is not part of the identity",
        ),
        (identity(columns={"departures": {"p": "1", "o": "1 +"}}), ("columns", "departures", "o"), "syntax error"),
        (
            identity(columns={"departures": {"p": "1", "o": "1); DROP TABLE x; SELECT (1"}}),
            ("columns", "departures", "o"),
            "3 statements",
        ),
        (identity(where={"departures": "AND"}), ("where", "departures"), "syntax error"),
        (identity(where={"departure": "true"}), ("where", "departure"), "did you mean 'departures'?"),
        (identity(topic="flight"), ("topic",), "did you mean 'flights'?"),
    ],
)
def test_an_invalid_identity_oracle_is_reported(document: dict[str, Any], loc: tuple[str, ...], message: str) -> None:
    ((found_loc, found),) = problems(document)
    assert found_loc == loc
    assert message in found


def test_identity_must_name_one_of_several_topics() -> None:
    ((_, found),) = problems(identity(), "flights", "weather")
    assert "which input topic? There are flights, weather" in found
    assert problems(identity(topic="weather"), "flights", "weather") == []
