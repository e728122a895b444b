"""A verdict for each micro-batch. A batch is held only if every violation is known to be in other batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceproof.judge.findings import BatchReport, Finding, Outcome

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Whether the planned ranges and the committed input show how many records each batch read, without a look at each record:
# no two ranges of a query overlap, and the input has no gaps.
_PLAIN = """
    SELECT NOT EXISTS (
        FROM (SELECT end_offset, lead(start_offset) OVER (PARTITION BY query, topic, "partition" ORDER BY start_offset) AS next
              FROM judge.batches WHERE end_offset > start_offset) WHERE next < end_offset)
    AND NOT EXISTS (FROM judge.held WHERE n <> high - low + 1)"""

_PLANNED = "(FROM judge.batches WHERE end_offset > start_offset)"

_BY_RANGE = f"""
    SELECT p.query, p.batch, sum(greatest(least(p.end_offset, h.high + 1) - greatest(p.start_offset, h.low), 0))::BIGINT AS records
    FROM {_PLANNED} p JOIN judge.held h ON h.topic = p.topic AND h."partition" = p."partition" GROUP BY ALL"""  # noqa: S608

# An ASOF join against the few planned ranges scans the input once, whatever the number of batches.
_BY_RECORD = f"""
    SELECT p.query, p.batch, count(*) FILTER (i."offset" < p.end_offset) AS records
    FROM history.input i JOIN (SELECT DISTINCT query, topic, "partition" FROM {_PLANNED}) r
        ON r.topic = i.topic AND r."partition" = i."partition"
    ASOF JOIN {_PLANNED} p ON p.query = r.query AND p.topic = i.topic AND p."partition" = i."partition"
        AND i."offset" >= p.start_offset
    WHERE i.visibility = 'committed' GROUP BY ALL"""  # noqa: S608

_BATCHES = """
    SELECT query, batch, min(planned_by) AS planned_by, min(committed_by) AS committed_by, count(committed_by) > 0 AS committed
    FROM judge.batches GROUP BY query, batch ORDER BY query, batch"""

_ACTIVE = "SELECT query, batch, fault FROM judge.windows ORDER BY ALL"


def reports(case: Case, findings: Iterable[Finding], *, conclusive: bool) -> tuple[BatchReport, ...]:
    """One report per batch. ``conclusive``: everything that the claims promise was evaluated.

    A violation in an unknown batch may be in any of them, so no batch is held then.
    """
    violations = [finding for finding in findings if finding.violates]
    by_batch: dict[str, dict[str, int]] = {}
    for finding in violations:
        for name, effects in finding.batches.items():
            counts = by_batch.setdefault(name, {})
            counts[finding.anomaly] = counts.get(finding.anomaly, 0) + effects
    all_located = all(sum(f.batches.values()) >= f.total for f in violations)
    result = []
    # A small history has few records to look at.
    by_range = not case.small and case.number(_PLAIN)
    taken = {(q, batch): records for q, batch, records in case.sql(_BY_RANGE if by_range else _BY_RECORD).fetchall()}
    active: dict[tuple[str, int], tuple[str, ...]] = {}
    for q, batch, fault in case.sql(_ACTIVE).fetchall():
        active[q, batch] = (*active.get((q, batch), ()), fault)
    for row in case.rows(_BATCHES):
        key = (row["query"], row["batch"])
        anomalies = by_batch.get(f"{row['query']}/{row['batch']}", {})
        held = row.pop("committed") and conclusive and all_located
        verdict = Outcome.VIOLATED if anomalies else Outcome.HELD if held else Outcome.INCONCLUSIVE
        records, faults = taken.get(key, 0), active.get(key, ())
        result.append(BatchReport(**row, records=records, faults=faults, verdict=verdict, anomalies=anomalies))
    return tuple(result)
