"""``wrong-value``: the right identity with wrong content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, cause_of, identity_of, input_of, places, times

_TOTALS = "SELECT output, sum(wrong)::BIGINT AS total FROM judge.tally WHERE wrong > 0 GROUP BY output ORDER BY output"

# Of each identity one content that should be there and is short, and one that stands there and should not (so often).
_WITNESSES = """
    SELECT t.output, t.id, e.topic, e."partition", e."offset",
           (SELECT min(c.content) FROM judge.counts c
            WHERE c.output = t.output AND c.id = t.id AND c.actual > c.expected) AS found,
           coalesce((SELECT min(c.content) FROM judge.counts c
                     WHERE c.output = t.output AND c.id = t.id AND c.expected > c.actual), min(e.content)) AS wanted
    FROM judge.tally t
    JOIN (SELECT output, id, content, min_by(topic, "offset") AS topic, min_by("partition", "offset") AS "partition",
                 min("offset") AS "offset" FROM judge.expected GROUP BY ALL) e ON e.output = t.output AND e.id = t.id
    WHERE t.output = $output AND t.wrong > 0
    GROUP BY t.output, t.id, e.topic, e."partition", e."offset"
    QUALIFY row_number() OVER (PARTITION BY t.id ORDER BY e."offset", e.topic, e."partition") = 1
    ORDER BY e.topic, e."partition", e."offset", t.id LIMIT $limit"""


@checkers.register("wrong-value")
class WrongValue:
    """Counts effects whose identity is expected and whose content is not (``wrong`` of `onceproof.judge.compare`)."""

    meaning: ClassVar[str] = "the right identity with wrong content: inflated, deflated, stale"

    def check(self, case: Case) -> Iterator[Finding]:
        case.compare()
        for row in case.rows(_TOTALS):
            witnesses, columns = _witnesses(case, row["output"])
            yield Finding(
                anomaly="wrong-value",
                output=row["output"],
                total=row["total"],
                summary=f"{times(row['total'], 'effect')} with wrong content (in {', '.join(columns) or 'how often'})",
                witnesses=witnesses,
            )


def _witnesses(case: Case, output: str) -> tuple[tuple[Witness, ...], list[str]]:
    rows = case.rows(_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    standing = places(case, output, [row["id"] for row in rows])
    columns: set[str] = set()
    witnesses = []
    for row in rows:
        differences = _differences(row)
        columns.update(differences)
        argument = (
            f"{input_of(row)} is committed; expected: {_show(differences, 0)}.\nYet found: {_show(differences, 1)}."
        )
        here = standing.get(row["id"], ())
        witnesses.append(Witness(identity_of(row), argument, cause=cause_of(row), positions=here))
    return tuple(witnesses), sorted(columns)


def _differences(row: Row) -> dict[str, tuple[str | None, str | None]]:
    """Column -> wanted and found, where they differ."""
    wanted, found = json.loads(row["wanted"]), json.loads(row["found"])
    return {name: (wanted[name], found[name]) for name in wanted if wanted[name] != found[name]}


def _show(differences: dict[str, tuple[str | None, str | None]], side: int) -> str:
    return ", ".join(f"{name} = {'null' if pair[side] is None else pair[side]}" for name, pair in differences.items())
