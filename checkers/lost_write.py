"""``lost-write``: an effect is missing although recorded progress covers its input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, times

_TOTALS = """
    SELECT output, CASE WHEN fault IS NULL THEN 'no fault' ELSE 'fault' END AS source,
           coalesce('while ' || fault, 'no fault active') || coalesce(' (batch ' || batch || ')', '') AS label,
           count(*) AS total
    FROM judge.missing WHERE covered OR $drained GROUP BY ALL ORDER BY output, source, label"""

_WITNESSES = """
    SELECT m.*, t.expected, t.actual, p.end_offset
    FROM judge.missing m JOIN judge.tally t ON t.output = m.output AND t.id = m.id
    LEFT JOIN judge.progress p ON p.topic = m.topic AND p."partition" = m."partition"
    WHERE m.output = $output AND (covered OR $drained) AND (fault IS NULL) = ($source = 'no fault')
    ORDER BY m.topic, m."partition", m."offset", m.id LIMIT $limit"""


@checkers.register("lost-write")
class LostWrite:
    """Counts expected effects that are missing while their input counts as done, wherever they stand.

    Done means: every query that reads the source partition has recorded an offset beyond the cause, or the run
    drained. Where the oracle names no cause and the run did not drain, the history cannot tell: not evaluated.
    Only committed input is expected to have effects, so aborted records and the holes that transaction markers leave
    in the offsets are no losses. One finding for losses in whose batch a fault was active, one for the others.
    """

    meaning: ClassVar[str] = "an effect is missing although recorded progress covers its input"

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        case.compare()
        for (output, source), rows in by(case.rows(_TOTALS, {"drained": case.drained}), "output", "source"):
            total = sum(row["total"] for row in rows)
            yield Finding(
                anomaly="lost-write",
                output=output,
                total=total,
                summary=f"{times(total, 'effect')} missing although recorded progress covers the input"
                + ("; no fault was active" if source == "no fault" else ", in a fault window"),
                witnesses=_witnesses(case, output, source),
                source=source,
                attribution={row["label"]: row["total"] for row in rows},
            )
        if not case.drained:
            blind = """SELECT output, count(*) AS n FROM judge.missing WHERE "offset" IS NULL GROUP BY output ORDER BY output"""
            for row in case.rows(blind):
                why = "the run did not drain, and the oracle names no cause (_partition, _offset) to hold progress against"
                yield Gap(row["output"], f"{times(row['n'], 'effect')} missing, but {why}")


def _witnesses(case: Case, output: str, source: str) -> tuple[Witness, ...]:
    values = {"output": output, "source": source, "drained": case.drained, "limit": MAX_WITNESSES}
    return tuple(
        Witness(identity=identity_of(row), argument=_argument(row), cause=cause_of(row), batch=row["batch"])
        for row in case.rows(_WITNESSES, values)
    )


def _argument(row: Row) -> str:
    if row["covered"]:
        done = f"progress of {row['topic']}/{row['partition']} is recorded up to {row['end_offset']}"
    else:
        done = "the run drained to the end of the input"
    batch = "" if row["batch"] is None else f", batch {row['batch']} of query {row['query']}"
    active = f"active in its batch: {row['fault']}" if row["fault"] else "no fault was active in its batch"
    return (
        f"{input_of(row)}{batch} is committed, and {done}.\n"
        f"Yet of {times(row['expected'], 'expected effect')} {row['actual']} can be read; {active}."
    )
