"""``commit-ahead-of-effect``: progress is recorded without the rows or records that it covers.

One row of ``judge.behind`` per effect: ``output``, ``id``, its cause (``topic``, ``partition``, ``offset``), ``query``,
``batch``, ``fault``, ``active`` and ``reason`` (as in ``judge.missing``); ``progress`` (``checkpoint`` or ``table``),
``recorded`` (where progress is recorded, in words), ``place`` (NULL: the effect is missing), ``late_ms`` (how much
later it came, where clocks show it).

- **table**: the sink's own progress table (``progress`` of the output). Its rows are in the same stream of commits as the
  effects of a table, so their order decides: the first commit that records a position is compared with the commit of each
  effect below it. An effect missing below it will never come; this is reported for a topic as well.
- **checkpoint**: ``commits/N`` is compared with the time at which an effect of batch N became visible, both by clocks
  of one host. Kafka decides a transaction before it writes the marker, so the marker may be a second later. An effect
  that is missing in the end is not reported here: ``lost-write`` reports it, and Spark only records what the sink
  reported to it.

Only first effects of outputs that are never rewritten can be late: elsewhere an effect's position is that of its last write.
"""

from __future__ import annotations

from collections import Counter

from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import STRUCK, TRANSIENT, ClaimRule
from onceproof.judge.relations import misplacement, on_demand
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Identity, World, at
from onceproof.judge.witness import Row, by, counted, finding, input_of, noun, unsettled_loss
from onceproof.values.canonical import literal, member

#: The output name under which a history keeps the rows of an output's progress table.
PROGRESS_OF = "{}#progress"

_EMPTY = """
    CREATE TABLE judge.behind (output VARCHAR, id VARCHAR, topic VARCHAR, "partition" INTEGER, "offset" BIGINT,
        query VARCHAR, batch BIGINT, fault VARCHAR, active VARCHAR, reason VARCHAR, progress VARCHAR, recorded VARCHAR, place VARCHAR, late_ms BIGINT)"""

# ``first``: the earliest commit that records at least this position.
_STEPS = """
    CREATE OR REPLACE TEMP TABLE steps AS
    SELECT topic, "partition", end_offset, min(commit_order) OVER (
               PARTITION BY topic, "partition" ORDER BY end_offset ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS first
    FROM (SELECT {topic} AS topic, TRY_CAST(content->>{partition} AS INTEGER) AS "partition",
                 TRY_CAST(content->>{end_offset} AS BIGINT) AS end_offset, min(commit_order) AS commit_order
          FROM history.output WHERE output = {progress} AND op IN ('insert', 'update') GROUP BY ALL)
    WHERE "partition" IS NOT NULL AND end_offset IS NOT NULL"""

_MISSING = """
    INSERT INTO judge.behind
    SELECT m.output, m.id, m.topic, m."partition", m."offset", m.query, m.batch, m.fault, m.active, m.reason, 'table',
           {table} || ' xid ' || k.xid || ' (' || m.topic || '/' || m."partition" || ' up to ' || s.end_offset || ')', NULL, NULL
    FROM judge.lost m ASOF JOIN steps s ON s.topic = m.topic AND s."partition" = m."partition" AND m."offset" < s.end_offset
    LEFT JOIN history.commits k ON k.commit_order = s.first
    WHERE m.output = {output} AND NOT m.hidden"""

# The effect with the lowest offset in a commit was recorded first. So one check per commit finds the few commits to look into.
_BEHIND_TABLE = """
    CREATE OR REPLACE TEMP TABLE late AS
    WITH groups AS (
        SELECT topic, "partition", commit_order, min("offset") AS lowest FROM judge.caused
        WHERE output = {output} AND nth = 1 GROUP BY ALL),
    suspects AS (
        SELECT g.* FROM groups g ASOF JOIN steps s ON s.topic = g.topic AND s."partition" = g."partition" AND g.lowest < s.end_offset
        WHERE g.commit_order > s.first)
    SELECT c.*, {table} || ' xid ' || k.xid || ' (' || c.topic || '/' || c."partition" || ' up to ' || s.end_offset || ')' AS recorded,
           NULL::BIGINT AS late_ms
    FROM (FROM judge.caused SEMI JOIN suspects USING (topic, "partition", commit_order) WHERE output = {output} AND nth = 1) c
    ASOF JOIN steps s ON s.topic = c.topic AND s."partition" = c."partition" AND c."offset" < s.end_offset
    LEFT JOIN history.commits k ON k.commit_order = s.first
    WHERE c.commit_order > s.first"""

