"""``duplicate``: a row or record is there more often than expected."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import partial

from onceproof.base.words import are, times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Results, checkers
from onceproof.judge.claim_rule import Allows, ClaimRule
from onceproof.judge.relations import changes, misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Identity, Txn, World, at
from onceproof.judge.witness import Row, by, finding, holding, input_of, labelled, noun, sums, total_of
from onceproof.scenario.modes import without_batches

# One row per copy: of equal effects, those beyond the expected number, latest first.
_COPIES = """
    CREATE OR REPLACE TEMP TABLE copies AS
    WITH ranked AS (
        SELECT e.output, e.id, e.content, e."partition", e."offset", e.commit_order, e.lane, e.pos, r.extra, r.expected, r.actual,
               c.expected AS allowed, row_number() OVER equal AS nth, first_value(e.lane) OVER equal AS first_lane,
               first_value(e.pos) OVER equal AS first_pos
        FROM judge.effects e
        JOIN judge.counts c ON c.output = e.output AND c.id = e.id AND c.content = e.content AND c.expected > 0 AND c.actual > c.expected
        JOIN judge.remaining r ON r.output = e.output AND r.id = e.id AND r.extra > 0
        WINDOW equal AS (PARTITION BY e.output, e.id, e.content ORDER BY e.pos, e.lane)),
    chosen AS (
        SELECT * FROM ranked WHERE nth > allowed
        QUALIFY row_number() OVER (PARTITION BY output, id ORDER BY pos DESC, lane DESC, content) <= extra)
    SELECT row_number() OVER () AS copy, c.* EXCLUDE ("partition", "offset"), h."key" AS record_key,
           h.timestamp_ms, h.producer_id, coalesce(h.txn_end_ms, h.timestamp_ms, k.commit_time_us // 1000) AS at_ms,
           coalesce(CASE WHEN h.txn_end_ms IS NOT NULL THEN greatest(h.timestamp_ms, h.txn_end_ms - 1000) END, at_ms) AS since_ms,
           coalesce(f.txn_end_ms, f.timestamp_ms, l.commit_time_us // 1000) AS first_ms,
           coalesce(c.lane = c.first_lane AND (c.pos = c.first_pos OR h.txn_end_offset = f.txn_end_offset) OR t.markers = 1, false) AS together
    FROM chosen c
    LEFT JOIN history.output h ON c."partition" IS NOT NULL AND h.output = c.output
         AND h."partition" = c."partition" AND h."offset" = c."offset"
    LEFT JOIN history.output f ON c."partition" IS NOT NULL AND f.output = c.output
         AND f."partition" = c.first_lane AND f."offset" = c.first_pos
    LEFT JOIN judge.transactions t ON t.output = c.output AND t.producer_id = f.producer_id AND t.producer_epoch = f.producer_epoch
         AND h.producer_id = f.producer_id AND h.producer_epoch = f.producer_epoch
    LEFT JOIN history.commits k ON k.commit_order = c.commit_order
    LEFT JOIN history.commits l ON c.commit_order IS NOT NULL AND l.commit_order = c.first_pos"""

# Each copy with its cause and a batch that read the cause, a replayed batch if there is one. Where the oracle names no cause
# (sums, joins): the replayed batch during which both the first effect and the copy were written, if there is exactly one. Or
# the one during which the first was written, if the copy came while no batch was open, after another start had committed a
# later batch: a start writes in its batches, and that one was between two of them, so an older one wrote. Three times are not
# exact: a transaction's marker is written up to a second after its commit was answered (``since_ms``), a batch is seen up to a
# second after it was planned, and a late request arrives at any time.
_SUSPECTS = """
    CREATE OR REPLACE TEMP TABLE duplicates AS
    WITH causes AS (
        SELECT output, id, topic, "partition", "offset" FROM judge.expected SEMI JOIN copies USING (output, id)
        QUALIFY row_number() OVER (PARTITION BY output, id ORDER BY "offset", "partition") = 1),
    of_cause AS (
        SELECT c.copy, e.topic, e."partition", e."offset", {query: b.query, batch: b.batch, planned_by: b.planned_by,
               committed_by: b.committed_by, planned_ms: b.planned_ms, committed_ms: b.committed_ms, attempts: b.attempts} AS b
        FROM copies c JOIN causes e USING (output, id)
        LEFT JOIN judge.output_batches b ON b.output = c.output AND b.topic = e.topic AND b."partition" = e."partition"
             AND e."offset" >= b.start_offset AND e."offset" < b.end_offset
        WHERE e."offset" IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY c.copy ORDER BY b.replayed DESC NULLS LAST, b.query, b.batch) = 1),
    writers AS (SELECT DISTINCT output, query FROM judge.output_batches),
    spans AS (
        SELECT o.output, b.query, b.batch, any_value(planned_by) AS planned_by, any_value(committed_by) AS committed_by,
               min(planned_ms) AS planned_ms, max(committed_ms) AS committed_ms,
               max(attempts) AS attempts
        FROM judge.batches b JOIN writers o USING (query)
        WHERE b.replayed GROUP BY ALL),
    of_time AS (
        SELECT c.copy, NULL AS topic, NULL AS "partition", NULL AS "offset", {query: s.query, batch: s.batch, planned_by: s.planned_by,
               committed_by: s.committed_by, planned_ms: s.planned_ms, committed_ms: s.committed_ms, attempts: s.attempts} AS b
        FROM (FROM copies ANTI JOIN of_cause USING (copy)) c JOIN spans s ON s.output = c.output
             AND c.first_ms >= s.planned_ms AND c.at_ms >= c.first_ms AND (s.committed_ms IS NULL OR c.at_ms <= s.committed_ms)
        QUALIFY count(*) OVER (PARTITION BY c.copy) = 1),
    of_gap AS (
        SELECT c.copy, NULL AS topic, NULL AS "partition", NULL AS "offset", {query: s.query, batch: s.batch, planned_by: s.planned_by,
               committed_by: s.committed_by, planned_ms: s.planned_ms, committed_ms: s.committed_ms, attempts: s.attempts} AS b
        FROM (FROM copies ANTI JOIN of_cause USING (copy)) c JOIN spans s ON s.output = c.output
             AND c.first_ms BETWEEN s.planned_ms AND s.committed_ms AND c.since_ms > s.committed_ms
        WHERE c.allowed = 1
          AND EXISTS (FROM judge.batches l WHERE l.query = s.query AND l.batch > s.batch AND l.planned_by = l.committed_by
                      AND l.planned_by > s.planned_by AND l.committed_ms < c.since_ms)
          AND NOT EXISTS (FROM judge.batches l WHERE coalesce(c.at_ms >= l.planned_ms - 1000, true)
                          AND coalesce(c.since_ms <= l.committed_ms, true))
          AND NOT EXISTS (FROM history.faults WHERE fault = 'late-request' AND fired_at IS NOT NULL)
        QUALIFY count(*) OVER (PARTITION BY c.copy) = 1)
    SELECT c.*, e.* EXCLUDE (copy, b), c.copy IN (SELECT copy FROM of_gap) AS in_gap,
           e.b.query AS query, e.b.batch AS batch, e.b.planned_by AS planned_by,
           e.b.committed_by AS committed_by, e.b.planned_ms AS planned_ms, e.b.committed_ms AS committed_ms,
           coalesce(e.b.attempts, 1) AS attempts
    FROM copies c LEFT JOIN (FROM of_cause UNION ALL FROM of_time UNION ALL FROM of_gap) e USING (copy)"""

# Copies that came after a later batch which a later start of the driver both planned and committed. A start never goes back
# to an earlier batch, so an older start wrote them.
_ZOMBIES = """
    CREATE OR REPLACE TEMP TABLE zombies AS
    WITH taken_over AS (
        SELECT DISTINCT d.output, d.query, d.batch, b.batch AS later, b.planned_by AS later_by, b.committed_ms
        FROM duplicates d JOIN judge.batches b ON b.query = d.query AND b.batch > d.batch
            AND b.planned_by = b.committed_by AND b.planned_by > d.planned_by),
    begun AS (
        SELECT output, query, batch AS later, lane, min(pos) AS pos
        FROM judge.caused SEMI JOIN taken_over USING (output, query) WHERE nth = 1 GROUP BY ALL)
    SELECT d.copy, min_by({later: t.later, start: t.later_by}, t.later) AS after
    FROM duplicates d JOIN taken_over t USING (output, query, batch)
    LEFT JOIN begun g ON g.output = d.output AND g.query = d.query AND g.later = t.later AND g.lane = d.lane
    WHERE d.pos > g.pos OR greatest(d.at_ms, d.first_ms) > t.committed_ms GROUP BY d.copy"""

# A producer without idempotence that resends a record keeps the timestamp of the first attempt. A record without a producer may
# also be one whose producer the history does not know: `_names_producers`.
_RESENT = """
    CREATE OR REPLACE TEMP TABLE resent AS
    SELECT DISTINCT d.copy FROM duplicates d JOIN history.output h
      ON h.output = d.output AND h."partition" = d.lane AND h."offset" = d.first_pos AND h.visibility = 'committed'
    WHERE d.lane = d.first_lane AND d.pos > d.first_pos AND h.timestamp_ms = d.timestamp_ms
      AND h."key" IS NOT DISTINCT FROM d.record_key AND h.producer_id IS NULL AND d.producer_id IS NULL"""

# Committed input records with the key and value of a copy's cause, at another offset. If both have the same creation time
# and the producer's ledger lists only one of them, the producer sent the record once (``sent_once``).
_TWINS = """
    CREATE OR REPLACE TEMP TABLE twins AS
    WITH first AS (SELECT DISTINCT topic, "partition", "offset" FROM duplicates WHERE "offset" IS NOT NULL),
    committed AS NOT MATERIALIZED (SELECT topic, "partition", "offset", "key", "value", timestamp_ms FROM history.input WHERE visibility = 'committed'),
    one AS MATERIALIZED (FROM committed SEMI JOIN first USING (topic, "partition", "offset")),  -- few rows
    equal AS (
        SELECT f.*, b."partition" AS twin_partition, b."offset" AS twin_offset, a.timestamp_ms = b.timestamp_ms AS same_time
        FROM first f JOIN one a USING (topic, "partition", "offset")
        JOIN committed b ON b.topic = a.topic AND b."key" IS NOT DISTINCT FROM a."key" AND b."value" IS NOT DISTINCT FROM a."value"
             AND (b."partition", b."offset") <> (a."partition", a."offset"))
    SELECT e.*, same_time AND (s.topic IS NULL) <> (o.topic IS NULL) AS sent_once
    FROM equal e
    LEFT JOIN history.sent s ON s.topic = e.topic AND s."partition" = e."partition" AND s."offset" = e."offset"
    LEFT JOIN history.sent o ON o.topic = e.topic AND o."partition" = e.twin_partition AND o."offset" = e.twin_offset"""

# A cause explains only so many copies: each further attempt of the batch writes its input once, and its job writes one effect for
# each equal record of the input (``equal``) where the oracle expects one for all of them.
_ATTRIBUTED = """
    CREATE OR REPLACE TEMP TABLE attributed AS
    WITH twice AS (
        SELECT copy, bool_or(sent_once) AS sent_once, count(*) AS equal, sum(attempts) AS written,
               min_by(twin_partition || '@' || twin_offset, (twin_partition, twin_offset)) AS twin
        FROM (
            SELECT d.copy, t.twin_partition, t.twin_offset, bool_or(t.sent_once) AS sent_once, coalesce(max(b.attempts), 1) AS attempts
            FROM duplicates d JOIN twins t USING (topic, "partition", "offset")
            LEFT JOIN judge.output_batches b ON b.output = d.output AND b.topic = t.topic AND b."partition" = t.twin_partition
                 AND t.twin_offset >= b.start_offset AND t.twin_offset < b.end_offset
            WHERE NOT EXISTS (  -- the oracle expects an effect of the twin itself
                FROM judge.expected_digests x WHERE x.output = d.output AND x.topic = t.topic
                AND x."partition" = t.twin_partition AND x."offset" = t.twin_offset)
            GROUP BY ALL)
        GROUP BY copy),
    active AS (
        SELECT copy, string_agg(DISTINCT fault, ', ' ORDER BY fault) FILTER (struck) AS fault,
               string_agg(DISTINCT fault, ', ' ORDER BY fault) FILTER (NOT struck) AS active
        FROM (SELECT d.copy, w.fault, w.struck FROM duplicates d JOIN judge.windows w ON w.query = d.query AND w.batch = d.batch
              UNION SELECT d.copy, k.fault, true FROM duplicates d JOIN judge.struck k USING (output, topic, "partition", "offset"))
        GROUP BY ALL),
    known AS (
        SELECT d.*, a.fault, a.active, t.sent_once, t.twin, t.written, z.after.later AS later, z.after.start AS later_by,
               r.copy IS NOT NULL AS same_time, same_time AND {named} AS resent,
               CASE WHEN z.copy IS NOT NULL THEN 'zombie' WHEN resent THEN 'producer retry' END AS of_itself,
               of_itself IS NULL AND NOT together AND row_number() OVER (
                   PARTITION BY d.output, d.id, d.content, of_itself IS NULL AND NOT together ORDER BY d.pos, d.lane, d.copy
               ) <= d.allowed * (d.attempts - 1) * (1 + coalesce(t.equal, 0)) AS of_replay
        FROM duplicates d
        LEFT JOIN zombies z USING (copy) LEFT JOIN resent r USING (copy) LEFT JOIN twice t USING (copy) LEFT JOIN active a USING (copy)),
    ranked AS (
        SELECT *, of_itself IS NULL AND NOT of_replay AND row_number() OVER (
                   PARTITION BY output, id, content, of_itself IS NULL AND NOT of_replay ORDER BY pos, lane, copy
               ) <= allowed * written AS of_twin
        FROM known)
    SELECT *, CASE WHEN of_itself IS NOT NULL THEN of_itself
                   WHEN of_replay THEN 'batch replay'
                   WHEN of_twin AND sent_once THEN 'producer retry' WHEN of_twin THEN 'input'
                   WHEN fault IS NULL THEN 'unknown'
                   WHEN planned_by = committed_by AND (at_ms BETWEEN planned_ms AND committed_ms
                        OR (pos, lane) = (first_pos, first_lane)) THEN 'task retry'
                   ELSE 'fault' END AS source
    FROM ranked"""

_TOTALS = """
    WITH named AS (SELECT *, 'batch ' || batch || ' (query ' || query || ')' AS in_batch FROM attributed)
    SELECT output, source, count(*) AS total, query || '/' || batch AS of_batch,
           count(*) FILTER ("offset" IS NULL AND batch IS NULL) AS nowhere, count(active) AS active,
           count(*) FILTER (batch IS NOT NULL AND committed_by IS NULL) AS uncommitted,
           count(*) FILTER (same_time) AS same_time,
           CASE source WHEN 'producer retry' THEN 'sent twice by the ' || CASE WHEN resent THEN 'job''s producer' ELSE 'producer of the input' END
                       WHEN 'batch replay' THEN 'from the replay of ' || in_batch
                       WHEN 'zombie' THEN 'from an older driver''s late write of ' || in_batch
                       WHEN 'task retry' THEN 'from a retried task in ' || in_batch || ', struck by ' || fault
                       WHEN 'fault' THEN 'from ' || coalesce(in_batch || ', ', 'messages ') || 'struck by ' || fault
                       WHEN 'input' THEN 'from records that the input holds more than once'
                       ELSE 'of unknown cause' || coalesce('; active at that time: ' || active, '') END AS label
    FROM named GROUP BY ALL ORDER BY output, source, label, of_batch"""

# One witness per identity, however many copies it has.
_WITNESSES = """
    SELECT * FROM attributed WHERE output = $output AND source = $source
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY pos, lane) = 1
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""


