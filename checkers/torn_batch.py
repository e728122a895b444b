"""``torn-batch``: part of an atomic unit is visible without the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge import misplacement, parts
from onceproof.judge.anomalies import Explanation
from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, cause_of, identity_of, sums, times

_APART = """
    SELECT query || '/' || batch AS of_batch, count(*) AS total FROM judge.torn WHERE output = $output
    GROUP BY query, batch ORDER BY query, batch"""

_APART_WITNESSES = """
    SELECT * FROM judge.torn WHERE output = $output ORDER BY query, batch, topic, "partition", "offset", id LIMIT $limit"""

# Batches of which something is missing and something else stands.
_HALVES = """
    CREATE OR REPLACE TEMP TABLE halves AS
    WITH short AS (SELECT DISTINCT query, batch FROM judge.lost WHERE output = $output AND batch IS NOT NULL),
    here AS (
        SELECT c.query, c.batch, min_by({topic: c.topic, "partition": c."partition", "offset": c."offset"},
                                        (c."offset", c."partition")) AS stands
        FROM judge.caused c JOIN short s ON s.query = c.query AND s.batch = c.batch
        WHERE c.output = $output GROUP BY c.query, c.batch)
    SELECT m.*, h.stands.topic || '/' || h.stands."partition" || '@' || h.stands."offset" AS stands
    FROM judge.lost m JOIN here h ON h.query = m.query AND h.batch = m.batch WHERE m.output = $output"""

_HALVES_TOTALS = """
    SELECT coalesce(covered, false) OR $drained AS stays, query || '/' || batch AS of_batch,
           CASE WHEN fault IS NULL THEN 'no fault active' ELSE 'while ' || fault END AS label, count(*) AS total
    FROM halves GROUP BY ALL ORDER BY stays, of_batch, label"""

_HALVES_WITNESSES = """
    SELECT * FROM halves WHERE (coalesce(covered, false) OR $drained) = $stays
    ORDER BY query, batch, topic, "partition", "offset", id LIMIT $limit"""

# Records of one producer's epoch of which some were committed and others were not. They are of one transaction, and not
# of two that followed each other, if they were created in overlapping times.
_BROKEN = """
    CREATE OR REPLACE TEMP TABLE broken AS
    SELECT producer_id, producer_epoch, count(*) FILTER (visibility <> 'committed') AS hidden,
           min_by("partition" || '@' || "offset", ("partition", "offset")) FILTER (visibility = 'committed') AS stands
    FROM history.output WHERE output = $output AND producer_id IS NOT NULL
        AND (txn_end_offset IS NOT NULL OR visibility = 'open')
    GROUP BY producer_id, producer_epoch
    HAVING min(timestamp_ms) FILTER (visibility = 'committed') < max(timestamp_ms) FILTER (visibility <> 'committed')
       AND min(timestamp_ms) FILTER (visibility <> 'committed') < max(timestamp_ms) FILTER (visibility = 'committed')"""

_BROKEN_WITNESSES = """
    SELECT c.id, c.place, c.visibility, b.producer_id, b.producer_epoch, b.stands
    FROM broken b
    JOIN history.output h ON h.output = $output AND h.producer_id = b.producer_id AND h.producer_epoch = b.producer_epoch
        AND h.visibility <> 'committed'
    JOIN judge.changes c ON c.output = h.output AND c."partition" = h."partition" AND c."offset" = h."offset"
    ORDER BY c.lane, c.pos LIMIT $limit"""


@checkers.register("torn-batch")
class TornBatch:
    """Counts effects that could not be read together with the rest of their unit.

    The unit is the micro-batch (``source`` ``batch``), and in Kafka also the transaction (``source`` ``transaction``):

    - **in several steps**: effects that became visible apart from most of their batch (`onceproof.judge.parts`).
      Transient: all of them stand in the end;
    - **in part**: effects that are missing of a batch of which others stand. That stays, unless the run did not drain and
      no progress covers them;
    - **a transaction in part**: records that were aborted, or never ended, of a transaction of which others are committed
      (the Jepsen report on Bufstream 0.1.0, and KAFKA-17754, show how that comes about).

    A transaction of Postgres is always whole: the stream gives it commit by commit. What cannot be known is a gap where
    atomicity is claimed.
    """

    meaning: ClassVar[str] = "part of an atomic unit is visible without the rest"
    explanation: ClassVar[Explanation] = Explanation(
        example="A transfer is a debit and a credit. For eight seconds, or for ever, the debit is there and the credit is not.",
        causes=(
            "The sink commits row by row or partition by partition (autocommit, a JDBC sink): a crash in the middle leaves "
            "the first part (crash at in-tasks).",
            "The records of one batch go to Kafka without a transaction.",
            "A delayed EndTxn ends the next transaction of a reused producer when half of it is written (KAFKA-17754).",
        ),
        decided="The unit is the micro-batch, and in Kafka also the transaction. Part of a batch's effects can be read and part is "
        "missing at the end: it survived. They became visible in several steps and are complete at the end: transient. Of a "
        "Kafka transaction some records are committed and others aborted, or never ended: it survived. All this violates "
        "where atomic: batch or transaction is claimed. Which input made which effect must be known, or the times of the "
        "commits; else it is not evaluated.",
        stops=(
            "One transaction of the sink for the whole batch; stage in tasks, publish in the driver's commit.",
            "For readers: read_committed on Kafka, one transaction's snapshot on Postgres.",
        ),
        sources=(
            "Jepsen, Bufstream 0.1.0 (2024): torn transactions",
            "Spark, DataSource V2: BatchWrite.commit publishes what the tasks prepared",
            "P. Bailis et al., Scalable Atomic Visibility with RAMP Transactions (2014): fractured reads",
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        misplacement.create(case)
        parts.create(case)
        for output, spec in case.outputs.items():
            atomic = case.scenario.claim_of(output).atomic
            gap = parts.of_output(case, output, claimed=atomic == "batch")
            if gap is not None and atomic == "batch":
                yield Gap(output, gap)
            yield from _in_steps(case, output)
            yield from _in_part(case, output)
            if spec.topic is not None:
                if atomic == "transaction" and (gap := _no_transactions(case, output)):
                    yield Gap(output, gap)
                yield from _broken(case, output)


def _in_steps(case: Case, output: str) -> Iterator[Finding]:
    rows = case.rows(_APART, {"output": output})
    if not rows:
        return
    total = sum(row["total"] for row in rows)
    found = case.rows(_APART_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    yield Finding(
        anomaly="torn-batch",
        output=output,
        total=total,
        summary=f"{times(total, 'effect')} visible apart from the rest of their batch, in {_batches(len(rows))}",
        witnesses=tuple(
            Witness(identity_of(row), _step(row), cause_of(row), row["batch"], (row["main_place"], row["place"]))
            for row in found
        ),
        source="batch",
        batches=sums(rows, "of_batch"),
        transient=True,
    )


def _step(row: Row) -> str:
    what = "its effect" if row["offset"] is None else f"the effect of {cause_of(row)}"
    return (
        f"Batch {row['batch']} of query {row['query']} is one unit, and most of its effects stand at {row['main_place']}.\n"
        f"Yet {what} stands at {row['place']}: readers saw one without the other."
    )


def _in_part(case: Case, output: str) -> Iterator[Finding]:
    if not case.number(
        "SELECT count(*) FROM judge.lost WHERE output = $output AND batch IS NOT NULL", {"output": output}
    ):
        return
    case.sql(_HALVES, {"output": output})
    totals = case.rows(_HALVES_TOTALS, {"drained": case.drained})
    for stays in (True, False):
        if not (rows := [row for row in totals if row["stays"] == stays]):
            continue
        total = sum(row["total"] for row in rows)
        batches = sums(rows, "of_batch")
        yield Finding(
            anomaly="torn-batch",
            output=output,
            total=total,
            summary=f"{times(total, 'effect')} missing of {_batches(len(batches))} of which others stand",
            witnesses=_halves(case, stays),
            source="batch",
            attribution=sums(rows, "label"),
            batches=batches,
            transient=not stays,
        )


def _halves(case: Case, stays: bool) -> tuple[Witness, ...]:
    rows = case.rows(_HALVES_WITNESSES, {"drained": case.drained, "stays": stays, "limit": MAX_WITNESSES})
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=f"Batch {row['batch']} of query {row['query']} is one unit, and the effect of {row['stands']}, which "
            f"it took, stands.\nYet that of {cause_of(row)}, which it took too, does not.",
            cause=cause_of(row),
            batch=row["batch"],
        )
        for row in rows
    )


def _no_transactions(case: Case, output: str) -> str | None:
    """Why a claim about transactions says nothing here."""
    if not parts.producers_known(case, output):
        return "the history does not say which of its records were written in a transaction"
    outside = """SELECT count(*) FROM history.output
        WHERE output = $output AND visibility = 'committed' AND txn_end_offset IS NULL"""
    count = case.number(outside, {"output": output})
    return f"{times(count, 'record')} of it outside of any transaction" if count else None


def _broken(case: Case, output: str) -> Iterator[Finding]:
    case.sql(_BROKEN, {"output": output})
    total = case.number("SELECT sum(hidden) FROM broken")
    if not total:
        return
    rows = case.rows(_BROKEN_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    topic = case.scenario.outputs[output].topic
    yield Finding(
        anomaly="torn-batch",
        output=output,
        total=total,
        summary=f"{times(total, 'record')} not committed, of transactions of which other records are",
        witnesses=tuple(
            Witness(identity_of(row), _half(row, topic), positions=(f"{topic}/{row['stands']}", row["place"]))
            for row in rows
            if row["id"] is not None
        ),
        source="transaction",
    )


def _half(row: Row, topic: str | None) -> str:
    return (
        f"Producer {row['producer_id']} wrote {topic}/{row['stands']} and {row['place']} in its epoch {row['producer_epoch']}, "
        f"and the records of both kinds were created in overlapping times: it is one transaction.\n"
        f"Yet the first is committed, and the second {row['visibility']}."
    )


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