_VISIBLE_MS = """coalesce(CASE WHEN h.txn_end_ms IS NULL THEN h.timestamp_ms ELSE greatest(h.timestamp_ms, h.txn_end_ms - 1000) END,
                    k.commit_time_us // 1000)"""

# The last effect of a batch in a lane becomes visible last. So one check per batch and lane finds the batches to look into.
_VISIBLE_LATE = f"""
    CREATE OR REPLACE TEMP TABLE suspects AS
    WITH done AS (SELECT query, batch, max(committed_ms) AS committed_ms FROM judge.output_batches WHERE output = {{output}} GROUP BY ALL),
    spans AS (
        SELECT query, batch, lane, max(pos) AS hi FROM judge.caused
        WHERE output = {{output}} AND nth = 1 AND batch IS NOT NULL GROUP BY ALL)
    SELECT s.query, s.batch, d.committed_ms FROM spans s JOIN done d USING (query, batch)
    LEFT JOIN history.output h ON h.output = {{output}} AND h."partition" = s.lane AND h."offset" = s.hi
    LEFT JOIN history.commits k ON s.lane = -1 AND k.commit_order = s.hi
    WHERE {_VISIBLE_MS} > d.committed_ms GROUP BY ALL"""  # noqa: S608

_BEHIND_CHECKPOINT = f"""
    CREATE OR REPLACE TEMP TABLE late AS
    SELECT c.*, 'commits/' || c.batch || ' of query ' || c.query AS recorded, {_VISIBLE_MS} - u.committed_ms AS late_ms
    FROM judge.caused c JOIN suspects u ON u.query = c.query AND u.batch = c.batch
    LEFT JOIN history.output h ON h.output = c.output AND h."partition" = c.lane AND h."offset" = c.pos
    LEFT JOIN history.commits k ON c.lane = -1 AND k.commit_order = c.pos
    WHERE c.output = {{output}} AND c.nth = 1 AND {_VISIBLE_MS} > u.committed_ms"""  # noqa: S608

_TAKE = """
    INSERT INTO judge.behind
    SELECT l.output, e.id, l.topic, l."partition", l."offset", l.query, l.batch, NULL, NULL, NULL, {progress}, l.recorded, e.place, l.late_ms
    FROM late l JOIN judge.effects e ON e.output = l.output AND e.lane = l.lane AND e.pos = l.pos
        AND l.h IN (e.h, hash(e.h, e.digest_2))
    ANTI JOIN judge.behind b ON b.output = l.output AND b.id = e.id AND b.place = e.place"""

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


def recorded_before_written(world: World, choose: Choices) -> Named:
    """The checkpoint recorded a batch as done a second before its rows could be read."""
    output = choose.one(world.outputs)
    named: Counter[Identity] = Counter()
    for txn in choose.some(world.committed(output)):
        txn.at_ms = at(txn.batch, 9.5)
        named.update(write.identity for write in txn.writes)
    return {("commit-ahead-of-effect", output): named}


