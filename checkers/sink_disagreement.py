"""``sink-disagreement``: two outputs of one pipeline disagree after the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import by, cause_of, identity_of, times

_DISAGREEMENTS = """
    CREATE OR REPLACE TEMP TABLE disagreements AS
    SELECT m.*, CASE WHEN m.fault IS NULL THEN 'no fault' ELSE 'fault' END AS source, min(e.output) AS present
    FROM judge.missing m
    JOIN judge.expected e ON e.output <> m.output AND e.topic = m.topic AND e."partition" = m."partition" AND e."offset" = m."offset"
    WHERE NOT EXISTS (FROM judge.missing o WHERE o.output = e.output AND o.id = e.id)
    GROUP BY ALL"""

_TOTALS = """
    SELECT output, source, 'present in ' || present AS label, count(*) AS total
    FROM disagreements GROUP BY ALL ORDER BY output, source, label"""

_WITNESSES = """
    SELECT * FROM disagreements WHERE output = $output AND source = $source
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""


@checkers.register("sink-disagreement")
class SinkDisagreement:
    """Counts effects that one output lacks while another has its effect of the same input record.

    Only inputs of which both outputs should hold an effect are compared, so an output that filters more than the other
    agrees with it. Needs the cause of an effect. Nothing to compare where there is one output.
    """

    meaning: ClassVar[str] = "two outputs of one pipeline disagree after the run"

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        if len(case.outputs) < 2:
            return
        case.compare()
        for output in case.outputs:
            if not case.expectations[output].has_cause:
                yield Gap(output, "the oracle names no cause (_partition, _offset)")
        case.sql(_DISAGREEMENTS)
        for (output, source), rows in by(case.rows(_TOTALS), "output", "source"):
            total = sum(row["total"] for row in rows)
            yield Finding(
                anomaly="sink-disagreement",
                output=output,
                total=total,
                summary=f"{times(total, 'effect')} that another output has and this one lacks",
                witnesses=_witnesses(case, output, source),
                source=source,
                attribution={row["label"]: row["total"] for row in rows},
            )


def _witnesses(case: Case, output: str, source: str) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "source": source, "limit": MAX_WITNESSES})
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=f"input {cause_of(row)} has effects in {output!r} and in {row['present']!r}.\n"
            f"Yet {row['present']!r} holds its effect, and {output!r} does not.",
            cause=cause_of(row),
            batch=row["batch"],
        )
        for row in rows
    )
