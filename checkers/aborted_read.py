"""``aborted-read``: a row or record written from the input of an aborted transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import MODELS, Identity, Txn, World, at, effect_of
from onceproof.judge.witness import Row, by, cause_of, counted, finding, holding

# A row of ``judge.dirty`` may count several effects; the batch is the one that read the aborted record.
_ABORTED = """
    CREATE OR REPLACE TEMP TABLE aborted_reads AS
    SELECT d.*, i.visibility IS NOT DISTINCT FROM 'aborted' AS named, i.txn_end_offset, b.query, b.batch
    FROM judge.dirty d
    LEFT JOIN history.input i ON i.topic = d.topic AND i."partition" = d."partition" AND i."offset" = d."offset"
    LEFT JOIN judge.output_batches b ON b.output = d.output AND b.topic = d.topic AND b."partition" = d."partition"
         AND d."offset" >= b.start_offset AND d."offset" < b.end_offset
    WHERE d.kind = 'aborted'
    QUALIFY row_number() OVER (PARTITION BY d.output, d.id, d.content ORDER BY b.query, b.batch) = 1"""

_TOTALS = """
    SELECT output, CASE WHEN named THEN 'from ' || topic || '/' || "partition" ELSE 'computed from aborted input' END AS label,
           query || '/' || batch AS of_batch, sum(n)::BIGINT AS total
    FROM aborted_reads GROUP BY ALL ORDER BY output, label, of_batch"""

_WITNESSES = """
    SELECT * REPLACE (CASE WHEN named THEN "offset" END AS "offset") FROM aborted_reads a
    WHERE output = $output ORDER BY a.topic, a."partition", a."offset", id, content LIMIT $limit"""


def aborted_record_taken(world: World, choose: Choices) -> Named:
    """The source reads an aborted record: an append holds its effect, a state includes it."""
    output = choose.one(world.outputs)
    model = MODELS[output]
    records = choose.some(
        [r for r in world.records if r.visibility == "aborted" and model.takes(r) and world.is_committed(r.batch)]
    )
    named: Counter[Identity] = Counter()
    final = {write.identity: write for _, write in world.visible(output)}
    for record in records:
        write = effect_of(record) if model.kind == "append" else world.state_at(record, dirty=True)
        if model.kind == "upsert":
            of_key = [r for r in world.records if r.key == record.key]
            write = world.state_at(max(of_key, key=lambda r: r.offset), dirty=True)
            named.pop(write.identity, None)
            if write.identity in final:
                final[write.identity].values = write.values
                named[write.identity] += 1
                continue
            final[write.identity] = write
        named[write.identity] += 1
        batch = world.batches[record.batch]
        assert batch.committed_by is not None
        world.txns.append(Txn(output, record.batch, batch.committed_by, at(record.batch, 7), [write]))
    return {("aborted-read", output): named}


@checkers.register("aborted-read")
class AbortedRead(Checker):
    """Counts effects that only aborted input explains (`onceproof.judge.relations.dirty_reads`).

    They occur if the source reads uncommitted records.

    Jepsen calls it G1a (Adya, *Weak Consistency*, 1999). A sum or a window that includes aborted input counts too, where its
    value is the one that includes all aborted input. These effects are then neither ``unexplained`` nor
    ``wrong-value``. An aborted record that equals a committed one cannot be distinguished: its effect is a ``duplicate``.
    Only the input is checked: a read_committed reader never gets what the job itself aborts in Kafka.
    """

    meaning = "a row or record comes from the input of an aborted transaction (Jepsen: G1a)"
    explanation = Explanation(
        example="A producer wrote an order, aborted its transaction and wrote the order again: the table holds it twice.",
        causes=(
            "The source reads with Kafka's default isolation level, read_uncommitted, as Spark's Kafka source does unless the "
            "job sets another (input with aborted transactions).",
            "A delayed EndTxn commits the next transaction of a reused producer, which should have been aborted (KAFKA-17754).",
        ),
        decided="Committed input does not explain the row or record, but the oracle expects exactly this one if aborted "
        "records count too (records of a transaction that never ended: precommitted-read). It is then neither "
        "unexplained nor a wrong-value. An aborted record that equals a committed one cannot be distinguished: what "
        "it causes is a duplicate. Not evaluated where the oracle's answer is stored and the oracle cannot be asked "
        "again.",
        stops=(
            "kafka.isolation.level=read_committed as an option of the source.",
            "A fresh producer for each transaction.",
        ),
        sources=(
            "A. Adya, Weak Consistency (1999): G1a, aborted reads",
            "Jepsen, Redpanda 21.10.1 (2022) and Bufstream 0.1.0 (2024): aborted reads",
            "KIP-98: read_committed",
        ),
    )
    rule = FORBIDDEN
    comes_with = {
        "diverged-replay": "another attempt did not read the aborted record",
        "commit-ahead-of-effect": "progress was recorded, and the right content never came",
        "torn-batch": "it is in another commit than the rest of its batch",
        "sink-disagreement": "another output has the right row or record for the same input",
    }
    damages = (Damage(aborted_record_taken, "an aborted record is in the output, or is counted in a state"),)

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.differs:
            return
        yield from _gaps(case)
        if not case.number("SELECT count(*) FROM judge.dirty"):
            return
        case.sql(_ABORTED)
        for rows in by(case.rows(_TOTALS), "output"):
            summary = f"{counted(case, rows)} that only aborted input explains"
            yield finding(case, "aborted-read", rows, summary, _WITNESSES, _argument, placed=True)


def _gaps(case: Case) -> Iterator[Gap]:
    """Outputs with effects that committed input does not explain, where the oracle cannot be asked about uncommitted input."""
    if not case.number("SELECT count(*) FROM judge.tally WHERE wrong + unexplained > 0") or case.uncommitted():
        return
    suspects = "SELECT DISTINCT output FROM judge.tally WHERE wrong + unexplained > 0 ORDER BY output"
    for row in case.rows(suspects):
        yield Gap(
            row["output"],
            "some input is not committed, and the oracle cannot be asked which rows or records that input would explain",
        )


def _argument(case: Case, row: Row) -> str:
    if row["named"]:
        marker = "" if row["txn_end_offset"] is None else f", by the marker at offset {row['txn_end_offset']}"
        aborted = f"The transaction of input {cause_of(row)} was aborted{marker}."
    else:
        aborted = "If aborted input counted too, the oracle would expect exactly this content."
    return (
        f"{aborted}\n"
        f"No committed input explains {'this identity' if row['part'] == 'unexplained' else 'this content'}.\n"
        f"But {holding(case, row['output'], row['n'], row['places'])}."
    )
