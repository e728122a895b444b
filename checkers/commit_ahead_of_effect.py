"""``commit-ahead-of-effect``: progress is recorded without its effects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from onceproof.base.words import times
from onceproof.judge.anomalies import Explanation
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import Finding, Witness
from onceproof.judge.relations import behind_progress as recorded
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, noun, shown, sums

_SOURCE = "CASE WHEN place IS NOT NULL THEN progress ELSE reason END"

_TOTALS = f"""
    SELECT output, {_SOURCE} AS source, place IS NULL AS stays, query || '/' || batch AS of_batch, active,
           CASE WHEN place IS NOT NULL THEN 'ahead in the ' || progress
                ELSE coalesce('from batch ' || batch || ' (query ' || query || ')', 'from an unknown batch')
                     || coalesce(', struck by ' || fault, '; active at that time: ' || active, '') END AS label, count(*) AS total
    FROM judge.behind GROUP BY ALL ORDER BY output, source, stays, label, of_batch"""  # noqa: S608

_WITNESSES = f"""
    SELECT * FROM judge.behind WHERE output = $output AND {_SOURCE} = $source
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""  # noqa: S608


@checkers.register("commit-ahead-of-effect")
class CommitAheadOfEffect:
    """Counts effects that were not there when progress beyond their input was recorded (`onceproof.judge.relations.behind_progress`).

    Those that are missing while the sink's own progress table covers them stay away: nobody will write them again. They make
    one finding for each reason, as with ``lost-write``. Those that came later are transient: a crash in
    between would have lost them.
    """

    meaning: ClassVar[str] = "progress is recorded without its effects"
    explanation: ClassVar[Explanation] = Explanation(
        example="The progress table says that everything up to offset 500 is done. The rows from 400 on come later, or never.",
        causes=(
            "The sink writes its progress in a transaction of its own, before the data (crash between the two).",
            "The sink hands its rows to a thread or a buffer and returns: Spark writes commits/N while they are on their way.",
            "Offsets are committed automatically by a consumer that has not yet processed what it polled.",
        ),
        decided="The sink's own progress table covers the input, and its effect is not there at the end: it survived (and is a "
        "lost-write as well). That table, or commits/N, was written before the effect could be read: transient, and "
        "dangerous only if something dies in between. Needs times or positions of both; else it is not evaluated.",
        stops=(
            "Progress in the transaction of the data, or after it.",
            "A foreachBatch function that returns only when its effects are durable.",
        ),
        sources=(
            "Kafka documentation: Message Delivery Semantics (at most once: position saved before processing)",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Atomic commit revisited",
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        recorded.create(case)
        for output in case.outputs:
            if (gap := recorded.of_output(case, output)) is not None:
                yield Gap(output, gap)
        for (output, source, stays), rows in by(case.rows(_TOTALS), "output", "source", "stays"):
            total = sum(row["total"] for row in rows)
            left = "that never came" if stays else "that came later"
            yield Finding(
                anomaly="commit-ahead-of-effect",
                output=output,
                total=total,
                summary=f"progress was recorded ahead of {times(total, noun(case, output))} {left}",
                source=source,
                attribution=sums(rows, "label"),
                batches=sums(rows, "of_batch"),
                transient=not stays,
                unsettled="whether a fault is the reason for the loss is not known" if source == "unknown" else None,
                **shown(partial(_witnesses, case, output, source)),
            )


def _witnesses(case: Case, output: str, source: str, limit: int | None) -> Iterator[Witness]:
    for rows in case.pages(_WITNESSES, {"output": output, "source": source, "limit": limit}):
        for row in rows:
            yield Witness(
                identity=identity_of(row),
                argument=_argument(row, noun(case, output)),
                cause=cause_of(row),
                batch=row["batch"],
                positions=() if row["place"] is None else (row["place"],),
            )


def _argument(row: Row, what: str) -> str:
    taken = "" if row["batch"] is None else f", in batch {row['batch']} of query {row['query']}"
    premises = f"{input_of(row)} is committed{taken}.\nProgress beyond it is recorded by {row['recorded']}.\n"
    if row["place"] is None:
        return f"{premises}But its {what} is missing."
    later = "in a later commit" if row["late_ms"] is None else f"{row['late_ms']} ms later"
    return f"{premises}But its {what} came {later}, at {row['place']}."
