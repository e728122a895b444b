"""``lost-write``: an effect is missing although recorded progress covers its input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge import misplacement
from onceproof.judge.anomalies import Explanation
from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, sums, times

# What stands in a transaction that has not ended is not lost yet: that is a hanging transaction.
_CHOSEN = "NOT hidden AND (covered OR $drained)"

_TOTALS = f"""
    SELECT output, CASE WHEN fault IS NULL THEN 'no fault' ELSE 'fault' END AS source,
           coalesce('while ' || fault, 'no fault active') || coalesce(' (batch ' || batch || ')', '') AS label,
           query || '/' || batch AS of_batch, count(*) AS total
    FROM judge.lost WHERE {_CHOSEN} GROUP BY ALL ORDER BY output, source, label, of_batch"""  # noqa: S608

_WITNESSES = f"""
    SELECT m.*, t.expected, t.actual, p.end_offset, b.planned_by, b.committed_by
    FROM judge.lost m JOIN judge.tally t ON t.output = m.output AND t.id = m.id
    LEFT JOIN judge.progress p ON p.output = m.output AND p.topic = m.topic AND p."partition" = m."partition"
    LEFT JOIN judge.batches b ON b.query = m.query AND b.batch = m.batch AND b.topic = m.topic AND b."partition" = m."partition"
    WHERE m.output = $output AND {_CHOSEN} AND (fault IS NULL) = ($source = 'no fault')
    ORDER BY m.topic, m."partition", m."offset", m.id LIMIT $limit"""  # noqa: S608


@checkers.register("lost-write")
class LostWrite:
    """Counts expected effects that are missing while their input counts as done, wherever they stand.

    Done means: the query that writes the output (where it names none: every query that reads the source partition) has
    recorded an offset beyond the cause, or the run drained. Where the oracle names no cause and the run did not drain, the history cannot tell: not evaluated.
    Only committed input is expected to have effects, so aborted records and the holes that transaction markers leave
    in the offsets are no losses. Nor is an effect that stands in another place (``misplaced``) or in a transaction that
    has not ended (``hanging-transaction``). One finding for losses in whose batch a fault was active, one for the others.
    """

    meaning: ClassVar[str] = "an effect is missing although recorded progress covers its input"
    explanation: ClassVar[Explanation] = Explanation(
        example="An order was acknowledged by Kafka, the job has long moved past it, and it is not in the table.",
        causes=(
            "The sink records its progress, or Spark writes commits/N, before the effects are durable: "
            "a crash in between and the batch is never tried again (crash at before-sink-commit).",
            "The sink catches an error and carries on, so Spark believes that the batch was written (reject).",
            "A lost acknowledgement is taken for a failure and the batch given up; a transaction that was prepared is "
            "aborted by its timeout (lost-ack, lost-request).",
            "A producer is used again after an indefinite error: an EndTxn that arrives late ends its next transaction "
            "(KAFKA-17754).",
            "acks=1 and the leader dies: what was acknowledged stood on one disk (crash of the leader).",
        ),
        decided="The oracle expects the effect, no reader sees it, and its input counts as done: the query that writes the "
        "output (where it names none: each that reads the partition) recorded an offset beyond it, or the run drained. Aborted input and the offsets that transaction "
        "markers use up are expected nowhere. An effect that stands behind an open transaction is a "
        "hanging-transaction instead, one that stands elsewhere is misplaced. Where the run did not drain and the oracle "
        "names no cause, nobody can say whether it was lost or late: not evaluated.",
        stops=(
            "Effects and progress in one transaction of the sink (onceproof.sinks).",
            "Let errors end the query: a restarted batch is the cure, not the illness.",
            "acks=all with min.insync.replicas=2 on three brokers; a fresh producer for each transaction.",
        ),
        sources=(
            "Jepsen, Bufstream 0.1.0 (2024), on writes lost to a delayed EndTxn; KAFKA-17754; KIP-890",
            "Jepsen's Kafka workload (jepsen.tests.kafka): lost-write",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Fault tolerance",
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        misplacement.create(case)
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
                attribution=sums(rows, "label"),
                batches=sums(rows, "of_batch"),
            )
        if not case.drained:
            blind = """SELECT output, count(*) AS n FROM judge.lost WHERE "offset" IS NULL AND NOT hidden GROUP BY output ORDER BY output"""
            for row in case.rows(blind):
                why = "the run did not drain, and the oracle names no cause (_partition, _offset) to hold progress against"
                yield Gap(row["output"], f"{times(row['n'], 'effect')} missing, but {why}")


def _witnesses(case: Case, output: str, source: str) -> tuple[Witness, ...]:
    values = {"output": output, "source": source, "drained": case.drained, "limit": MAX_WITNESSES}
    return tuple(
        Witness(identity=identity_of(row), argument=_argument(case, row), cause=cause_of(row), batch=row["batch"])
        for row in case.rows(_WITNESSES, values)
    )


def _argument(case: Case, row: Row) -> str:
    if row["covered"]:
        done = f"Progress of {row['topic']}/{row['partition']} is recorded up to {row['end_offset']}"
    else:
        done = "The run drained to the end of the input"
    # The batch that would have written it may be one that Spark never planned.
    done += "".join(f".\nBut {note}" for _, note in case.open_watermarks("none"))
    where = "active in its batch" if row["batch"] is not None else "a consumer had it when a fault struck"
    active = f"{where}: {row['fault']}" if row["fault"] else "no fault was active in its batch"
    return (
        f"{input_of(row)} is committed{_taken(row)}.\n{done}.\n"
        f"Yet of {times(row['expected'], 'expected effect')} {row['actual']} can be read; {active}."
    )


def _taken(row: Row) -> str:
    """By which batch, and who committed that."""
    if row["batch"] is None:
        return ""
    batch = f", in batch {row['batch']} of query {row['query']}"
    if row["planned_by"] is None:
        return batch
    start = f"driver start {row['planned_by']}"
    if row["planned_by"] == row["committed_by"]:
        return f"{batch}, planned and committed by {start}"
    committed = "never committed" if row["committed_by"] is None else f"committed by start {row['committed_by']}"
    return f"{batch}, planned by {start} and {committed}"
