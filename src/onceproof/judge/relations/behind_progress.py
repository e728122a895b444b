"""Effects that came later than the record of progress that covers them, or never: the table ``judge.behind``.

One row an effect: ``output``, ``id``, its cause (``topic``, ``partition``, ``offset``), ``query``, ``batch``, ``fault``,
``active`` and ``reason`` (as in ``judge.missing``); ``progress`` (``checkpoint`` or ``table``), ``recorded`` (where it is recorded, in words), ``place``
(NULL: the effect is missing), ``late_ms`` (how much later it came, where clocks tell).

- **table**: the sink's own progress table (``progress`` of the output). Its rows are in the same stream of commits as the
  effects of a table, so order decides: the first commit that records a position is compared with the commit of each
  effect below it. What is missing below it was left behind for good; that is told for a topic, too.
- **checkpoint**: ``commits/N`` and the time at which an effect of batch N became visible, both by clocks of one host. A
  Kafka transaction is decided before its marker is written, so the marker may be a second later. That such an effect is
  missing in the end is no news beside ``lost-write``: Spark records what the sink told it.

Only first effects of outputs that are never rewritten can be late: else an effect stands where it was written last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case import sources
from onceproof.judge.relations import misplacement
from onceproof.values.canonical import literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

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

# Of the effects of one commit the one with the lowest offset was recorded first: few groups tell where to look.
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

# The last effect of a batch in each lane is the last to become visible: one look at each tells where to look closer.
_BEHIND_CHECKPOINT = f"""
    CREATE OR REPLACE TEMP TABLE late AS
    WITH done AS (SELECT query, batch, max(committed_ms) AS committed_ms FROM judge.output_batches WHERE output = {{output}} GROUP BY ALL),
    spans AS (
        SELECT query, batch, lane, max(pos) AS hi FROM judge.caused
        WHERE output = {{output}} AND nth = 1 AND batch IS NOT NULL GROUP BY ALL),
    suspects AS (
        SELECT s.query, s.batch, d.committed_ms FROM spans s JOIN done d USING (query, batch)
        LEFT JOIN history.output h ON h.output = {{output}} AND h."partition" = s.lane AND h."offset" = s.hi
        LEFT JOIN history.commits k ON s.lane = -1 AND k.commit_order = s.hi
        WHERE {_VISIBLE_MS} > d.committed_ms GROUP BY ALL)
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


def create(case: Case) -> None:
    """An empty table; `of_output` fills it."""
    misplacement.create(case)
    case.caused()
    case.sql(_EMPTY)


def of_output(case: Case, output: str) -> str | None:
    """Add the effects of one output that were behind. Why they cannot all be known, or None."""
    if not case.expectations[output].has_cause:
        return "the oracle names no cause (_partition, _offset)" if case.scenario.outputs[output].progress else None
    gap = _by_table(case, output)
    if sources.rewritten(case, output) or case.scenario.outputs[output].kind == "upsert" or output in case.no_stream:
        return gap
    if case.number("SELECT count(committed_ms) FROM judge.batches"):
        case.sql(_BEHIND_CHECKPOINT.format(output=literal(output)))
        _take(case, "checkpoint")
    return gap


def _take(case: Case, progress: str) -> None:
    if case.number("SELECT count(*) FROM late"):
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
        return f"the history holds no position that was written to its progress table {spec.progress.table}"
    table = literal(spec.progress.table)
    case.sql(_MISSING.format(output=literal(output), table=table))
    if spec.has_rows and output not in case.no_stream and not sources.rewritten(case, output) and spec.kind != "upsert":
        case.sql(_BEHIND_TABLE.format(output=literal(output), table=table))
        _take(case, "table")
    return None
