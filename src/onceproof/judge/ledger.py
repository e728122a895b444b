"""Checks the producer's ledger: whether all records that were sent are in the input topics.

The oracle works from what the input topics hold. It expects nothing from a record that never got there, so the record's missing
effect would not count as a loss. (A record that a broker lost after acknowledging it is the anomaly ``input-lost``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

_UNACKED = """
    SELECT topic, count(*) AS n, min_by({seq: seq, status: status, error: error}, seq) AS first
    FROM history.sent WHERE status <> 'acked' GROUP BY topic ORDER BY topic"""


def doubts(case: Case) -> list[str]:
    """One sentence per topic with records that were sent and not acknowledged."""
    found = []
    for row in case.rows(_UNACKED):
        first = row["first"]
        error = f", {first['error']}" if first["error"] else ""
        found.append(
            f"{times(row['n'], 'record')} sent to {row['topic']} {'was' if row['n'] == 1 else 'were'} not acknowledged "
            f"(the first is number {first['seq']}: {first['status']}{error}): the topic may not hold the intended input"
        )
    return found
