"""Makes the tables of a stored history as observed, and views that follow from them alone: batches, and what faults struck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.history.database import observed_rows
from onceproof.scenario.modes import without_batches
from onceproof.values.canonical import literal, quote

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# The committed records of each partition of the input. Without a gap, ``n`` is ``high - low + 1``.
_HELD = """
    CREATE TABLE judge.held AS
    SELECT topic, "partition", min("offset") AS low, max("offset") AS high, count(*) AS n FROM history.input
    WHERE visibility = 'committed' GROUP BY ALL"""


def create(case: Case) -> None:
    """Make schema ``history``, and in schema ``judge`` ``batches``, ``windows``, ``struck`` and ``held``."""
    kind = "TABLE" if case.small else "VIEW"
    tables = [
        f"CREATE {kind} history.{quote(name)} AS {observed_rows(case.history, name)}" for name in case.history.tables
    ]
    case.sql(";\n".join(["CREATE SCHEMA history", "CREATE SCHEMA judge", *tables]))
    _batches(case)
    case.sql(_HELD)


def _batches(case: Case) -> None:
    began = case.run.wall_start
    # Epochs of continuous processing are not batches: their ranges are not what was read, and repeating one does not replay it.
    none = ", ".join(["NULL", *map(literal, without_batches(case.run.modes))])
    # Each start attempts a batch once, from the start that planned it to the one that committed it, or else to the last one.
    starts = "NULL" if case.run.job is None else case.run.job.starts
    case.sql(f"""CREATE TABLE judge.batches AS
        SELECT * EXCLUDE (began, last), abs(coalesce(committed_by, last) - planned_by) + 1 AS attempts,
               coalesce(attempts > 1, false) AS replayed,
               (1000 * (began + planned_at))::BIGINT AS planned_ms, (1000 * (began + committed_at))::BIGINT AS committed_ms
        FROM (SELECT *, {"NULL" if began is None else began}::DOUBLE AS began,
                     greatest(max(greatest(planned_by, committed_by)) OVER (), {starts}::INTEGER - 1) AS last
              FROM history.batches WHERE (query IN ({none})) IS NOT TRUE)""")  # noqa: S608
    # A fault strikes the batch that it was placed in. It is active in other batches that ran between its firing and its
    # healing.
    one_query = str(len(case.queries) == 1).lower()
    case.sql(f"""CREATE TABLE judge.windows AS
        WITH pairs AS (
            SELECT b.query, b.batch,
                   f.fault || ' ' || f.target || coalesce(' in batch ' || f.batch, '') || coalesce(' at ' || f.point, '') AS fault,
                   f.batch = b.batch AS same_batch, f.query = b.query AS same_query,
                   coalesce(b.planned_at <= coalesce(f.healed_at, f.fired_at)
                            AND coalesce(b.committed_at, f.fired_at) >= f.fired_at, false) AS same_time,
                   b.planned_at IS NULL AS timeless
            FROM judge.batches b JOIN history.faults f
              ON f.fired_at IS NOT NULL AND (coalesce(f.query, '') IN ('', b.query)))
        SELECT query, batch, fault,
               bool_or(coalesce(same_batch AND (same_query OR same_time OR timeless OR {one_query}), false)) AS struck
        FROM pairs WHERE coalesce(same_batch, false) OR same_time GROUP BY ALL""")  # noqa: S608
    # Consumers have no batches: their faults strike at a message, which the ledger lists by its number. A fault that strikes
    # one group's copy of the message does not excuse losses in another group.
    outputs = ", ".join(
        f"({literal(name)}, {'NULL' if spec.query is None else literal(spec.query)}::VARCHAR)"
        for name, spec in case.scenario.outputs.items()
    )
    case.sql(f"""CREATE VIEW judge.struck AS
        SELECT DISTINCT o.output, s.topic, s."partition", s."offset", f.fault || ' ' || f.target || ' at ' || f.point AS fault
        FROM history.faults f JOIN history.sent s
          ON s.seq + 1 = TRY_CAST(regexp_extract(f.point, '^message ([0-9]+) after ', 1) AS BIGINT)
        JOIN (VALUES {outputs}) o(output, query) ON coalesce(f.query, '') IN ('', o.query)
        WHERE f.fired_at IS NOT NULL AND s."offset" IS NOT NULL""")  # noqa: S608
