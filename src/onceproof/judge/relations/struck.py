"""Determines whether a fault struck the batch of a lost effect: fills in ``reason`` and ``batch`` in ``judge.missing``.

The reason is ``fault`` if a fault struck the batch, ``no fault`` if none was active in it, and ``unknown`` otherwise: the batch
is unknown, or a fault was active at that time and struck another batch. Happening at the same time does not make it the cause.

An effect of several records (a sum, a window, a join) has no single record that determines its batch. Its batch is found

- by when its **window** closes (``_closes``): the first batch whose watermark reaches that time writes the effect;
- by what it **follows** from: the oracle expects exactly this effect from the input of the struck batch alone, and expects no
  effect of this identity from all input except that of struck batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from onceproof.base.errors import NotEvaluated
from onceproof.judge.relations import expected
from onceproof.oracle import oracle_of
from onceproof.oracle.contract.inputs import Range, View
from onceproof.oracle.contract.precomputed import PrecomputedOracle

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# The oracle is asked again for each struck batch, so limit their number.
_MOST_BATCHES = 16

_CLOSED_IN = """
    UPDATE judge.missing m SET query = $query, batch = w.batch, found_by = 'window', fault = f.struck, active = f.active
    FROM (SELECT m.rowid AS r, min(b.batch) AS batch FROM judge.missing m JOIN judge.batches b
              ON b.query = $query AND 1000 * b.watermark_ms >= m.closes_us
          WHERE m.output = $output AND m.batch IS NULL AND m.closes_us IS NOT NULL GROUP BY m.rowid) w
    LEFT JOIN (SELECT batch, string_agg(fault, ', ' ORDER BY fault) FILTER (struck) AS struck,
                      string_agg(fault, ', ' ORDER BY fault) FILTER (NOT struck) AS active
               FROM judge.windows WHERE query = $query GROUP BY batch) f ON f.batch = w.batch
    WHERE m.rowid = w.r"""

_STRUCK = """
    SELECT batch, string_agg(DISTINCT fault, ', ' ORDER BY fault) AS fault FROM judge.windows
    WHERE query = $query AND struck GROUP BY batch ORDER BY batch"""

_WITHOUT_FAULT = """
    SELECT count(*) FROM judge.missing WHERE output = $output AND "offset" IS NULL AND fault IS NULL"""

_FOLLOWS = """
    UPDATE judge.missing m SET query = $query, batch = $batch, found_by = 'follows', fault = $fault, active = NULL
    WHERE m.output = $output AND m."offset" IS NULL AND m.fault IS NULL
      AND EXISTS (FROM judge.follows f WHERE f.output = m.output AND f.id = m.id AND f.content = m.content)
      AND NOT EXISTS (FROM judge.follows_otherwise f WHERE f.output = m.output AND f.id = m.id)"""

_REASONS = """
    UPDATE judge.missing SET reason = CASE
        WHEN fault IS NOT NULL THEN 'fault'
        WHEN active IS NOT NULL OR $imported THEN 'unknown'
        WHEN (batch IS NULL OR found_by = 'window') AND EXISTS (
            FROM history.faults f WHERE f.fired_at IS NOT NULL AND (judge.missing."offset" IS NULL OR f.point NOT LIKE 'message %')) THEN 'unknown'
        ELSE 'no fault' END"""


def find_reasons(case: Case) -> None:
    """Fill in the columns of ``judge.missing`` that `onceproof.judge.relations.compare` left empty."""
    if case.number('SELECT count(*) FROM judge.missing WHERE "offset" IS NULL'):
        for output in case.expectations:
            _find_batches(case, output)
    case.sql(_REASONS, {"imported": case.run.imported})


def _find_batches(case: Case, output: str) -> None:
    if not case.number(_WITHOUT_FAULT, {"output": output}):
        return
    stored = case.run.slice.struck if case.run.slice is not None else None
    if stored is not None and stored.output == output:
        case.sql(_STORED, stored.model_dump())
    query = _writer(case, output)
    if query is None:
        return
    case.sql(_CLOSED_IN, {"output": output, "query": query})
    struck = {row["batch"]: row["fault"] for row in case.rows(_STRUCK, {"query": query})}
    can_be_asked_again = case.oracle.kind != "slice" and not isinstance(oracle_of(case.oracle), PrecomputedOracle)
    if can_be_asked_again and 0 < len(struck) <= _MOST_BATCHES and case.number(_WITHOUT_FAULT, {"output": output}):
        try:
            _ask(case, output, query, struck)
        except (NotEvaluated, duckdb.Error):  # the oracle may fail on part of the input: the batch stays unknown
            return


# A slice stores the oracle's answer, and with it the batch that was found in the original run.
_STORED = """
    UPDATE judge.missing m SET query = $query, batch = $batch, found_by = $found_by, fault = $fault
    WHERE m.output = $output AND m."offset" IS NULL AND m.id = $id
      AND EXISTS (FROM history.faults f WHERE f.fired_at IS NOT NULL)"""


def _writer(case: Case, output: str) -> str | None:
    """The query that writes an output: the one that it names, or the only one there is."""
    if (named := case.scenario.outputs[output].query) is not None:
        return named
    return case.queries[0] if len(case.queries) == 1 else None


def _ask(case: Case, output: str, query: str, struck: dict[int, str]) -> None:
    alone = [[batch] for batch in struck]
    for batches in alone if len(struck) == 1 else [*alone, list(struck)]:
        for table in ("follows", "follows_otherwise"):
            case.sql(f"DROP TABLE IF EXISTS judge.{table}")
        ranges = _ranges(case, query, batches)
        expected.again(case, "judge.follows", View(only=ranges))
        expected.again(case, "judge.follows_otherwise", View(without=ranges))
        one = batches[0] if len(batches) == 1 else None
        fault = ", ".join(sorted({struck[batch] for batch in batches}))
        case.sql(_FOLLOWS, {"output": output, "query": query, "batch": one, "fault": fault})


def _ranges(case: Case, query: str, batches: list[int]) -> tuple[Range, ...]:
    """The offset ranges that these batches read."""
    found = case.sql(
        """SELECT topic, "partition", start_offset, end_offset FROM judge.batches
           WHERE query = $query AND list_contains($batches, batch) AND end_offset > start_offset""",
        {"query": query, "batches": batches},
    )
    return tuple(Range(*row) for row in found.fetchall())
