"""``hanging-transaction``: an open transaction keeps the last stable offset below existing records."""

from __future__ import annotations

from collections import Counter

from onceproof.base.words import times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import TOPICS, World, identity
from onceproof.judge.witness import Row, by, columns, finding, total_of
from onceproof.values.canonical import literal

# One row per partition with open records: its first open record, and how many records cannot be read because of it. Without a
# row in ``partitions`` (an imported history), the offset of the first open record is used as the last stable offset.
_HANGING = """
    CREATE OR REPLACE TEMP TABLE hanging AS
    WITH logs AS (
        SELECT * FROM (VALUES {outputs}) o(output, topic) JOIN (
            SELECT output AS name, "partition", "offset", visibility, timestamp_ms, producer_id, producer_epoch
            FROM history.output WHERE "partition" IS NOT NULL) ON name = o.output
        UNION ALL BY NAME
        SELECT topic AS output, topic, "partition", "offset", visibility, timestamp_ms, producer_id, producer_epoch
        FROM history.input),
    first AS (
        SELECT output, topic, "partition", count(*) AS opened,
               min_by({{pos: "offset", ms: timestamp_ms, id: producer_id, epoch: producer_epoch}}, "offset") AS head
        FROM logs WHERE visibility = 'open' GROUP BY ALL),
    stable AS (
        SELECT f.*, least(p.stable_offset, f.head.pos) AS stable_offset, p.end_offset, p.collected_ms
        FROM first f LEFT JOIN history.partitions p ON p.topic = f.topic AND p."partition" = f."partition")
    SELECT s.*, (SELECT count(*) FROM logs l WHERE l.output = s.output AND l."partition" = s."partition"
                 AND l."offset" >= s.stable_offset AND l.visibility <> 'aborted') AS unreadable
    FROM stable s"""

_OPEN = """
    SELECT (SELECT count(*) FROM history.input WHERE visibility = 'open') + (SELECT count(*) FROM history.output WHERE visibility = 'open')"""

_TOTALS = """
    SELECT output, 'in ' || topic || '/' || "partition" || ' from offset ' || stable_offset AS label, unreadable AS total
    FROM hanging ORDER BY output, "partition" """

_WITNESSES = """
    SELECT *, topic || '/' || "partition" || '@' || head.pos AS place
    FROM hanging WHERE output = $output ORDER BY "partition" LIMIT $limit"""


def last_transaction_left_open(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    committed = world.committed(output)
    choose.need(committed)
    last = committed[-1]
    last.visibility = "open"
    open_in = Counter(write.partition for write in last.writes)
    unreadable = {identity(topic=output, partition=partition): records for partition, records in open_in.items()}
    return {("hanging-transaction", output): Counter(unreadable)}


@checkers.register("hanging-transaction")
class HangingTransaction(Checker):
    """Counts the records that no read_committed reader gets because a transaction at or before them has not ended.

    These are the records of the open transaction and all records after it: readers stop at the last stable offset
    (KIP-98). Checked at collection, after everything was healed and drained. The transaction may stay open for its
    producer's ``transaction.timeout.ms``, which no log records, so its age is given instead. KAFKA-14402 (KIP-890) is a
    transaction that stays open for ever. The output of the finding is an output, or an input topic: no pipeline can
    read past the open transaction there.
    """

    meaning = "the last stable offset is stuck: records after an open transaction cannot be read"
    explanation = Explanation(
        example="The producer reports a thousand records written. read_committed readers have been at offset 412 for an hour.",
        causes=(
            "A writer dies with an open transaction and restarts under another transactional.id, so nobody ends the old "
            "one before its timeout (crash at before-sink-commit).",
            "transaction.timeout.ms is set to hours, or a late request opens a transaction that no producer knows of.",
        ),
        decided="At collection, after everything was healed and drained, the last stable offset of a partition is "
        "below its high watermark. Every record from there on counts here, and none of them as lost. No log records "
        "how long the transaction may stay open, so its age is given. Needs the offsets of both isolation levels at "
        "collection.",
        stops=(
            "A stable transactional.id for each slot: its next init_transactions ends the transaction left open.",
            "A transaction timeout of seconds; brokers that verify transactions (KIP-890, part 1).",
        ),
        sources=(
            "KIP-890: Transactions Server-Side Defense; KAFKA-14402",
            "KIP-664: tooling to detect and abort hanging transactions",
        ),
    )
    rule = FORBIDDEN
    comes_with = {
        "wrong-value": "the last readable state of an upsert is an older one",
        "torn-batch": "the rest of its batch can be read",
        "sink-disagreement": "another output has the row or record for the same input",
        "commit-ahead-of-effect": "progress was recorded, and the record cannot be read",
    }
    damages = (Damage(last_transaction_left_open, "the last transaction of an output never ended", only=TOPICS),)

    by_digest = True

    def check(self, case: Case) -> Results:
        if not case.number(_OPEN):
            return
        topics = {name: spec.topic for name, spec in case.scenario.outputs.items() if spec.topic is not None}
        outputs = ", ".join(f"({literal(name)}, {literal(topic)})" for name, topic in topics.items())
        case.sql(_HANGING.format(outputs=outputs or "(NULL, NULL)"))
        for rows in by(case.rows(_TOTALS), "output"):
            records = times(total_of(rows), "record")
            summary = f"{records} that read_committed readers do not get, because of an open transaction"
            identity = columns("topic", "partition")
            yield finding(
                case, "hanging-transaction", rows, summary, _WITNESSES, _argument, at=["place"], identity=identity
            )


def _argument(_case: Case, row: Row) -> str:
    head = row["head"]
    who = "an unknown producer" if head["id"] is None else f"producer {head['id']} (epoch {head['epoch']})"
    known = row["collected_ms"] is not None and head["ms"] is not None
    age = f", {(row['collected_ms'] - head['ms']) / 1000:.1f} s before the end of the run" if known else ""
    end = "" if row["end_offset"] is None else f" of {row['end_offset']}"
    return (
        f"A transaction of {who} wrote {row['place']}{age}; it has neither been committed nor aborted.\n"
        f"But readers get no further than offset {row['stable_offset']}{end}: "
        f"{times(row['unreadable'], 'record')} cannot be read."
    )
