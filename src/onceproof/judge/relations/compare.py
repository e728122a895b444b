"""Compares expected and actual effects as multisets: makes the tables that the checkers of single effects select from.

Digests first (`onceproof.values.digest`): identities are divided into buckets, and both sides are reduced to a count and two
independent 64-bit hashes per bucket, summed exactly (with XOR, a duplicated pair would cancel out). In unequal buckets the same
is done per identity, and only identities that differ are compared text by text: a clean run costs one scan of some numbers.

For one identity, *unmatched* effects are those beyond the expected number with the same content, and *missing* effects are
expected and not there:

- ``wrong``: an unmatched effect that takes the place of a missing one; effects whose content was never expected come first, and
  are wrong also if none is missing;
- ``extra``: the remaining unmatched effects: expected content, more often than expected;
- ``lost``: the remaining missing effects;
- ``unexplained``: all effects of an identity that is not expected at all.

Tables (schema ``judge``): ``tally`` (``output``, ``id``, ``expected``, ``actual``, ``wrong``, ``extra``, ``lost``,
``unexplained``), ``counts`` (``output``, ``id``, ``content``, ``expected``, ``actual``) for the identities in it, and
``missing``: one row per lost effect with its cause, its batch, and whether progress covers it (``covered``). ``hidden``: the
effect is in the output's log, in a transaction that is still open (or after one). ``fault``: what struck the batch (or the
consumer that had the message); ``active``: faults that were active at that time and struck another batch; ``reason``:
``fault``, ``no fault`` or ``unknown``; ``found_by``: how the batch was determined: from the ``input``, or as in
`onceproof.judge.relations.struck`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.judge.relations import on_demand, struck
from onceproof.values import digest

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Both sides, each row with a sign: equal rows on both sides add up to zero.
_SIDES = """(SELECT output, h, digest_1, digest_2, 1 AS sign FROM judge.expected_digests
             UNION ALL SELECT output, h, digest_1, digest_2, -1 FROM judge.effect_digests)"""

_UNEQUAL = f"""
    CREATE TABLE judge.unequal AS
    SELECT output, {digest.BUCKET} AS bucket FROM {_SIDES} GROUP BY ALL HAVING {digest.DIFFERENT}"""  # noqa: S608

# Filled only if some bucket is unequal.
_TABLES = f"""
    CREATE TABLE judge.suspects (output VARCHAR, h UBIGINT);
    CREATE TABLE judge.counts (output VARCHAR, id {digest.TEXT}, content {digest.TEXT}, expected HUGEINT, actual HUGEINT);
    CREATE TABLE judge.tally (output VARCHAR, id VARCHAR, expected BIGINT, actual BIGINT, wrong BIGINT, extra BIGINT, lost BIGINT,
        unexplained BIGINT);
    CREATE TABLE judge.missing (output VARCHAR, id VARCHAR, content VARCHAR, topic VARCHAR, "partition" INTEGER, "offset" BIGINT,
        "key" VARCHAR, closes_us BIGINT, query VARCHAR, batch BIGINT, fault VARCHAR, active VARCHAR, covered BOOLEAN, hidden BOOLEAN,
        found_by VARCHAR, reason VARCHAR)"""

_SUSPECTS = f"""
    INSERT INTO judge.suspects
    SELECT output, h FROM (SELECT *, {digest.BUCKET} AS bucket FROM {_SIDES}) SEMI JOIN judge.unequal USING (output, bucket)
    GROUP BY ALL HAVING {digest.DIFFERENT}"""  # noqa: S608

_COUNTS = """
    INSERT INTO judge.counts
    SELECT output, id, content, sum(expected) AS expected, sum(actual) AS actual FROM (
        SELECT output, id, content, 1 AS expected, 0 AS actual FROM judge.expected SEMI JOIN judge.suspects USING (output, h)
        UNION ALL
        SELECT output, id, content, 0, 1 FROM judge.effect_rows SEMI JOIN judge.suspects USING (output, h))
    GROUP BY ALL"""

_TALLY = """
    INSERT INTO judge.tally
    WITH sums AS (
        SELECT output, id, sum(expected)::BIGINT AS expected, sum(actual)::BIGINT AS actual,
               sum(greatest(expected - actual, 0))::BIGINT AS missing,
               sum(greatest(actual - expected, 0))::BIGINT AS unmatched,
               coalesce(sum(actual) FILTER (WHERE expected = 0), 0)::BIGINT AS foreign_content
        FROM judge.counts GROUP BY output, id),
    divided AS (
        SELECT *, CASE WHEN expected = 0 THEN 0 ELSE greatest(foreign_content, least(missing, unmatched)) END AS wrong
        FROM sums WHERE missing + unmatched > 0)
    SELECT output, id, expected, actual, wrong,
           CASE WHEN expected = 0 THEN 0 ELSE unmatched - wrong END AS extra,
           missing - least(missing, unmatched) AS lost,
           CASE WHEN expected = 0 THEN actual ELSE 0 END AS unexplained
    FROM divided"""

# Identities that differ by digests and not by rows. Rows that are loaded come from a second answer of the oracle.
_VANISHED = f"""
    SELECT s.output, count(*) FROM judge.suspects s
    ANTI JOIN (SELECT output, {digest.of_text("id")} AS h FROM judge.tally) t ON t.output = s.output AND t.h = s.h
    GROUP BY ALL ORDER BY ALL"""  # noqa: S608

# If some of several equal effects are missing, those with the latest causes count as missing.
_MISSING = """
    INSERT INTO judge.missing
    WITH short AS (
        SELECT e.* EXCLUDE (nth), t.lost, c.expected - c.actual AS deficit,
               row_number() OVER (PARTITION BY e.output, e.id, e.content ORDER BY e."offset" DESC, e.topic, e."partition") AS nth
        FROM judge.expected e
        JOIN judge.counts c ON c.output = e.output AND c.id = e.id AND c.content = e.content AND c.expected > c.actual
        JOIN judge.tally t ON t.output = e.output AND t.id = e.id AND t.lost > 0),
    chosen AS (
        SELECT * FROM short WHERE nth <= deficit
        QUALIFY row_number() OVER (PARTITION BY output, id ORDER BY "offset" DESC, topic, "partition", content) <= lost),
    placed AS (
        SELECT c.output, c.id, c.content, c.topic, c."partition", c."offset", c."key", c.closes_us, min(b.query) AS query,
               arg_min(b.batch, b.query) AS batch,
               string_agg(DISTINCT coalesce(CASE WHEN w.struck THEN w.fault END, k.fault), ', '
                          ORDER BY coalesce(CASE WHEN w.struck THEN w.fault END, k.fault)) AS fault,
               string_agg(DISTINCT CASE WHEN NOT w.struck THEN w.fault END, ', '
                          ORDER BY CASE WHEN NOT w.struck THEN w.fault END) AS active
        FROM chosen c
        LEFT JOIN judge.output_batches b ON b.output = c.output AND b.topic = c.topic AND b."partition" = c."partition"
            AND c."offset" >= b.start_offset AND c."offset" < b.end_offset
        LEFT JOIN judge.windows w ON w.query = b.query AND w.batch = b.batch
        LEFT JOIN judge.struck k ON k.output = c.output AND k.topic = c.topic AND k."partition" = c."partition" AND k."offset" = c."offset"
        GROUP BY c.output, c.id, c.content, c.topic, c."partition", c."offset", c."key", c.closes_us, c.nth)
    SELECT p.*, coalesce(p."offset" < g.end_offset, false) AS covered, false AS hidden,
           CASE WHEN p.batch IS NOT NULL THEN 'input' END AS found_by, NULL::VARCHAR AS reason
    FROM placed p LEFT JOIN judge.progress g ON g.output = p.output AND g.topic = p.topic AND g."partition" = p."partition" """


def create(case: Case) -> None:
    """Make the tables, and set ``case.differs``. If the sides do not differ, all of the tables are empty."""
    case.sql(f"{_UNEQUAL}; {_TABLES}")
    case.differs = case.number("SELECT count(*) FROM judge.unequal") > 0
    if not case.differs:
        return
    case.sql(_SUSPECTS)
    on_demand.load(case, "FROM judge.suspects")
    case.sql(_COUNTS)
    case.sql(_TALLY)
    if case.digest_first:
        for output, vanished in case.sql(_VANISHED).fetchall():
            case.doubts.append(
                f"output {output}: {times(vanished, 'identity')} differed by digests, and no longer when the rows were loaded: the "
                "oracle does not answer alike twice, so its answer proves nothing"
            )
    case.sql(
        "DELETE FROM judge.counts c WHERE NOT EXISTS (FROM judge.tally t WHERE t.output = c.output AND t.id = c.id)"
    )
    if not case.number("SELECT count(*) FROM judge.tally WHERE lost > 0"):
        return
    case.sql(_MISSING)
    struck.find_reasons(case)
    if case.number("SELECT count(*) FROM history.output WHERE visibility = 'open'"):
        case.changes()
        case.sql("""UPDATE judge.missing m SET hidden = true FROM judge.changes c
            WHERE c.output = m.output AND c.id = m.id AND c.content = m.content AND c.visibility = 'open'""")
