"""``lost-write``: an expected row or record is missing although recorded progress covers its input."""

from __future__ import annotations

from collections import Counter

from onceproof.base.words import times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import STRUCK, ClaimRule
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import MODELS, World
from onceproof.judge.witness import Row, by, counted, finding, input_of, labelled, noun, sums, total_of

# An effect in a transaction that has not ended is not lost yet: that is a hanging transaction.
_CHOSEN = "NOT hidden AND (covered OR $drained)"

_TOTALS = f"""
    SELECT output, reason AS source, active, batch IS NULL AS nowhere,
           CASE WHEN batch IS NOT NULL THEN 'from batch ' || batch || ' (query ' || query || ')' ELSE 'from an unknown batch' END
           || CASE WHEN fault IS NOT NULL AND batch IS NULL THEN ' that a fault struck: ' || fault
                   WHEN fault IS NOT NULL THEN ', struck by ' || fault
                   WHEN active IS NOT NULL THEN '; active at that time: ' || active ELSE '' END AS label,
           query || '/' || batch AS of_batch, bool_and(covered) AS covered, count(*) AS total
    FROM judge.lost WHERE {_CHOSEN} GROUP BY ALL ORDER BY output, source, label, of_batch"""  # noqa: S608

_WITNESSES = f"""
    SELECT m.*, t.expected, t.actual, p.end_offset, b.planned_by, b.committed_by
    FROM judge.lost m JOIN judge.tally t ON t.output = m.output AND t.id = m.id
    LEFT JOIN judge.progress p ON p.output = m.output AND p.topic = m.topic AND p."partition" = m."partition"
    LEFT JOIN judge.batches b ON b.query = m.query AND b.batch = m.batch AND b.topic = m.topic AND b."partition" = m."partition"
    WHERE m.output = $output AND {_CHOSEN} AND m.reason = $source
    ORDER BY m.topic, m."partition", m."offset", m.id LIMIT $limit"""  # noqa: S608

# Missing effects that some progress covers and other progress does not: they are lost or still to come.
_DOUBTFUL = """
    SELECT m.output, count(*) AS n FROM judge.lost m
    JOIN judge.progress p ON p.output = m.output AND p.topic = m.topic AND p."partition" = m."partition"
    WHERE NOT m.hidden AND NOT m.covered AND m."offset" < p.furthest GROUP BY m.output ORDER BY m.output"""


def effect_never_written(world: World, choose: Choices) -> Named:
    """Drop an effect; of a changelog only the last state, of an upsert all states of the identity."""
    output = choose.one(world.outputs)
    sites = choose.some(world.last_of_each(output))
    for _, write in sites:
        of_it = [w for txn in world.committed(output) for w in txn.writes]
        upsert = MODELS[output].kind == "upsert"
        for other in [w for w in of_it if upsert and w.identity == write.identity] or [write]:
            world.drop(other)
    return {("lost-write", output): Counter(write.identity for _, write in sites)}


