"""Whose requests were refused, where several queries may have sent them."""

from __future__ import annotations

import pytest

from onceproof.faults.evidence.refused_query import whose_refusals
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.outputs import OutputSpec

TABLE, TOPIC = {"table": "t", "identity": ["id"]}, {"topic": "o", "identity": ["id"]}


def batch(query: str, since: float, until: float | None, *, records: int = 5) -> Batch:
    return Batch(query, 0, {}, {"in": {0: records}}, None, since, 0, until, None if until is None else 0)


def outputs(**queries: str | None) -> dict[str, OutputSpec]:
    """Output ``table_...`` is a table, any other a topic; each with its query."""
    return {
        name: OutputSpec.model_validate((TABLE if name.startswith("table") else TOPIC) | {"query": query})
        for name, query in queries.items()
    }


BOTH_OPEN = [batch("a", 0, None), batch("b", 0, None)]


def test_the_only_query_that_was_open_was_refused() -> None:
    found = whose_refusals("a", [batch("a", 5, None), batch("b", 0, 4)], {}, requests=[], refusals=[6.0])
    assert found.decided and found.why == "no other query than a was open while postgres refused"


def test_two_open_queries_that_may_both_use_it_are_not_decidable() -> None:
    for known in ({}, outputs(table_one="a", table_two="b"), outputs(table_one=None, topic="b")):
        found = whose_refusals("a", BOTH_OPEN, known, requests=[], refusals=[1.0])
        assert not found.decided
        assert found.why.startswith("not decidable: queries a and b were open while postgres refused")


def test_the_other_one_writes_elsewhere_by_the_outputs() -> None:
    found = whose_refusals("a", BOTH_OPEN, outputs(table="a", topic="b"), requests=[], refusals=[1.0])
    assert found.decided and found.why == "of the queries that were open only a uses postgres (b does not)"


def test_what_was_seen_counts_more_than_what_the_outputs_say() -> None:
    """Query b writes to a topic, and looks something up in Postgres: a statement came while it alone was open."""
    before = [batch("a", 0, 1), batch("b", 0, 3), *BOTH_OPEN[:1], batch("b", 10, None)]
    before[2] = batch("a", 10, None)
    found = whose_refusals("a", before, outputs(table="a", topic="b"), requests=[0.5, 2.0], refusals=[11.0])
    assert not found.decided and "queries a and b" in found.why


def test_a_query_with_a_whole_batch_and_no_statement_does_not_use_it() -> None:
    before = [batch("a", 0, 1), batch("b", 2, 3), batch("a", 10, None), batch("b", 10, None)]
    found = whose_refusals("a", before, {}, requests=[0.5], refusals=[11.0])
    assert found.decided and "(b does not)" in found.why


def test_a_struck_query_that_does_not_use_it_was_not_refused() -> None:
    found = whose_refusals("b", BOTH_OPEN, outputs(table="a", topic="b"), requests=[], refusals=[1.0])
    assert not found.decided
    assert found.why == "query b does not use postgres: it was a that was refused"


@pytest.mark.parametrize("records", [0, 5])
def test_a_batch_without_input_that_sends_nothing_says_nothing(records: int) -> None:
    before = [batch("a", 0, 1), batch("b", 2, 3, records=records), batch("a", 10, None), batch("b", 10, None)]
    assert whose_refusals("a", before, {}, requests=[0.5], refusals=[11.0]).decided is bool(records)
