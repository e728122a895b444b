"""Texts of one pattern have different digests: two with the same digest would count as one identity, or as one key."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase

import duckdb
import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge
from onceproof.values import digest

from .conftest import StoredRun

# Letters at the ends of two neighbouring groups of eight bytes.
LETTERS = list(product(ascii_lowercase, repeat=2))


def test_texts_of_one_pattern_have_different_digests() -> None:
    names = """SELECT '{"id":"' || chr(97 + a.range::INTEGER) || '","b":"' || chr(97 + b.range::INTEGER) || '"}' AS name
               FROM range(26) a, range(26) b"""
    query = f"SELECT count(*), count(DISTINCT hash(name)), count(DISTINCT {digest.of_text('name')}) FROM ({names})"
    names_, by_duckdb, by_digest = duckdb.connect().execute(query).fetchone() or ()
    assert (names_, by_digest) == (676, 676)
    assert by_duckdb < 676  # otherwise DuckDB's own hash, which is faster, would do


@pytest.mark.parametrize("kind", ["append", "upsert", "changelog"])
def test_identities_of_one_pattern_are_distinguished(stored_run: StoredRun, kind: str) -> None:
    order = "none" if kind == "upsert" else "per-key"  # an upsert's last states show no order
    verdict = judge(_run(stored_run, kind, ["id", "b"], order).save())
    assert verdict.findings == ()
    assert (verdict.outcome, verdict.not_evaluated) == (Outcome.HELD, {})


def test_keys_of_one_pattern_are_distinguished(stored_run: StoredRun) -> None:
    verdict = judge(_run(stored_run, "append", ["n"], "per-key").save())
    assert verdict.findings == ()
    assert verdict.outcome == Outcome.HELD


def _run(run: StoredRun, kind: str, identity: list[str], order: str) -> StoredRun:
    """Each key has one record, so that their effects may be in any order."""
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": identity, "kind": kind}}
    query = 'SELECT id, b, n, _topic, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    run.scenario["claim"] = {"order": order}
    records = [
        (f"flight/{one}/carrie{other}", {"id": one, "b": other, "n": n}) for n, (one, other) in enumerate(LETTERS)
    ]
    for key, value in records:
        run.send(key, value)
    for key, value in reversed(records):
        run.record("events", value)
        run.tables["output"][-1]["key"] = key.encode()
    run.batch(0, {0: (0, len(records))})
    run.progress({0: len(records)})
    return run
