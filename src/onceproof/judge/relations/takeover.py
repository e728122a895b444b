"""Writes of an older epoch that landed after its successor's first commit: the table ``judge.zombies``.

One row a write: ``output``, ``id``, ``content``, ``lane``, ``pos``, ``place``; ``how`` it is known (``epoch``, ``producer``
or ``plan``), ``older`` and ``newer`` (epochs, or starts of the driver), ``after`` (where the successor's first write
stands); its cause (``topic``, ``partition``, ``offset``), ``query`` and ``batch``, NULL where unknown.

- **epoch**: the output carries its writer's epoch in a column, and a row with a lower one stands after a row with a
  higher one (in one partition, or in a later commit);
- **producer**: the same by the ``producer_epoch`` that the Kafka log gives each record of a ``producer_id``. A broker
  refuses such a write, so this is a broken broker (or a log that was put together by hand);
- **plan**: an effect of a batch stands after the first effect of a batch that a later start of the driver planned and
  committed, or became visible after that was committed. A start that is done with a batch never goes back to it, so a
  start before that one wrote it. Only for outputs that are never rewritten: else an effect stands where it was written
  last. A batch that an even later start committed is left out: that start may have written it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case import sources
from onceproof.values.canonical import literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

_EMPTY = """
    CREATE TABLE judge.zombies (output VARCHAR, id VARCHAR, content VARCHAR, lane BIGINT, pos BIGINT, place VARCHAR,
        how VARCHAR, older BIGINT, newer BIGINT, after VARCHAR, topic VARCHAR, "partition" INTEGER, "offset" BIGINT,
        query VARCHAR, batch BIGINT)"""

_WRITES = """
    SELECT {scope} AS scope, coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos, "offset", {epoch} AS epoch
    FROM history.output WHERE output = {output} AND visibility = 'committed' AND op IN ('insert', 'update')"""

# First and last position of each epoch: few rows, and only where two of them cross are writes looked at one by one.
_OUTDATED = f"""
    CREATE OR REPLACE TEMP TABLE outdated AS
    WITH writes AS ({_WRITES}),
    epochs AS (SELECT scope, lane, epoch, min(pos) AS lo, max(pos) AS hi FROM writes WHERE epoch IS NOT NULL GROUP BY ALL),
    crossed AS (
        SELECT o.scope, o.lane, o.epoch, min(n.lo) AS first, arg_min(n.epoch, n.lo) AS newer
        FROM epochs o JOIN epochs n ON n.scope = o.scope AND n.lane = o.lane AND n.epoch > o.epoch AND o.hi > n.lo
        GROUP BY ALL)
    SELECT w.lane, w.pos, w."offset", w.epoch AS older, c.newer, c.first
    FROM writes w JOIN crossed c ON c.scope = w.scope AND c.lane = w.lane AND c.epoch = w.epoch AND w.pos > c.first"""  # noqa: S608

_FROM_WRITES = """
    INSERT INTO judge.zombies
    WITH firsts AS (SELECT lane, pos, min(place) AS place FROM judge.changes WHERE output = {output} GROUP BY lane, pos)
    SELECT {output}, c.id, c.content, c.lane, c.pos, c.place, {how}, o.older, o.newer, f.place, x.cause.t, x.cause.p, x.cause.o,
           b.query, b.batch
    FROM outdated o
    JOIN judge.changes c ON c.output = {output} AND c.lane = o.lane AND c.pos = o.pos AND c."offset" = o."offset"
    JOIN firsts f ON f.lane = o.lane AND f.pos = o.first
    LEFT JOIN (SELECT id, content, min_by({{t: topic, p: "partition", o: "offset"}}, "offset") AS cause
               FROM judge.expected WHERE output = {output} GROUP BY id, content) x ON x.id = c.id AND x.content = c.content
    LEFT JOIN judge.output_batches b ON b.output = {output} AND b.topic = x.cause.t AND b."partition" = x.cause.p
        AND x.cause.o >= b.start_offset AND x.cause.o < b.end_offset
    ANTI JOIN judge.zombies z ON z.output = {output} AND z.lane = c.lane AND z.pos = c.pos AND z.id = c.id"""

# Who took over: per start of the driver, where the first effect of its own batches stands, and when one was committed.
# ``held``: the records of a batch that changed hands may have been staged first and committed last, in a transaction that
# its first owner kept open meanwhile. (Of all other batches what stands last was also committed last.)
_OVERTAKEN = """
    CREATE OR REPLACE TEMP TABLE overtaken AS
    WITH spans AS (
        SELECT query, batch, lane, min(pos) AS lo, max(pos) AS hi FROM judge.caused
        WHERE output = {output} AND batch IS NOT NULL GROUP BY ALL),
    owners AS (
        SELECT query, batch, min(planned_by) AS planned_by, max(committed_by) AS committed_by, max(committed_ms) AS committed_ms
        FROM judge.output_batches WHERE output = {output} GROUP BY ALL),
    starts AS (
        SELECT query, planned_by AS start, min(batch) AS batch, min(committed_ms) AS done_ms
        FROM owners WHERE planned_by = committed_by GROUP BY ALL),
    begun AS (
        SELECT s.query, o.planned_by AS start, s.lane, min(s.lo) AS first FROM spans s JOIN owners o USING (query, batch)
        WHERE o.planned_by = o.committed_by GROUP BY ALL),
    held AS (
        SELECT c.query, c.batch, c.lane, max(h.txn_end_ms) AS at_ms FROM judge.caused c JOIN owners o USING (query, batch)
        JOIN history.output h ON h.output = {output} AND h."partition" = c.lane AND h."offset" = c.pos
        WHERE c.output = {output} AND o.planned_by < o.committed_by GROUP BY ALL),
    tops AS (
        SELECT s.*, o.planned_by, o.committed_by,
               greatest(coalesce(h.txn_end_ms, h.timestamp_ms, k.commit_time_us // 1000), z.at_ms) AS at_ms
        FROM spans s JOIN owners o USING (query, batch) LEFT JOIN held z USING (query, batch, lane)
        LEFT JOIN history.output h ON h.output = {output} AND h."partition" = s.lane AND h."offset" = s.hi
        LEFT JOIN history.commits k ON s.lane = -1 AND k.commit_order = s.hi)
    SELECT t.query, t.batch, t.lane, t.planned_by, min(n.start) AS newer, min(g.first) FILTER (t.hi > g.first) AS first,
           min(n.done_ms) FILTER (t.at_ms > n.done_ms) AS done_ms, min(n.batch) AS later
    FROM tops t JOIN starts n ON n.query = t.query AND n.start > t.planned_by AND n.start >= t.committed_by
    LEFT JOIN begun g ON g.query = t.query AND g.start = n.start AND g.lane = t.lane
    WHERE t.hi > g.first OR t.at_ms > n.done_ms GROUP BY ALL"""

_FROM_PLAN = """
    INSERT INTO judge.zombies
    WITH late AS (
        SELECT c.*, o.planned_by, o.newer, o.first, o.later,
               coalesce(h.txn_end_ms, h.timestamp_ms, k.commit_time_us // 1000) AS at_ms, o.done_ms
        FROM judge.caused c JOIN overtaken o ON o.query = c.query AND o.batch = c.batch AND o.lane = c.lane
        LEFT JOIN history.output h ON h.output = c.output AND h."partition" = c.lane AND h."offset" = c.pos
        LEFT JOIN history.commits k ON c.lane = -1 AND k.commit_order = c.pos
        WHERE c.output = {output})
    SELECT {output}, e.id, e.content, l.lane, l.pos, e.place, 'plan', l.planned_by, l.newer,
           CASE WHEN l.pos > l.first THEN (SELECT min(place) FROM judge.effects f WHERE f.output = {output} AND f.lane = l.lane AND f.pos = l.first)
                ELSE 'commits/' || l.later END,
           l.topic, l."partition", l."offset", l.query, l.batch
    FROM late l JOIN judge.effects e ON e.output = {output} AND e.lane = l.lane AND e.pos = l.pos
        AND l.h IN (e.h, hash(e.h, e.digest_2))
    ANTI JOIN judge.zombies z ON z.output = {output} AND z.lane = l.lane AND z.pos = l.pos AND z.id = e.id
    WHERE l.pos > l.first OR l.at_ms > l.done_ms"""


def create(case: Case) -> None:
    """An empty table; `of_output` fills it."""
    case.caused()
    case.changes()
    case.sql(_EMPTY)


def of_output(case: Case, output: str) -> str | None:
    """Add the zombies of one output. Why they cannot all be known, or None."""
    spec = case.scenario.outputs[output]
    if spec.has_rows and output in case.no_stream:
        return case.no_stream[output] if spec.epoch is not None else None
    gap = None
    if spec.epoch is not None:
        text = f"CASE WHEN json_valid(content) THEN content->>{member(spec.epoch)} END"
        _by_epoch(case, output, "epoch", scope="0", epoch=f"TRY_CAST({text} AS BIGINT)")
        unread = f"""SELECT count(*) FROM history.output WHERE output = $output AND visibility = 'committed'
            AND op IN ('insert', 'update') AND content IS NOT NULL AND TRY_CAST({text} AS BIGINT) IS NULL"""  # noqa: S608
        if count := case.number(unread, {"output": output}):
            gap = f"of its writes {count} have no whole number in the epoch column {spec.epoch!r}"
    produced = "SELECT count(DISTINCT producer_epoch) FROM history.output WHERE output = $output"
    if spec.topic is not None and case.number(produced, {"output": output}) > 1:
        _by_epoch(case, output, "producer", scope="producer_id", epoch="producer_epoch")
    if spec.kind != "upsert" and _taken_over(case) and not sources.rewritten(case, output):
        case.sql(_OVERTAKEN.format(output=literal(output)))
        if case.number("SELECT count(*) FROM overtaken"):
            case.sql(_FROM_PLAN.format(output=literal(output)))
    return gap


def _taken_over(case: Case) -> bool:
    return case.number("SELECT count(DISTINCT planned_by) FROM history.batches") > 1


def _by_epoch(case: Case, output: str, how: str, *, scope: str, epoch: str) -> None:
    case.sql(_OUTDATED.format(output=literal(output), scope=scope, epoch=epoch))
    if case.number("SELECT count(*) FROM outdated"):
        case.sql(_FROM_WRITES.format(output=literal(output), how=literal(how)))
