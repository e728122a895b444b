"""``misplaced``: the right effect in the wrong topic, partition or row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from onceproof.base.words import times
from onceproof.judge.anomalies import Explanation
from onceproof.judge.case.case import Case
from onceproof.judge.checker import checkers
from onceproof.judge.findings import Finding, Witness
from onceproof.judge.relations import misplacement
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, noun, shown, sums

_TOTALS = """
    SELECT output, CASE how WHEN 'topic' THEN 'in ' || found_output WHEN 'row' THEN 'in another row'
                            ELSE 'in another partition' END AS label,
           query || '/' || batch AS batch, count(*) AS total
    FROM judge.misplaced GROUP BY ALL ORDER BY output, label, batch"""

_WITNESSES = """
    SELECT * FROM judge.misplaced WHERE output = $output
    ORDER BY how, topic, "partition", "offset", id, place LIMIT $limit"""


@checkers.register("misplaced")
class Misplaced:
    """Counts right effects in the wrong place (`onceproof.judge.relations.misplacement` says which those are).

    The finding is of the output where the effect is due. It is then neither a ``lost-write`` there nor ``unexplained``
    where it is. The partition is judged only where the oracle gives ``_to_partition`` or the output declares
    ``placement: key``.
    """

    meaning: ClassVar[str] = "the right effect in the wrong topic, partition or row"
    explanation: ClassVar[Explanation] = Explanation(
        example="All orders arrived, exactly once. Those of customer 7 are in two partitions, and their consumer sees half.",
        causes=(
            "The output is keyed otherwise than its reader expects, or keyed only sometimes: a null key goes anywhere.",
            "The number of partitions was changed while the job ran: a key's hash leads elsewhere from then on.",
            "A client sends a record to the wrong topic: KAFKA-19012, in Java producers under disconnects.",
            "A join on the wrong key writes the right values into the row of another.",
        ),
        decided="Shown by position or content: the very effect that one output lacks is found unexplained in another; a "
        "record is in another partition than the oracle's _to_partition, or apart from the other records of its key "
        "(placement: key); or a row under an unknown identity holds what one missing row should hold, and no other expected row. "
        "One short value in common is not evidence: two columns must agree, or one with 16 characters or more. Only pairs "
        "that are unique both ways count; then it is neither a lost-write nor unexplained.",
        stops=(
            "The same key and partitioner for all that must stay together; topics whose partitions are not changed.",
            "Clients without KAFKA-19012; readers that check what they were sent.",
        ),
        sources=("KAFKA-19012: messages ending up on the wrong topic", "Kafka documentation: partitioning by key"),
    )

    def check(self, case: Case) -> Iterator[Finding]:
        misplacement.create(case)
        for (output,), rows in by(case.rows(_TOTALS), "output"):
            total = sum(row["total"] for row in rows)
            attribution = sums(rows, "label")
            yield Finding(
                anomaly="misplaced",
                output=output,
                total=total,
                summary=f"{times(total, noun(case, output))} in the wrong place ({', '.join(attribution)})",
                attribution=attribution,
                batches=sums(rows, "batch"),
                **shown(partial(_witnesses, case, output)),
            )


def _witnesses(case: Case, output: str, limit: int | None) -> Iterator[Witness]:
    by_key = case.scenario.outputs[output].placement == "key"
    for rows in case.pages(_WITNESSES, {"output": output, "limit": limit}):
        for row in rows:
            yield Witness(
                identity=identity_of(row),
                argument=_argument(row, noun(case, output), by_key),
                cause=cause_of(row),
                batch=row["batch"],
                positions=(row["place"],),
            )


def _argument(row: Row, what: str, by_key: bool) -> str:
    if row["how"] == "partition":
        why = "the other records of its key are" if by_key else "the oracle expects its record"
        return f"{input_of(row)} is committed; {why} in partition {row['due']}.\nBut its record is at {row['place']}."
    premise = f"{input_of(row)} is committed; its {what} is due in {row['output']!r}, and is missing there."
    if row["how"] == "topic":
        return (
            f"{premise}\nBut the same content under the same identity is at {row['place']}, where no input explains it."
        )
    return (
        f"{premise}\nBut its content is at {row['place']}, under identity {row['found_id']}, which no input explains."
    )