@checkers.register("commit-ahead-of-effect")
class CommitAheadOfEffect(Checker):
    """Counts effects that were not visible when progress beyond their input was recorded (``judge.behind``).

    If the sink's own progress table covers a missing effect, nobody will write it again. There is one finding per
    reason, as for ``lost-write``. Effects that came later are transient: a crash in between would have lost them.
    """

    meaning = "progress is recorded without the rows or records that it covers"
    explanation = Explanation(
        example="The progress table records everything up to offset 500 as done. The rows from 400 on come later, or never.",
        causes=(
            "The sink writes its progress in a transaction of its own, before the data (crash between the two).",
            "The sink passes its rows to a thread or a buffer and returns: Spark writes commits/N while they are on their way.",
            "A consumer commits offsets automatically before it has processed the records that it polled.",
        ),
        decided="The sink's own progress table covers the input, and its row or record is missing at the end: it survived (and "
        "is a lost-write as well). That table, or commits/N, was written before the row could be read: transient, and "
        "dangerous only if a process dies in between. Not evaluated without the times or positions of both.",
        stops=(
            "Record progress in the transaction of the data, or after it.",
            "A foreachBatch function that returns only when its writes are durable.",
        ),
        sources=(
            "Kafka documentation: Message Delivery Semantics (at most once: position saved before processing)",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Atomic commit revisited",
        ),
    )
    rule = ClaimRule(allows=(STRUCK, TRANSIENT), counted_as="What never came is a lost-write as well.")
    comes_with = {
        "lost-write": "the row or record never came",
        "torn-batch": "part of the batch came later",
        "sink-disagreement": "another output has it",
    }
    damages = (
        Damage(
            recorded_before_written,
            "a batch recorded as done before its rows could be read",
            only=(*APPENDS, "log", "journal"),
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        _create(case)
        for output in case.outputs:
            if (gap := _of_output(case, output)) is not None:
                yield Gap(output, gap)
        if not case.number("SELECT count(*) FROM judge.behind"):
            return
        for rows in by(case.rows(_TOTALS), "output", "source", "stays"):
            stays = rows[0]["stays"]
            left = "that never came" if stays else "that came later"
            yield finding(
                case,
                "commit-ahead-of-effect",
                rows,
                f"progress was recorded ahead of {counted(case, rows)} {left}",
                _WITNESSES,
                _argument,
                at=["place"],
                transient=not stays,
                unsettled=unsettled_loss(rows),
            )


def _create(case: Case) -> None:
    """Make an empty table, which `_of_output` fills."""
    misplacement.create(case)
    case.caused()
    case.sql(_EMPTY)


def _of_output(case: Case, output: str) -> str | None:
    """Add the effects of one output that were behind. Returns why some of them cannot be found, or None."""
    if not case.expectations[output].has_cause:
        return "the oracle names no cause (_partition, _offset)" if case.scenario.outputs[output].progress else None
    gap = _by_table(case, output)
    timed = case.number("SELECT count(committed_ms) FROM judge.batches")
    if timed and output in case.no_stream:
        return gap or case.no_stream[output]
    if sources.rewritten(case, output) or case.scenario.outputs[output].kind == "upsert" or output in case.no_stream:
        return gap
    if timed:
        case.sql(_VISIBLE_LATE.format(output=literal(output)))
        if case.number("SELECT count(*) FROM suspects"):
            case.sql(_BEHIND_CHECKPOINT.format(output=literal(output)))
            _take(case, "checkpoint")
    return gap


def _take(case: Case, progress: str) -> None:
    if case.number("SELECT count(*) FROM late"):
        on_demand.load(case, "SELECT output, h FROM late")
        case.sql(_TAKE.format(progress=literal(progress)))


def _by_table(case: Case, output: str) -> str | None:
    spec = case.scenario.outputs[output]
    if spec.progress is None:
        return None
    columns = {
        name: member(column)
        for name, column in (("partition", spec.progress.partition), ("end_offset", spec.progress.end_offset))
    }
    topic = literal(case.scenario.input[0].topic)
    if spec.progress.topic is not None:
        topic = f"content->>{member(spec.progress.topic)}"
    progress = literal(PROGRESS_OF.format(output))
    case.sql(_STEPS.format(topic=topic, progress=progress, **columns))
    if not case.number("SELECT count(*) FROM steps"):
        return f"the history holds no position from its progress table {spec.progress.table}"
    table = literal(spec.progress.table)
    case.sql(_MISSING.format(output=literal(output), table=table))
    if spec.has_rows and output not in case.no_stream and not sources.rewritten(case, output) and spec.kind != "upsert":
        case.sql(_BEHIND_TABLE.format(output=literal(output), table=table))
        _take(case, "table")
    return None


def _argument(case: Case, row: Row) -> str:
    taken = "" if row["batch"] is None else f", in batch {row['batch']} of query {row['query']}"
    premises = f"{input_of(row)} is committed{taken}.\nProgress beyond it is recorded by {row['recorded']}.\n"
    what = noun(case, row["output"])
    if row["place"] is None:
        return f"{premises}But its {what} is missing."
    later = "in a later commit" if row["late_ms"] is None else f"{row['late_ms']} ms later"
    return f"{premises}But its {what} came {later}, at {row['place']}."
