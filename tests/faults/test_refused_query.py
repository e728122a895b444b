"""Which query of several Postgres refused, and when that cannot be decided."""

from __future__ import annotations

import pytest

from onceproof.faults.evidence.refused_query import attribute_refusals
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.outputs import OutputSpec

TABLE, TOPIC = {"table": "t", "identity": ["id"]}, {"topic": "o", "identity": ["id"]}


def batch(query: str, since: float, until: float | None, *, records: int = 5) -> Batch:
    return Batch(query, 0, {}, {"in": {0: records}}, None, since, 0, until, None if until is None else 0)


def outputs(**queries: str | None) -> dict[str, OutputSpec]:
    """Outputs with their queries: one named ``table_...`` is a table, any other a topic."""
    return {
        name: OutputSpec.model_validate((TABLE if name.startswith("table") else TOPIC) | {"query": query})
        for name, query in queries.items()
    }


BOTH_OPEN = [batch("a", 0, None), batch("b", 0, None)]


def test_the_only_query_with_an_open_batch_was_refused() -> None:
    found = attribute_refusals("a", [batch("a", 5, None), batch("b", 0, 4)], {}, requests=[], refusals=[6.0])
    assert found.decided and found.why == "only query a had a batch open while postgres refused"


def test_two_open_queries_that_may_both_use_postgres_cannot_be_decided() -> None:
    for known in ({}, outputs(table_one="a", table_two="b"), outputs(table_one=None, topic="b")):
        found = attribute_refusals("a", BOTH_OPEN, known, requests=[], refusals=[1.0])
        assert not found.decided
        assert found.why.startswith("which query was refused cannot be decided: a and b had batches open")


def test_an_open_query_whose_output_is_a_topic_was_not_refused() -> None:
    found = attribute_refusals("a", BOTH_OPEN, outputs(table="a", topic="b"), requests=[], refusals=[1.0])
    assert found.decided and found.why == "of the queries with an open batch only a uses postgres (b does not)"


def test_seen_requests_count_more_than_the_outputs() -> None:
    """Query b writes to a topic and reads from Postgres: a statement was sent while only b had a batch open."""
    before = [batch("a", 0, 1), batch("b", 0, 3), *BOTH_OPEN[:1], batch("b", 10, None)]
    before[2] = batch("a", 10, None)
    found = attribute_refusals("a", before, outputs(table="a", topic="b"), requests=[0.5, 2.0], refusals=[11.0])
    assert not found.decided and "a and b had batches open" in found.why


def test_a_query_that_completed_a_batch_without_a_statement_does_not_use_postgres() -> None:
    before = [batch("a", 0, 1), batch("b", 2, 3), batch("a", 10, None), batch("b", 10, None)]
    found = attribute_refusals("a", before, {}, requests=[0.5], refusals=[11.0])
    assert found.decided and "(b does not)" in found.why


def test_a_struck_query_that_does_not_use_postgres_was_not_refused() -> None:
    found = attribute_refusals("b", BOTH_OPEN, outputs(table="a", topic="b"), requests=[], refusals=[1.0])
    assert not found.decided
    assert found.why == "query b does not use postgres: a was refused"


@pytest.mark.parametrize("records", [0, 5])
def test_a_batch_without_input_and_without_a_statement_decides_nothing(records: int) -> None:
    before = [batch("a", 0, 1), batch("b", 2, 3, records=records), batch("a", 10, None), batch("b", 10, None)]
    assert attribute_refusals("a", before, {}, requests=[0.5], refusals=[11.0]).decided is bool(records)
