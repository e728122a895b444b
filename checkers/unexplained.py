"""``unexplained``: an effect that no committed input explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import identity_of, places, times

_TOTALS = """
    SELECT output, sum(unexplained)::BIGINT AS total FROM judge.tally
    WHERE unexplained > 0 GROUP BY output ORDER BY output"""

_WITNESSES = """
    SELECT id, unexplained FROM judge.tally WHERE output = $output AND unexplained > 0 ORDER BY id LIMIT $limit"""


@checkers.register("unexplained")
class Unexplained:
    """Counts effects with an identity that the oracle expects nowhere in that output."""

    meaning: ClassVar[str] = "an effect that no committed input explains"

    def check(self, case: Case) -> Iterator[Finding]:
        case.compare()
        for row in case.rows(_TOTALS):
            summary = f"{times(row['total'], 'effect')} that no committed input explains"
            yield Finding("unexplained", row["output"], row["total"], summary, _witnesses(case, row["output"]))


def _witnesses(case: Case, output: str) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    standing = places(case, output, [row["id"] for row in rows])
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=f"No committed input has an effect of this identity in {output!r}.\n"
            f"Yet {row['unexplained']} can be read, at {', '.join(standing[row['id']])}.",
            positions=standing[row["id"]],
        )
        for row in rows
    )