def written_again(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = choose.some(world.visible(output))
    for txn, write in sites:
        world.after(txn, Txn(output, txn.batch, txn.start, txn.at_ms + 500, [replace(write, insert=True)]))
    return {("duplicate", output): Counter(write.identity for _, write in sites)}


def batch_replayed_whole(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    named: Counter[Identity] = Counter()
    for txn in choose.some([t for t in world.committed(output) if t.batch in world.replayed()], most=2):
        start = world.batches[txn.batch].committed_by
        assert start is not None
        world.after(txn, Txn(output, txn.batch, start, at(txn.batch, 7), deepcopy(txn.writes)))
        named.update(write.identity for write in txn.writes)
    return {("duplicate", output): named}


@checkers.register("duplicate")
class Duplicate(Checker):
    """Counts copies of an effect beyond the expected number (``extra`` of `onceproof.judge.relations.compare`).

    Each copy is attributed to the first of these sources that applies. There is one finding per source:

    - ``zombie``: the copy comes after an effect of a later batch that a later start of the driver planned and committed, or
      the copy or the first effect became readable only after that batch was committed: an older start was still alive. Where
      the oracle names no cause: the first effect was written during a replayed batch, and the copy after a later start had
      committed a later batch, while no batch was open (a job is taken to write in its batches only);
    - ``producer retry``: a producer without idempotence sent the record again. The job's producer: the copy has the key, value,
      creation time and partition of the first effect, and the brokers' logs, which name idempotent producers, were read. The
      producer of the input: the input holds the record twice with one creation time, and the producer's ledger lists one of them;
    - ``batch replay``: a batch with its input was planned by one start of the driver and committed by a later one, or never
      although there was a later one, and the copies are not in one commit (Postgres) or transaction (Kafka), or their positions are
      unknown. Each start but the first explains one copy. Where the oracle names no cause: both were written between
      ``offsets/N`` and ``commits/N`` of exactly one such batch;
    - ``input``: the committed input holds the same record more than once, and the oracle expects one effect for all of them. Each
      further record explains one copy;
    - ``task retry``: a fault struck its batch, one start planned and committed the batch, and the copy was written meanwhile
      or in the commit of the first effect;
    - ``fault``: none of the above, but a fault struck its batch, or a consumer that held its message;
    - ``unknown``: nothing in the history explains it, for example because the job wrote twice without any fault. Where the
      history cannot show the cause (the batch is unknown, the history was imported, only a fault that struck another batch
      was active at that time, or a query in continuous processing was restarted), a claim of at-least-once is inconclusive.
    """

    meaning = "a row or record is there more often than expected"
    explanation = Explanation(
        example="The table holds two rows for one order: the total of the day is too high by its amount.",
        causes=(
            "The sink has committed batch N and commits/N is missing: Spark runs the batch again, and the sink does not "
            "recognise it (crash of the driver at after-sink-commit).",
            "The answer to COMMIT or EndTxn is lost, and the client takes that for a failure and writes again (lost-ack).",
            "A task wrote something before it failed, or ran speculatively: side effects of tasks are not undone.",
            "A producer without idempotence resends a record that is already stored (lost acknowledgement of a Produce).",
            "A driver that was considered dead writes its batch after its successor has written it (stall).",
        ),
        decided="More rows of one identity and content can be read than the oracle expects. Each copy is attributed: it "
        "landed after a batch of a later start of the driver (zombie); the log shows one record sent twice (producer "
        "retry); one start planned its batch and another committed it (batch replay, one copy for each further start); the input itself "
        "holds the record twice (input, one copy for each further record); a fault struck its batch, and it was written in the batch's only execution (task retry); "
        "a fault struck its batch (fault). Any other cause is unknown, and at-least-once does not allow it. Where the history "
        "cannot show the cause (an unknown batch, an imported history), at-least-once is inconclusive.",
        stops=(
            "Postgres: store progress in the transaction of the data, and lock and read it first (onceproof.sinks.postgres).",
            "Postgres: write idempotently: a primary key of source topic, partition and offset, and ON CONFLICT DO NOTHING.",
            "Kafka: one transaction per batch with a progress record in it, and read_committed readers (onceproof.sinks.kafka).",
            "Webhook: give each request an Idempotency-Key that a replay repeats, and a receiver that keeps one per key.",
            "Input: enable.idempotence=true for its producers.",
        ),
        after={
            "replica-lag": "Ask the primary what is done: an asynchronous replica may not know it yet.",
            "bandwidth": "Give each write a unique key: what a client has sent may still be on its way when it looks.",
            "latency": "Give each write a unique key: a client that no longer waits cannot know whether its write was applied.",
            "checkpoint-damage": "Record offsets under the name of the pipeline: a new checkpoint has other ids, and batch ids begin at 0.",
        },
        sources=(
            "Spark, Structured Streaming guide: foreachBatch gives at-least-once guarantees",
            "SPARK-28650: partition and epoch do not identify the data",
            "KIP-98: Exactly Once Delivery and Transactional Messaging",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Idempotence",
        ),
    )
    rule = ClaimRule(
        allows=(
            Allows(
                claim={"delivery": "at-least-once"},
                what="a copy whose cause is known: a replayed batch, a repeated task, a producer's retry, a zombie, a "
                "duplicated input record, a fault that struck its batch",
                why="at-least-once allows a duplicate whose cause is known: {source}",
                when=lambda finding: finding.source not in (None, "unknown"),
                by_cause=True,
            ),
        )
    )
    comes_with = {
        "torn-batch": "the copy is in another commit than the rest of its batch",
        "zombie-write": "the copy was written by an older start of the driver than what precedes it",
        "commit-ahead-of-effect": "the copy came after progress was recorded",
        "sink-disagreement": "another output holds fewer copies for the same input",
    }
    # A replay writes its own batch again: earlier batches decide at most what was written, and a copy equals what is expected.
    own_batch = frozenset({"batch replay"})
    damages = (
        Damage(
            written_again,
            "a row or record is written again in a commit of its own",
            only=(*APPENDS, "totals", "sums", "log", "journal"),
        ),
        Damage(
            batch_replayed_whole,
            "a whole batch written again by the driver's next start",
            only=(*APPENDS, "log", "journal"),
            restarted=True,
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.differs or not case.number("SELECT count(*) FROM judge.remaining WHERE extra > 0"):
            return
        case.caused()
        changes.create_transactions(case)
        for table in (_COPIES, _SUSPECTS, _ZOMBIES, _RESENT, _TWINS):
            case.sql(table)
        case.sql(_ATTRIBUTED.format(named=str(_names_producers(case)).lower()))
        for rows in by(case.rows(_TOTALS), "output", "source"):
            total = total_of(rows)
            extra = times(total, f"extra {noun(case, rows[0]['output'])}")
            summary = labelled(total, extra, sums(rows, "label"))
            if rows[0]["source"] == "input":
                alike = """SELECT count(*) FROM (SELECT topic, "partition", "offset" FROM twins UNION
                                                 SELECT topic, twin_partition, twin_offset FROM twins)"""
                summary += f"; {times(case.number(alike), 'input record')} equal another in key and value"
            unsettled = _unsettled(case, rows) if rows[0]["source"] == "unknown" else None
            argument = partial(_argument, unsettled)
            yield finding(case, "duplicate", rows, summary, _WITNESSES, argument, placed=True, unsettled=unsettled)


def _names_producers(case: Case) -> bool:
    """Whether a record without a producer was written without idempotence: the brokers' logs were read, which name the others."""
    named = """SELECT EXISTS (FROM history.input WHERE producer_id IS NOT NULL)
                   OR EXISTS (FROM history.output WHERE producer_id IS NOT NULL)"""
    return not case.run.imported and case.sql(named).fetchall() == [(True,)]


def _unsettled(case: Case, rows: list[Row]) -> str | None:
    """Why the copies may have a cause that the history does not show."""
    if case.run.imported:
        return "the history was imported: it records neither batches nor faults"
    if any(row["same_time"] for row in rows):
        return "the history names no producers, and one without idempotence may have sent the record twice"
    if case.run.job is None and any(row["uncommitted"] for row in rows):
        return "its batch was not committed, and the history does not record how often the job was started"
    if any(row["active"] for row in rows):
        return "the faults active at that time struck other batches, so none of them is known to be the cause"
    broken = """SELECT (SELECT count(*) FROM history.faults WHERE fired_at IS NOT NULL)
                     + (SELECT count(*) FROM judge.batches WHERE replayed)"""
    if any(row["nowhere"] for row in rows) and case.number(broken):
        return "the batch that wrote the copy is not known"
    if any(row["of_batch"] is None for row in rows) and (query := _in_epochs(case, rows[0]["output"])) is not None:
        return f"the log of query {query} does not say which epochs wrote the copy"
    return None


def _in_epochs(case: Case, output: str) -> str | None:
    """A query that may have written the output in epochs and repeated one of them: a driver ended, or a fault struck."""
    named = case.scenario.outputs[output].query
    found = [query for query in without_batches(case.run.modes) if named in (None, query)]
    restarted = case.run.job is not None and case.run.job.starts > 1
    if found and (restarted or case.number("SELECT count(*) FROM history.faults WHERE fired_at IS NOT NULL")):
        return found[0]
    return None


def _argument(unsettled: str | None, case: Case, row: Row) -> str:
    expected = f"{times(row['expected'], noun(case, row['output']))} {are(row['expected'])} expected from it"
    return (
        f"{input_of(row)} is committed, and {expected}.\n"
        f"{_why(row, unsettled)}.\n"
        f"But {holding(case, row['output'], row['actual'], row['places'])}."
    )


def _why(row: Row, unsettled: str | None) -> str:
    batch = f"Batch {row['batch']} of query {row['query']}"
    if row["source"] == "zombie":
        return (
            f"{batch} was planned by driver start {row['planned_by']}; start {row['later_by']} planned and committed batch "
            f"{row['later']}, and one of the copies came after that"
            + (", while no batch was open" if row["in_gap"] else "")
        )
    if row["source"] == "producer retry" and row["resent"]:
        return (
            f"Both have creation time {row['timestamp_ms']} ms and one key, from a producer without idempotence: "
            "it sent one record twice"
        )
    if row["source"] == "producer retry":
        return (
            f"The input holds it again, at {row['topic']}/{row['twin']}, with the same creation time; "
            "its producer's ledger lists one send"
        )
    return {
        "batch replay": f"{batch} was planned by driver start {row['planned_by']} and "
        + ("never committed" if row["committed_by"] is None else f"committed by start {row['committed_by']}"),
        "input": f"The input holds the same record again, at {row['topic']}/{row['twin']}",
        "task retry": f"{batch} ran once, and a fault that can make Spark retry a task struck it: {row['fault']}",
        "fault": f"A fault struck its batch: {row['fault']}"
        if row["batch"] is not None
        else f"A fault struck a consumer that held it: {row['fault']}",
        "unknown": (
            (
                "Nothing in the history explains "
                + ("so many copies" if row["attempts"] > 1 or row["twin"] else "the copy")
            )
            if unsettled is None or row["batch"] is not None
            else f"Why it was written again is not known: {unsettled}"
        )
        + (f"; active at that time: {row['active']}" if row["active"] is not None else ""),
    }[row["source"]]