@checkers.register("lost-write")
class LostWrite(Checker):
    """Counts expected effects that are missing although their input counts as done.

    Done means: the query that writes the output (if the output names none: every query that reads the source partition) has
    recorded an offset beyond the cause, or the run drained. An effect for which neither is known is not evaluated, nor one
    that only one of several queries is done with, nor one of a committed batch of a query that recorded no progress.
    Only committed input is expected to have effects, so aborted records, and offsets that transaction markers use up, are not
    losses. Nor is an effect in another place (``misplaced``) or in a transaction that has not ended
    (``hanging-transaction``). There is one finding per reason:

    - ``fault``: a fault struck the batch of the effect, or the consumer that held its message;
    - ``no fault``: its batch is known, and no fault was active in it; or no fault was injected at all;
    - ``unknown``: its batch is not known, or a fault that struck another batch was still active, or the history was imported.

    The batch is that of the input record; for an effect of several records, `onceproof.judge.relations.struck` finds it.
    """

    meaning = "an expected row or record is missing although recorded progress covers its input"
    explanation = Explanation(
        example="Kafka acknowledged an order, the job has long moved past it, and the order is not in the table.",
        causes=(
            "The sink records its progress, or Spark writes commits/N, before the rows are durable: "
            "after a crash in between, nobody retries the batch (crash at before-sink-commit).",
            "Two sinks share one record of progress. The first commits it with its rows, the driver dies before the second has "
            "written, and the replay skips the batch for both (crash at between-sinks).",
            "The sink catches an error and carries on, so Spark believes that the batch was written (reject).",
            "The job takes a lost acknowledgement for a failure and gives the batch up; a prepared transaction is "
            "aborted by its timeout (lost-ack, lost-request).",
            "A producer is used again after an indefinite error: an EndTxn that arrives late ends its next transaction "
            "(KAFKA-17754).",
            "acks=1 and the leader dies: the acknowledged records were on one disk only (crash of the leader).",
            "The log deletes a record before a slow reader has read it, and the reader's client silently continues with the "
            "oldest one that is left (retention).",
            "A record waits in the process's memory, for the other side of a join or for a full buffer, and dies with it: "
            "Spark does not read its batch again (crash at after-sink-commit of a later batch).",
            "A topic is deleted and created again, and a reader continues at its stored offset in the old one, past new records "
            "(recreate-topic).",
            "The coordinator of a two-phase commit restarts and rolls back a prepared transaction whose commit was decided.",
        ),
        decided="The oracle expects the row or record, no reader sees it, and its input counts as done: the query that "
        "writes the output (if the output names none: each query that reads the partition) recorded an offset beyond "
        "it, or the run drained. Aborted input, and offsets that transaction markers use up, are not expected "
        "in any output. A record in an open transaction is a hanging-transaction instead, one in another place is "
        "misplaced. Not evaluated where the run did not drain and no recorded progress shows whether a row is "
        "lost or late: if only one of several queries that may write the output is done with its input, or if a query "
        "committed batches and recorded no progress. The batch of a row is that of its input record. A sum or a window has no single input "
        "record: its batch is the one in which the window closes (_closes), or the struck batch from whose input "
        "alone it follows. Otherwise the batch is unknown; if a fault fired, at-most-once is then inconclusive.",
        stops=(
            "Write rows and progress in one transaction of the sink (onceproof.sinks).",
            "Keep what waits for later input in Spark's state: a join of two streams, a window.",
            "Log the decision of a two-phase commit before its first COMMIT PREPARED.",
            "Webhook: commit what is to be sent in an outbox, with the data; then send it, and mark it as sent after that.",
        ),
        after={
            "between-sinks": "Let each of the two sinks keep its own progress, or commit to one of them an outbox from which the other is "
            "written (docs/sinks.md#both-a-table-and-a-topic).",
            "reject": "Let errors end the query: the restart runs the batch again, and the write is not lost.",
            "poison": "Put a record that cannot be processed into a dead-letter table or topic, with its place, and then continue.",
            "stop": "At SIGTERM finish the batch, or end without returning from foreachBatch: to Spark a batch whose function "
            "returned is done. Let the error that query.stop() causes leave the function.",
            "crash executor": "Let a row depend on its record alone: Spark computes a lost partition again, also a persisted one.",
            "failover": "Postgres: let commits wait for the replica that may take over (synchronous_commit=remote_apply).",
            "crash broker": "Kafka: acks=all with min.insync.replicas=2 on three brokers.",
            "partition leader": "Kafka: acks=all with min.insync.replicas=2 on three brokers.",
            "late-request": "Kafka: a fresh producer for each transaction.",
            "checkpoint-damage": "Record offsets under the name of the pipeline: with a new checkpoint, batch ids begin at 0 again.",
            "retention": "A reader ends if its next record is gone (auto.offset.reset=none; Spark: failOnDataLoss=true), and its "
            "lag is watched.",
            "recreate-topic": "Store the topic's id (KIP-516) with an offset that you keep outside Kafka.",
        },
        sources=(
            "Jepsen, Bufstream 0.1.0 (2024), on writes lost to a delayed EndTxn; KAFKA-17754; KIP-890",
            "Jepsen's Kafka workload (jepsen.tests.kafka): lost-write",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Fault tolerance",
        ),
    )
    rule = ClaimRule(allows=(STRUCK,))
    comes_with = {
        "torn-batch": "the rest of its batch is visible",
        "sink-disagreement": "another output has the row or record for the same input",
        "commit-ahead-of-effect": "progress was recorded, and the row or record never came",
    }
    damages = (Damage(effect_never_written, "a row or record, or the last state of an identity, was never written"),)

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.differs:
            return
        for rows in by(case.rows(_TOTALS, {"drained": case.drained}), "output", "source"):
            unsettled = _unsettled(case, rows) if rows[0]["source"] == "unknown" else None
            summary = _summary(case, rows)
            yield finding(case, "lost-write", rows, summary, _WITNESSES, _argument, unsettled=unsettled)
        if not case.drained:
            blind = """SELECT output, count(*) AS n FROM judge.lost WHERE "offset" IS NULL AND NOT hidden GROUP BY output ORDER BY output"""
            for row in case.rows(blind):
                ended = "history was imported as not drained" if case.run.imported else "run did not drain"
                why = f"the {ended}, and the oracle names no cause (_partition, _offset) to compare with recorded progress"
                yield Gap(row["output"], f"{times(row['n'], noun(case, row['output']))} missing, but {why}")
            for row in case.rows(_DOUBTFUL):
                yield Gap(
                    row["output"],
                    f"{times(row['n'], noun(case, row['output']))} missing, {_doubt(case, row['output'])}",
                )


