"""``sink-disagreement``: two outputs of one pipeline disagree at a quiet point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge import misplacement
from onceproof.judge.anomalies import Explanation
from onceproof.judge.canonical import literal
from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, places, sums, times
from onceproof.scenario.model import OutputSpec

# What one output lacks or, of the states that it keeps, has wrong.
_FAULTY = """
    CREATE OR REPLACE TEMP TABLE faulty AS
    SELECT output, id, topic, "partition", "offset", query, batch, fault,
           CASE WHEN fault IS NULL THEN 'no fault' ELSE 'fault' END AS source
    FROM judge.lost WHERE NOT hidden
    UNION ALL
    SELECT r.output, r.id, x.topic, x."partition", x."offset", b.query, b.batch, NULL, 'other state'
    FROM judge.remaining r JOIN judge.expected x ON x.output = r.output AND x.id = r.id
    LEFT JOIN judge.output_batches b ON b.output = x.output AND b.topic = x.topic AND b."partition" = x."partition"
        AND x."offset" >= b.start_offset AND x."offset" < b.end_offset
    WHERE r.wrong > 0 AND r.output IN ({upserts})"""

# The same input record caused an effect in the other output; or it keeps a state of the same identity, of which alone
# can be said that it is another one.
_DISAGREEMENTS = """
    CREATE OR REPLACE TEMP TABLE disagreements AS
    WITH pairs AS (
        SELECT f.*, e.output AS other, e.id AS other_id FROM faulty f
        JOIN judge.expected e ON e.topic = f.topic AND e."partition" = f."partition" AND e."offset" = f."offset"
        WHERE e.output <> f.output AND f.source <> 'other state'
        UNION
        SELECT f.*, e.output, e.id FROM faulty f JOIN judge.expected e ON e.id = f.id
        WHERE e.output <> f.output AND (f."offset" IS NULL OR e."offset" IS NULL OR f.source = 'other state')
          AND (e.output IN ({upserts}) OR f.source <> 'other state'))
    SELECT output, id, topic, "partition", "offset", query, batch, fault, source, min(other) AS present,
           min_by(other_id, other) AS present_id
    FROM pairs p
    WHERE NOT EXISTS (FROM judge.missing m WHERE m.output = p.other AND m.id = p.other_id)
      AND NOT EXISTS (FROM judge.tally t WHERE t.output = p.other AND t.id = p.other_id AND t.wrong > 0)
    GROUP BY ALL"""

_TOTALS = """
    SELECT output, source, CASE source WHEN 'other state' THEN 'right in ' ELSE 'present in ' END || present AS label,
           query || '/' || batch AS of_batch, count(*) AS total
    FROM disagreements GROUP BY ALL ORDER BY output, source, label, of_batch"""

_WITNESSES = """
    SELECT * FROM disagreements WHERE output = $output AND source = $source
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""


@checkers.register("sink-disagreement")
class SinkDisagreement:
    """Counts effects that one output lacks while another has its effect of the same input record, and states that are
    wrong in one output and right in another of the same identity (both upserts).

    Only what both outputs should hold is compared, so an output that filters more than the other agrees with it. Effects
    belong together by their cause; where the oracle names none, by their identity. Needs one of the two. Outputs may differ
    while something is on its way: before a quiet point a disagreement is transient, and an effect in a transaction that
    has not ended is none. Nothing to compare where there is one output. Dual writes: Kleppmann,
    *Making Sense of Stream Processing*, chapter 3.
    """

    meaning: ClassVar[str] = "two outputs of one pipeline disagree at a quiet point"
    explanation: ClassVar[Explanation] = Explanation(
        example="The order is in the table, and the topic that the warehouse reads never had it.",
        causes=(
            "One foreachBatch writes to two systems, and dies between them (crash at between-sinks).",
            "One of two sinks refuses and the error is swallowed (reject).",
            "Dual writes: two clients write two systems in different orders, and nothing ever compares them.",
        ),
        decided="Of one input record (where the oracle names no cause: of one identity) both outputs should hold an effect; one "
        "holds it, or the right state of it, and the other does not. Outputs that filter differently agree. It comes with "
        "the lost-write, stale-tail or wrong-value of the one output, and adds that the other is right. Before a quiet point it is transient: "
        "more may still be on its way.",
        stops=(
            "Each sink effectively-once by itself: the replayed batch then completes the one that was left behind.",
            "One system first, the other from its log: an outbox table, or change data capture.",
        ),
        sources=(
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Keeping systems in sync",
            "P. Helland, Life beyond Distributed Transactions (2007)",
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        if len(_compared(case)) < 2:
            return
        yield from _incomparable(case)
        misplacement.create(case)
        if not case.number("SELECT count(*) FROM judge.tally"):
            return
        upserts = ", ".join(literal(name) for name, spec in case.outputs.items() if spec.kind == "upsert") or "NULL"
        case.sql(_FAULTY.format(upserts=upserts))
        case.sql(_DISAGREEMENTS.format(upserts=upserts))
        for (output, source), rows in by(case.rows(_TOTALS), "output", "source"):
            total = sum(row["total"] for row in rows)
            what = "state" if source == "other state" else "effect"
            how = "has right and this one wrong" if source == "other state" else "has and this one lacks"
            yield Finding(
                anomaly="sink-disagreement",
                output=output,
                total=total,
                summary=f"{times(total, what)} that another output {how}",
                witnesses=_witnesses(case, output, source),
                source=source,
                attribution=sums(rows, "label"),
                batches=sums(rows, "of_batch"),
                transient=not case.drained,
            )


def _compared(case: Case) -> dict[str, OutputSpec]:
    """What must stay empty, and what holds what another output does not, agrees with no output."""
    return {output: spec for output, spec in case.outputs.items() if not spec.is_aside}


def _incomparable(case: Case) -> Iterator[Gap]:
    """Outputs whose effects nothing connects with those of any other."""
    outputs = _compared(case)
    causes = {output: case.expectations[output].has_cause for output in outputs}
    for output, spec in outputs.items():
        others = [other for other in outputs if other != output]
        by_cause = causes[output] and any(causes[other] for other in others)
        by_identity = any(sorted(case.outputs[other].identity) == sorted(spec.identity) for other in others)
        if not by_cause and not by_identity:
            why = "no cause (_partition, _offset) connects its effects with those of another output, nor does their identity"
            yield Gap(output, why)


def _witnesses(case: Case, output: str, source: str) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "source": source, "limit": MAX_WITNESSES})
    here = places(case, output, [row["id"] for row in rows])
    there: dict[str, tuple[str, ...]] = {}
    for present in {row["present"] for row in rows}:
        found = places(case, present, [row["present_id"] for row in rows if row["present"] == present])
        there |= {f"{present} {id_}": standing for id_, standing in found.items()}
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=_argument(row, there.get(f"{row['present']} {row['present_id']}", ()), here.get(row["id"], ())),
            cause=cause_of(row),
            batch=row["batch"],
            positions=here.get(row["id"], ()),
        )
        for row in rows
    )


def _argument(row: Row, there: tuple[str, ...], here: tuple[str, ...]) -> str:
    at = f", at {there[0]}" if there else ""
    if row["source"] == "other state":
        first = f"Outputs {row['output']!r} and {row['present']!r} keep the state of this identity.\n"
        wrong = f" (at {here[0]})" if here else ""
        return f"{first}{row['present']!r} holds the right one{at}.\nYet {row['output']!r} holds another{wrong}."
    where = f"{input_of(row)} has effects in {row['output']!r} and in {row['present']!r}.\n"
    return f"{where}{row['present']!r} holds its effect{at}.\nYet {row['output']!r} does not."
