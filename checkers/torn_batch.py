"""``torn-batch``: part of an atomic unit is visible without the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onceproof.base.words import are, times
from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import Allows, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.judge.relations import misplacement, torn_batches
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Identity, Txn, World
from onceproof.judge.witness import Row, by, cause_of, counted, finding, noun, sums
from onceproof.stores.contract import SnapshotOnly, store_of

_APART = """
    SELECT output, query || '/' || batch AS of_batch, count(*) AS total FROM judge.torn WHERE output = $output
    GROUP BY output, query, batch ORDER BY query, batch"""

_APART_WITNESSES = """
    SELECT * FROM judge.torn WHERE output = $output ORDER BY query, batch, topic, "partition", "offset", id LIMIT $limit"""

# Missing effects of batches whose other effects are there, with the input of one that is (``present``).
_PARTIAL = """
    CREATE OR REPLACE TEMP TABLE partial_batches AS
    WITH short AS (SELECT DISTINCT query, batch FROM judge.lost WHERE output = $output AND batch IS NOT NULL),
    here AS (
        SELECT c.query, c.batch, min_by({topic: c.topic, "partition": c."partition", "offset": c."offset"},
                                        (c."offset", c."partition")) AS present
        FROM judge.caused c JOIN short s ON s.query = c.query AND s.batch = c.batch
        WHERE c.output = $output GROUP BY c.query, c.batch)
    SELECT m.*, h.present.topic || '/' || h.present."partition" || '@' || h.present."offset" AS present
    FROM judge.lost m JOIN here h ON h.query = m.query AND h.batch = m.batch WHERE m.output = $output"""

_PARTIAL_TOTALS = """
    SELECT output, coalesce(covered, false) OR $drained AS stays, query || '/' || batch AS of_batch,
           'from batch ' || batch || ' (query ' || query || ')'
           || coalesce(', struck by ' || fault, '; active at that time: ' || active, '') AS label, count(*) AS total
    FROM partial_batches GROUP BY ALL ORDER BY stays DESC, of_batch, label"""

_PARTIAL_WITNESSES = """
    SELECT * FROM partial_batches WHERE (coalesce(covered, false) OR $drained) = $stays
    ORDER BY query, batch, topic, "partition", "offset", id LIMIT $limit"""

# Records of one producer epoch of which some were committed and others were not. If their creation times overlap, they
# belong to one transaction and not to two consecutive ones. It does not follow if the job sets the times itself (``own``): a
# batch that was aborted and written again has the same times twice.
_BROKEN = """
    CREATE OR REPLACE TEMP TABLE broken AS
    SELECT producer_id, producer_epoch, count(*) FILTER (visibility <> 'committed') AS hidden,
           min_by("partition" || '@' || "offset", ("partition", "offset")) FILTER (visibility = 'committed') AS present,
           (producer_id, producer_epoch) IN (SELECT (producer_id, producer_epoch) FROM own_times) AS own
    FROM history.output WHERE output = $output AND producer_id IS NOT NULL
        AND (txn_end_offset IS NOT NULL OR visibility = 'open')
    GROUP BY producer_id, producer_epoch
    HAVING min(timestamp_ms) FILTER (visibility = 'committed') < max(timestamp_ms) FILTER (visibility <> 'committed')
       AND min(timestamp_ms) FILTER (visibility <> 'committed') < max(timestamp_ms) FILTER (visibility = 'committed')"""

_BROKEN_WITNESSES = """
    SELECT c.id, c.place, c.visibility, b.producer_id, b.producer_epoch, o.named || '/' || b.present AS present
    FROM (FROM broken WHERE NOT own) b JOIN judge.outputs o ON o.output = $output
    JOIN history.output h ON h.output = $output AND h.producer_id = b.producer_id AND h.producer_epoch = b.producer_epoch
        AND h.visibility <> 'committed'
    JOIN judge.changes c ON c.output = h.output AND c."partition" = h."partition" AND c."offset" = h."offset"
    WHERE c.id IS NOT NULL ORDER BY c.lane, c.pos LIMIT $limit"""


def batch_in_two_commits(world: World, choose: Choices) -> Named:
    """The smaller part of a batch is committed later than the rest; in the end everything is there."""
    output = choose.one(world.outputs)
    named: Counter[Identity] = Counter()
    for txn in choose.some([t for t in world.committed(output) if len(t.writes) > 1]):
        cut = choose.number((len(txn.writes) + 1) // 2, len(txn.writes) - 1)
        late = Txn(output, txn.batch, txn.start, txn.at_ms + 500, txn.writes[cut:])
        txn.writes = txn.writes[:cut]
        world.after(txn, late)
        named.update(write.identity for write in min(late.writes, txn.writes, key=len))
    return {("torn-batch", output): named}


@checkers.register("torn-batch")
class TornBatch(Checker):
    """Counts effects that could not be read together with the rest of their unit.

    The unit is the micro-batch (``source`` ``batch``), and in Kafka also the transaction (``source`` ``transaction``):

    - **in several steps**: effects that became visible apart from most of their batch (`onceproof.judge.relations.torn_batches`).
      Transient: all of them are there in the end;
    - **in part**: missing effects of a batch whose other effects are there. This survives, unless the run did not drain and
      no progress covers them;
    - **a transaction in part**: records that are aborted or still open, of a transaction whose other records are committed
      (the Jepsen report on Bufstream 0.1.0, and KAFKA-17754, show the mechanism). Their creation times show that it is one
      transaction, if they are those of the producer's clock.

    A Postgres transaction is always whole: the stream is decoded commit by commit. Where atomicity is claimed and the history
    cannot show it, the result is a gap.
    """

    meaning = "part of an atomic unit is visible without the rest"
    explanation = Explanation(
        example="A transfer is a debit and a credit. For eight seconds, or for ever, the debit is there and the credit is not.",
        causes=(
            "The sink commits row by row or partition by partition (autocommit, a JDBC sink): a crash in the middle leaves "
            "only the first part (crash at in-tasks).",
            "The records of one batch go to Kafka without a transaction.",
            "A delayed EndTxn ends the next transaction of a reused producer when only half of it is written (KAFKA-17754).",
        ),
        decided="The unit is the micro-batch, and in Kafka also the transaction. If part of a batch's rows can be "
        "read and the rest is missing at the end, it survived. If they became visible in several steps and are "
        "complete at the end, it is transient. If some records of a Kafka transaction are committed and others "
        "aborted or still open, it survived. A batch in part or in steps violates atomic: batch; "
        "a transaction in part violates atomic: transaction as well. Not "
        "evaluated unless the history shows which input caused which row, or the times of the commits and these fit the times of "
        "the batches, nor for the transactions "
        "of a producer epoch whose records carry creation times that the job has set itself.",
        stops=(
            "One sink transaction for the whole batch: stage in tasks, publish in the driver's commit.",
            "In readers: read_committed on Kafka, the snapshot of one transaction on Postgres.",
        ),
        sources=(
            "Jepsen, Bufstream 0.1.0 (2024): torn transactions",
            "Spark, DataSource V2: BatchWrite.commit publishes what the tasks prepared",
            "P. Bailis et al., Scalable Atomic Visibility with RAMP Transactions (2014): fractured reads",
        ),
    )
    rule = ClaimRule(
        allows=(
            Allows(
                claim={"atomic": "none"},
                what="all of it; what stays missing is a lost-write as well",
                why="{transient}no atomicity is claimed; what never came is a lost-write",
            ),
            Allows(
                claim={"atomic": "transaction"},
                what="a batch written in several transactions",
                why="atomicity is claimed for transactions, and a batch may be written in several of them",
                when=lambda finding: finding.source != "transaction",
            ),
        )
    )
    comes_with = {
        "lost-write": "the missing part of the batch is lost",
        "sink-disagreement": "another output has the whole batch",
        "commit-ahead-of-effect": "progress was recorded before part of the batch was there",
        "reordered": "part of the batch came after rows of a later batch",
    }
    damages = (
        Damage(
            batch_in_two_commits, "a batch in two commits: its smaller part is in a commit of its own", only=APPENDS
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        torn_batches.create(case)
        for output, spec in case.outputs.items():
            atomic = case.scenario.claim_of(output).atomic
            gap = torn_batches.of_output(case, output, claimed=atomic == "batch")
            # The database of a table that onceproof cannot follow may have no transactions at all.
            unfollowed = isinstance(store_of(spec), SnapshotOnly)
            if gap is not None and (atomic == "batch" or (atomic == "transaction" and unfollowed)):
                yield Gap(output, gap)
            yield from _in_steps(case, output)
            yield from _in_part(case, output)
            if spec.topic is not None:
                if atomic == "transaction" and (gap := _no_transactions(case, output)):
                    yield Gap(output, gap)
                yield from _broken(case, output, claimed=atomic == "transaction")


def _in_steps(case: Case, output: str) -> Iterator[Finding]:
    if not case.number("SELECT count(*) FROM judge.torn"):
        return
    if rows := case.rows(_APART, {"output": output}):
        yield finding(
            case,
            "torn-batch",
            rows,
            f"{counted(case, rows)} visible apart from the rest of their batch, in {times(len(rows), 'batch')}",
            _APART_WITNESSES,
            _step_argument,
            at=["main_place", "place"],
            source="batch",
            transient=True,
        )


def _step_argument(case: Case, row: Row) -> str:
    kind = noun(case, row["output"])
    what = f"this {kind}" if row["offset"] is None else f"the {kind} of {cause_of(row)}"
    return (
        f"Batch {row['batch']} of query {row['query']} is one unit; other {kind}s of it became visible at {row['main_place']}.\n"
        f"But {what} became visible at {row['place']}: readers saw one without the other."
    )


def _in_part(case: Case, output: str) -> Iterator[Finding]:
    lost = "SELECT count(*) FROM judge.lost WHERE output = $output AND batch IS NOT NULL"
    if not case.differs or not case.number(lost, {"output": output}):
        return
    case.sql(_PARTIAL, {"output": output})
    for rows in by(case.rows(_PARTIAL_TOTALS, {"drained": case.drained}), "stays"):
        batches = times(len(sums(rows, "of_batch")), "batch")
        yield finding(
            case,
            "torn-batch",
            rows,
            f"{counted(case, rows)} missing from {batches} whose other {noun(case, output)}s are there",
            _PARTIAL_WITNESSES,
            _part_argument,
            source="batch",
            transient=not rows[0]["stays"],
        )


def _part_argument(case: Case, row: Row) -> str:
    kind = noun(case, row["output"])
    return (
        f"Batch {row['batch']} of query {row['query']} is one unit. It read {row['present']} and "
        f"{cause_of(row)}.\nThe {kind} of {row['present']} is there, but that of {cause_of(row)} is missing."
    )


def _no_transactions(case: Case, output: str) -> str | None:
    """Why a claim about transactions cannot be judged for this output, or None."""
    if not torn_batches.producers_known(case, output):
        return "the history does not show which of its records were written in a transaction"
    outside = """SELECT count(*) FROM history.output
        WHERE output = $output AND visibility = 'committed' AND txn_end_offset IS NULL"""
    count = case.number(outside, {"output": output})
    return f"{times(count, 'record')} {are(count)} outside of any transaction" if count else None


def _broken(case: Case, output: str, *, claimed: bool) -> Results:
    if not sources.hidden(case, output):
        return
    torn_batches.find_own_times(case, output)
    case.sql(_BROKEN, {"output": output})
    if claimed and (unclear := case.number("SELECT count(*) FROM broken WHERE own")):
        yield Gap(
            output,
            f"{times(unclear, 'producer epoch')} has both committed and other records, whose creation times are not those of a "
            "clock that advances: the job may set them itself, and they do not tell which records are of one transaction",
        )
    if total := case.number("SELECT sum(hidden) FROM broken WHERE NOT own"):
        case.changes()
        rows = [{"output": output, "total": total}]
        summary = f"{times(total, 'record')} not committed, in transactions whose other records are"
        at = ["present", "place"]
        yield finding(
            case, "torn-batch", rows, summary, _BROKEN_WITNESSES, _broken_argument, at=at, source="transaction"
        )


def _broken_argument(_case: Case, row: Row) -> str:
    return (
        f"Producer {row['producer_id']} wrote {row['present']} and {row['place']} in its epoch {row['producer_epoch']}, "
        f"and the creation times of its committed and its other records overlap: it is one transaction.\n"
        f"But the first record is committed, and the second {'still open' if row['visibility'] == 'open' else row['visibility']}."
    )
