"""The producer's ledger against the input that was read back: whether the input is the one that was meant.

The oracle goes by what the input topics hold. A record that never got there, or that a broker lost after it had
acknowledged it, is not expected by any oracle, so its missing effect would be no loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.witness import times

if TYPE_CHECKING:
    from onceproof.judge.case import Case

_UNACKED = """
    SELECT topic, count(*) AS n, min_by({seq: seq, status: status, error: error}, seq) AS first
    FROM history.sent WHERE status <> 'acked' GROUP BY topic ORDER BY topic"""

# Digest first, as in `onceproof.judge.compare`: only stretches of offsets that differ are held against each other one by
# one, so a clean run costs two scans and no memory to speak of.
_LOST = """
    WITH acked AS (SELECT topic, "partition", "offset", "offset" // 8192 AS stretch FROM history.sent WHERE status = 'acked'),
    present AS (SELECT topic, "partition", "offset", "offset" // 8192 AS stretch FROM history.input),
    differing AS (
        SELECT topic, "partition", stretch
        FROM (SELECT *, 1 AS sign FROM acked UNION ALL SELECT *, -1 FROM present)
        GROUP BY ALL HAVING sum(sign) <> 0 OR sum(sign * hash("offset")::HUGEINT) <> 0)
    SELECT topic, count(*) AS n, min_by("partition" || '@' || "offset", ("partition", "offset")) AS first
    FROM (FROM acked SEMI JOIN differing USING (topic, "partition", stretch))
    ANTI JOIN (FROM present SEMI JOIN differing USING (topic, "partition", stretch)) USING (topic, "partition", "offset")
    GROUP BY topic ORDER BY topic"""


def doubts(case: Case) -> list[str]:
    """One sentence for each topic whose input is not what was sent."""
    found = []
    for row in case.rows(_UNACKED):
        first = row["first"]
        error = f", {first['error']}" if first["error"] else ""
        found.append(
            f"{times(row['n'], 'record')} of {row['topic']} were not acknowledged (the first is number {first['seq']}: "
            f"{first['status']}{error}): what the input holds is not what was meant"
        )
    for row in case.rows(_LOST):
        lost = times(row["n"], "acknowledged input record")
        found.append(f"the broker lost {lost} (input-lost), the first at {row['topic']}/{row['first']}")
    return found
