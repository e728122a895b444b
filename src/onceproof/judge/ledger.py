"""The producer's ledger: whether the input is the one that was meant.

The oracle goes by what the input topics hold. A record that never got there is not expected by any oracle, so its missing
effect would be no loss. (One that a broker lost after it had acknowledged it is the anomaly ``input-lost``.)
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
    """One sentence for each topic of which records were sent and not acknowledged."""
    found = []
    for row in case.rows(_UNACKED):
        first = row["first"]
        error = f", {first['error']}" if first["error"] else ""
        found.append(
            f"{times(row['n'], 'record')} of {row['topic']} were not acknowledged (the first is number {first['seq']}: "
            f"{first['status']}{error}): what the input holds is not what was meant"
        )
    return found