def _doubt(case: Case, output: str) -> str:
    if case.scenario.outputs[output].query is None and len(case.queries) > 1:
        return "whose input one query is done with and another is not: let the output name the query that writes it"
    return "from committed batches of a query that has recorded no progress: it is not known whether the job is done with them"


def _summary(case: Case, rows: list[Row]) -> str:
    source, labels = rows[0]["source"], sums(rows, "label")
    done = " although recorded progress covers the input" if all(row["covered"] for row in rows) else ""
    what = f"{counted(case, rows)} missing{done}"
    if source == "fault":
        return (
            labelled(total_of(rows), what, labels) if len(labels) == 1 else f"{what}, from batches that faults struck"
        )
    if source == "unknown":
        return f"{what}; it is not known whether a fault is the cause"
    injected = case.number("SELECT count(*) FROM history.faults WHERE fired_at IS NOT NULL")
    return f"{what}; no fault was {'active in the batch' if injected else 'injected'}"


def _unsettled(case: Case, rows: list[Row]) -> str:
    if case.run.imported:
        return "the history was imported: it records no faults"
    if any(row["active"] is None for row in rows):
        return "the batch that lost them is not known"
    return "the faults active at that time struck other batches, so none of them is known to be the cause"


def _argument(case: Case, row: Row) -> str:
    expected = f"{times(row['expected'], noun(case, row['output']))} expected"
    return f"{input_of(row)} is committed{_taken(row)}.\n{_done(case, row)}.\n{_not_planned(case)}But of {expected}, {row['actual']} can be read; {_why(case, row)}."


def _not_planned(case: Case) -> str:
    """Notes on batches that Spark never planned: one of them might have written the effect."""
    return "".join(f"But {note}.\n" for _, note in case.open_watermarks("none"))


def _done(case: Case, row: Row) -> str:
    if row["covered"]:
        return f"Progress of {row['topic']}/{row['partition']} is recorded up to {row['end_offset']}"
    if case.run.imported:
        return "The history was imported as complete; it records no progress"
    return "The run drained: it reached the end of the input"


def _why(case: Case, row: Row) -> str:
    if row["fault"] is not None and row["found_by"] is not None:
        return f"a fault struck its batch: {row['fault']}"
    if row["fault"] is not None:
        struck = "struck the batches of its input" if row["offset"] is None else "struck a consumer that held it"
        return f"a fault {struck}: {row['fault']}"
    if row["active"] is not None:
        return f"the cause is unknown; active at that time: {row['active']}"
    if row["reason"] == "unknown":
        return "the history records no faults" if case.run.imported else "the batch that lost it is unknown"
    return "no fault struck it" if row["batch"] is None else "no fault was active in its batch"


def _taken(row: Row) -> str:
    """Which batch read the input, and which start of the driver committed the batch."""
    if row["batch"] is None:
        return ""
    of_batch = f"batch {row['batch']} of query {row['query']}"
    if row["found_by"] == "window":
        return f", and its window closes in {of_batch}"
    if row["found_by"] == "follows":
        return f", and all of it is in {of_batch}"
    batch = f", in {of_batch}"
    if row["planned_by"] is None:
        return batch
    start = f"driver start {row['planned_by']}"
    if row["planned_by"] == row["committed_by"]:
        return f"{batch}, planned and committed by {start}"
    committed = "never committed" if row["committed_by"] is None else f"committed by start {row['committed_by']}"
    return f"{batch}, planned by {start} and {committed}"
