"""``duplicate``: an effect counted more than once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, places, times

# The cause's batch is chosen among those that hold it: a replayed one before any other, then by the query's name.
_SUSPECTS = """
    CREATE OR REPLACE TEMP TABLE duplicates AS
    WITH caused AS (
        SELECT t.output, t.id, t.expected, t.actual, t.extra,
               min_by({topic: e.topic, "partition": e."partition", "offset": e."offset"},
                      (e."offset", e."partition")) AS cause
        FROM judge.tally t JOIN judge.expected e ON e.output = t.output AND e.id = t.id
        WHERE t.extra > 0 GROUP BY ALL),
    standing AS (
        SELECT c.*, count(DISTINCT e.pos) AS positions, count(DISTINCT e.lane) AS lanes
        FROM caused c JOIN judge.effects e ON e.output = c.output AND e.id = c.id GROUP BY ALL)
    SELECT s.* EXCLUDE (cause), s.cause.topic AS topic, s.cause."partition" AS "partition", s.cause."offset" AS "offset",
           b.query, b.batch, b.planned_by, b.committed_by,
           coalesce(b.replayed, false) AND (positions > 1 OR lanes > 1) AS replayed
    FROM standing s LEFT JOIN judge.batches b ON b.topic = s.cause.topic AND b."partition" = s.cause."partition"
         AND s.cause."offset" >= b.start_offset AND s.cause."offset" < b.end_offset
    QUALIFY row_number() OVER (PARTITION BY s.output, s.id ORDER BY b.replayed DESC NULLS LAST, b.query, b.batch) = 1"""

_ATTRIBUTED = """
    CREATE OR REPLACE TEMP TABLE attributed AS
    WITH twins AS (
        SELECT DISTINCT d.output, d.id FROM duplicates d
        JOIN input a ON a.topic = d.topic AND a."partition" = d."partition" AND a."offset" = d."offset"
        JOIN input b ON b.topic = a.topic AND b."key" IS NOT DISTINCT FROM a."key"
            AND b."value" IS NOT DISTINCT FROM a."value" AND (b."partition", b."offset") <> (a."partition", a."offset")
        WHERE NOT d.replayed AND NOT EXISTS (  -- an effect of its own is expected of that one
            FROM judge.expected x WHERE x.output = d.output AND x.topic = b.topic
            AND x."partition" = b."partition" AND x."offset" = b."offset")),
    active AS (
        SELECT d.output, d.id, string_agg(DISTINCT w.fault, ', ' ORDER BY w.fault) AS fault
        FROM duplicates d JOIN judge.windows w ON w.query = d.query AND w.batch = d.batch GROUP BY ALL)
    SELECT d.*, a.fault,
           CASE WHEN d.replayed THEN 'batch replay' WHEN t.id IS NOT NULL THEN 'input'
                WHEN a.fault IS NOT NULL THEN 'fault' ELSE 'unknown' END AS source
    FROM duplicates d
    LEFT JOIN twins t ON t.output = d.output AND t.id = d.id
    LEFT JOIN active a ON a.output = d.output AND a.id = d.id"""

_TOTALS = """
    SELECT output, source, sum(extra)::BIGINT AS total,
           CASE source WHEN 'batch replay' THEN 'batch replay (query ' || query || ', batch ' || batch || ')'
                       WHEN 'fault' THEN 'while ' || fault ELSE source END AS label
    FROM attributed GROUP BY ALL ORDER BY output, source, label"""

_WITNESSES = """
    SELECT * FROM attributed WHERE output = $output AND source = $source
    ORDER BY topic, "partition", "offset", id LIMIT $limit"""


@checkers.register("duplicate")
class Duplicate:
    """Counts the copies of an effect beyond what was expected (``extra`` of `onceproof.judge.compare`).

    One finding for each kind of source:

    - ``batch replay``: its input lies in a batch that one start of the driver planned and a later one committed, and
      the copies stand in different commits (Postgres) or at different offsets (Kafka);
    - ``input``: the committed input holds that very record more than once, and the oracle expects one effect of them all;
    - ``fault``: neither, but a fault was active in its batch (a producer that sent again, say);
    - ``unknown``: nothing in the history explains it.
    """

    meaning: ClassVar[str] = "an effect is counted more than once"

    def check(self, case: Case) -> Iterator[Finding]:
        case.compare()
        case.sql(_SUSPECTS)
        case.sql(_ATTRIBUTED)
        for (output, source), rows in by(case.rows(_TOTALS), "output", "source"):
            total = sum(row["total"] for row in rows)
            copies = "copy" if total == 1 else "copies"
            yield Finding(
                anomaly="duplicate",
                output=output,
                total=total,
                summary=f"{total} {copies} beyond what the input explains, by {source}",
                witnesses=_witnesses(case, output, source),
                source=source,
                attribution={row["label"]: row["total"] for row in rows},
            )


def _witnesses(case: Case, output: str, source: str) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "source": source, "limit": MAX_WITNESSES})
    standing = places(case, output, [row["id"] for row in rows])
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=_argument(row, standing[row["id"]]),
            cause=cause_of(row),
            batch=row["batch"],
            positions=standing[row["id"]],
        )
        for row in rows
    )


def _argument(row: Row, standing: tuple[str, ...]) -> str:
    why = {
        "batch replay": f"batch {row['batch']} was planned by driver start {row['planned_by']} and "
        + ("never committed" if row["committed_by"] is None else f"committed by start {row['committed_by']}"),
        "input": "the input holds this very record more than once",
        "fault": f"active in its batch: {row['fault']}",
        "unknown": "nothing in the history explains the copy",
    }[row["source"]]
    return (
        f"{input_of(row)} is committed, and {times(row['expected'], 'effect')} of it is expected.\n"
        f"Yet {row['actual']} stand, at {', '.join(standing)}; {why}."
    )
