"""``stale-tail``: effects are missing beyond recorded progress, and nothing moves any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, by, cause_of, identity_of, times

_TAIL = """judge.missing m LEFT JOIN judge.progress p ON p.topic = m.topic AND p."partition" = m."partition"
    WHERE NOT m.covered AND m."offset" IS NOT NULL"""

_TOTALS = f"""
    SELECT m.output, m.topic || '/' || m."partition" || ' beyond ' || coalesce(p.end_offset, 0) AS label, count(*) AS total
    FROM {_TAIL} GROUP BY ALL ORDER BY output, label"""  # noqa: S608

_WITNESSES = f"""
    SELECT m.*, p.end_offset FROM {_TAIL} AND m.output = $output
    ORDER BY m.topic, m."partition", m."offset", m.id LIMIT $limit"""  # noqa: S608


@checkers.register("stale-tail")
class StaleTail:
    """Counts expected effects beyond the recorded progress of a run that did not drain.

    A run that drained has no tail. One that was still making progress when its time ran out is slow, not stuck: that
    is not evaluated.
    """

    meaning: ClassVar[str] = "effects are missing beyond recorded progress: healed and restarted, the job moves no more"

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        if case.drained:
            return
        case.compare()
        for (output,), rows in by(case.rows(_TOTALS), "output"):
            total = sum(row["total"] for row in rows)
            if case.run.get("stuck") is False:
                yield Gap(
                    output, f"{times(total, 'effect')} missing, but the job still made progress when time ran out"
                )
                continue
            yield Finding(
                anomaly="stale-tail",
                output=output,
                total=total,
                summary=f"{times(total, 'effect')} missing beyond recorded progress; the job moved no more",
                witnesses=_witnesses(case, output),
                attribution={row["label"]: row["total"] for row in rows},
            )


def _witnesses(case: Case, output: str) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    return tuple(
        Witness(identity=identity_of(row), argument=_argument(case, row), cause=cause_of(row), batch=row["batch"])
        for row in rows
    )


def _argument(case: Case, row: Row) -> str:
    end = "nothing" if row["end_offset"] is None else f"up to {row['end_offset']}"
    note = case.run.get("drain_note") or "the run did not drain"
    return (
        f"input {cause_of(row)} is committed; of {row['topic']}/{row['partition']} {end} is recorded as done.\n"
        f"Every fault is healed, and yet its effect is not there: {note}."
    )
