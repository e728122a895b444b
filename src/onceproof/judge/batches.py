"""A verdict for each micro-batch. A batch is held only if every violation is known to be in other batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceproof.judge.findings import BatchReport, Finding, Outcome

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# An ASOF join against the few planned ranges scans the input once, whatever the number of batches.
_BATCHES = """
    WITH planned AS (FROM history.batches WHERE end_offset > start_offset),
    taken AS (
        SELECT p.query, p.batch, count(*) FILTER (i."offset" < p.end_offset) AS records
        FROM history.input i JOIN (SELECT DISTINCT query, topic, "partition" FROM planned) r
            ON r.topic = i.topic AND r."partition" = i."partition"
        ASOF JOIN planned p ON p.query = r.query AND p.topic = i.topic AND p."partition" = i."partition"
            AND i."offset" >= p.start_offset
        WHERE i.visibility = 'committed' GROUP BY ALL),
    active AS (SELECT query, batch, list(DISTINCT fault ORDER BY fault) AS faults FROM judge.windows GROUP BY ALL)
    SELECT b.query, b.batch, min(b.planned_by) AS planned_by, min(b.committed_by) AS committed_by,
           coalesce(any_value(t.records), 0) AS records, any_value(a.faults) AS faults,
           count(b.committed_by) > 0 AS committed
    FROM history.batches b
    LEFT JOIN taken t ON t.query = b.query AND t.batch = b.batch
    LEFT JOIN active a ON a.query = b.query AND a.batch = b.batch
    GROUP BY b.query, b.batch ORDER BY b.query, b.batch"""


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
    for row in case.rows(_BATCHES):
        anomalies = by_batch.get(f"{row['query']}/{row['batch']}", {})
        held = row.pop("committed") and conclusive and all_located
        verdict = Outcome.VIOLATED if anomalies else Outcome.HELD if held else Outcome.INCONCLUSIVE
        faults = tuple(row.pop("faults") or ())
        result.append(BatchReport(**row, faults=faults, verdict=verdict, anomalies=anomalies))
    return tuple(result)
