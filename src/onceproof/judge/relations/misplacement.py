"""Finds correct effects in the wrong place, and subtracts them and the dirty reads from the other differences.

Tables (schema ``judge``), made once by `create`:

``misplaced``
    One row per misplaced effect: ``how`` (``topic``, ``row`` or ``partition``), where it belongs: ``output``, ``id``,
    ``content``, and its cause (``topic``, ``partition``, ``offset``, NULL if unknown) with its ``query`` and ``batch``;
    where it was found: ``found_output``, ``found_id``, ``place``, ``pos``; ``due`` (for ``partition`` only: the right
    partition); ``missing_row`` (the ``rowid`` in ``judge.missing`` of the loss that it explains; NULL for ``partition``).
``remaining``
    ``judge.tally`` without what misplaced effects and dirty reads (`onceproof.judge.relations.dirty_reads`) explain: what is
    really wrong, extra or unexplained.
``lost``
    ``judge.missing`` without the effects that are in another place.

An effect is misplaced by

- **topic**: it is missing in one output, and an unexplained effect in another output has the same identity and content;
- **row**: an unexplained effect has the content, except for the identity, of exactly one expected effect, which is missing in
  the same output, and no other unexplained effect has that content. At least two columns must agree, or one value of 16
  characters or more: two effects may share one short value by chance;
- **partition**: it is not in the partition that the oracle gives (``_to_partition``), or, with ``placement: key``, not in the
  partition with the most records of its key (if several have the most: the lowest of them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case.record_key import BESIDE_THE_VALUE, KEY_TEXT
from onceproof.judge.relations import dirty_reads
from onceproof.values import digest
from onceproof.values.canonical import literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Two effects are unlikely to share a single value of so many characters by chance.
_LONG = 16

_EMPTY = """
    CREATE OR REPLACE TABLE judge.misplaced (how VARCHAR, output VARCHAR, id VARCHAR, content VARCHAR, topic VARCHAR, "partition" INTEGER,
        "offset" BIGINT, query VARCHAR, batch BIGINT, found_output VARCHAR, found_id VARCHAR, place VARCHAR, pos BIGINT,
        due INTEGER, missing_row BIGINT);
    CREATE OR REPLACE TABLE judge.remaining (output VARCHAR, id VARCHAR, expected BIGINT, actual BIGINT, wrong BIGINT, extra BIGINT,
        lost BIGINT, unexplained BIGINT);
    CREATE OR REPLACE VIEW judge.lost AS SELECT * FROM judge.missing
    WHERE rowid NOT IN (SELECT missing_row FROM judge.misplaced WHERE missing_row IS NOT NULL)"""

# Effects that nothing explains, not even uncommitted input.
_UNEXPLAINED = """
    CREATE OR REPLACE TEMP TABLE unexplained_effects AS
    SELECT e.output, e.id, e.content, e.place, e.pos, e.lane FROM judge.effects e
    SEMI JOIN (SELECT output, id FROM judge.tally WHERE unexplained > 0
               EXCEPT SELECT output, id FROM judge.dirty) USING (output, id)"""

_MISSING = """
    CREATE OR REPLACE TEMP TABLE missing_effects AS
    SELECT rowid AS missing_row, * FROM judge.missing WHERE NOT hidden"""

# The two sides are never in the same output: the identity of a missing effect is expected there, so it is not unexplained
# there.
_WRONG_TOPIC = """
    INSERT INTO judge.misplaced
    SELECT 'topic', g.output, g.id, g.content, g.topic, g."partition", g."offset", g.query, g.batch,
           s.output, s.id, s.place, s.pos, NULL, g.missing_row
    FROM (SELECT *, row_number() OVER (PARTITION BY id, content ORDER BY output, "offset", missing_row) AS nth FROM missing_effects) g
    JOIN (SELECT *, row_number() OVER (PARTITION BY id, content ORDER BY output, pos, lane) AS nth FROM unexplained_effects) s
      USING (id, content, nth)"""

_WRONG_ROW = """
    INSERT INTO judge.misplaced
    WITH due AS (
        SELECT *, {rest} AS rest FROM missing_effects g
        WHERE output = {output} AND NOT EXISTS (FROM judge.misplaced m WHERE m.missing_row = g.missing_row)
        QUALIFY count(*) OVER (PARTITION BY rest) = 1),
    alike AS (  -- content that several expected effects share does not identify any of them
        SELECT rest FROM (SELECT {rest} AS rest, count(*) AS n FROM judge.expected WHERE output = {output} GROUP BY ALL) WHERE n > 1),
    found AS (
        SELECT *, {rest} AS rest FROM unexplained_effects s
        WHERE output = {output} AND NOT EXISTS (
            FROM judge.misplaced m WHERE m.found_output = s.output AND m.found_id = s.id AND m.how = 'topic')
        QUALIFY count(*) OVER (PARTITION BY rest) = 1)
    SELECT 'row', g.output, g.id, g.content, g.topic, g."partition", g."offset", g.query, g.batch,
           s.output, s.id, s.place, s.pos, NULL, g.missing_row
    FROM due g JOIN found s USING (rest) WHERE rest IS NOT NULL AND rest NOT IN (SELECT rest FROM alike WHERE rest IS NOT NULL)"""

# Digests first, as in `onceproof.judge.relations.compare`: buckets that agree need no memory.
_UNEQUAL = """
    CREATE OR REPLACE TEMP TABLE unequal AS
    SELECT bucket FROM (
        SELECT {bucket} AS bucket, 1 AS sign, hash(h, to_partition) AS where_it_is FROM judge.expected_digests
        WHERE output = {output} AND to_partition IS NOT NULL
        UNION ALL SELECT {bucket}, -1, hash(h, "partition") FROM judge.effect_digests WHERE output = {output})
    GROUP BY bucket HAVING sum(sign) <> 0 OR sum(sign * where_it_is::HUGEINT) <> 0"""

_TO_PARTITION = """
    CREATE OR REPLACE TEMP TABLE elsewhere AS
    WITH due AS (
        SELECT id, to_partition AS "partition", count(*) AS n FROM judge.expected
        WHERE output = {output} AND to_partition IS NOT NULL AND {bucket} IN (FROM unequal) GROUP BY ALL),
    found AS (
        SELECT id, "partition", count(*) AS n FROM judge.effect_rows
        WHERE output = {output} AND {bucket} IN (FROM unequal) GROUP BY ALL),
    off AS (
        SELECT id, "partition", coalesce(f.n, 0) - coalesce(d.n, 0) AS over
        FROM due d FULL JOIN found f USING (id, "partition") WHERE coalesce(f.n, 0) <> coalesce(d.n, 0)),
    wandered AS (
        SELECT id, least(sum(greatest(over, 0)), sum(greatest(-over, 0))) AS n,
               min("partition") FILTER (over < 0) AS due FROM off GROUP BY id HAVING n > 0)
    SELECT e.id, e.content, e.place, e.pos, w.due
    FROM judge.effects e JOIN wandered w USING (id) JOIN off o ON o.id = e.id AND o."partition" = e."partition" AND o.over > 0
    WHERE e.output = {output}
    QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY e.pos DESC, e.lane) <= w.n"""

# In an append output, copies of an effect are duplicates, in whatever partition. In an upsert output, they are one state in two
# places.
_BY_KEY = """
    CREATE OR REPLACE TEMP TABLE elsewhere AS
    WITH split AS (
        SELECT "key" FROM history.output WHERE output = {output} AND visibility = 'committed' AND "key" IS NOT NULL
        GROUP BY "key" HAVING min("partition") < max("partition")),
    homes AS (
        SELECT {key_text} AS "key", arg_max("partition", (n, -"partition")) AS home FROM (
            SELECT "key", "partition", count(*) AS n FROM history.output SEMI JOIN split USING ("key")
            WHERE output = {output} AND visibility = 'committed' GROUP BY ALL)
        GROUP BY "key")
    SELECT e.id, e.content, e.place, e.pos, h.home AS due
    FROM judge.effects e JOIN homes h USING ("key")
    WHERE e.output = {output} AND e."partition" <> h.home AND NOT EXISTS (
        FROM judge.tally t WHERE t.output = e.output AND t.id = e.id AND t.unexplained + {unless} > 0)"""

_KEYS_APART = """
    SELECT count(*) FROM (
        SELECT "key" FROM history.output WHERE output = $output AND visibility = 'committed' AND "key" IS NOT NULL
        GROUP BY "key" HAVING min("partition") < max("partition"))"""

_WRONG_PARTITION = """
    INSERT INTO judge.misplaced
    SELECT 'partition', {output}, w.id, w.content, x.topic, x."partition", x."offset", b.query, b.batch,
           {output}, w.id, w.place, w.pos, w.due, NULL
    FROM elsewhere w
    LEFT JOIN (SELECT id, topic, "partition", "offset" FROM judge.expected SEMI JOIN elsewhere USING (id)
               WHERE output = {output} QUALIFY row_number() OVER (PARTITION BY id ORDER BY "offset") = 1) x USING (id)
    LEFT JOIN judge.output_batches b ON b.output = {output} AND b.topic = x.topic AND b."partition" = x."partition"
         AND x."offset" >= b.start_offset AND x."offset" < b.end_offset"""

# `compare` counts a state in two partitions as extra or as wrong.
_REMAINING = """
    INSERT INTO judge.remaining
    WITH taken AS (
        SELECT output, id, sum(n) FILTER (part = 'wrong') AS wrong, sum(n) FILTER (part = 'unexplained') AS unexplained, 0 AS copies
        FROM judge.dirty GROUP BY ALL
        UNION ALL BY NAME
        SELECT found_output AS output, found_id AS id, 0 AS wrong, count(*) FILTER (how <> 'partition') AS unexplained,
               count(*) FILTER (how = 'partition' AND output IN ({upserts})) AS copies
        FROM judge.misplaced GROUP BY ALL),
    sums AS (
        SELECT output, id, coalesce(sum(wrong), 0) AS wrong, coalesce(sum(unexplained), 0) AS unexplained,
               sum(copies) AS copies FROM taken GROUP BY ALL)
    SELECT t.output, t.id, t.expected, t.actual,
           greatest(t.wrong - coalesce(s.wrong, 0) - greatest(coalesce(s.copies, 0) - t.extra, 0), 0)::BIGINT AS wrong,
           greatest(t.extra - coalesce(s.copies, 0), 0)::BIGINT AS extra, t.lost,
           greatest(t.unexplained - coalesce(s.unexplained, 0), 0)::BIGINT AS unexplained
    FROM judge.tally t LEFT JOIN sums s USING (output, id)"""


def create(case: Case) -> None:
    """Make the tables, once."""
    case.once("misplacement", lambda: _create(case))


def _create(case: Case) -> None:
    dirty_reads.create(case)
    case.sql(_EMPTY)
    if (
        case.differs
        and case.number("SELECT count(*) FROM judge.missing")
        and case.number("SELECT count(*) FROM judge.tally WHERE unexplained > 0")
    ):
        case.all_rows()  # whether a content identifies an effect depends on all others
        case.sql(_UNEXPLAINED)
        case.sql(_MISSING)
        case.sql(_WRONG_TOPIC)
        for output in case.outputs:
            _wrong_row(case, output)
    for output, spec in case.outputs.items():
        if spec.topic is not None and case.expectations[output].has_place:
            names = {"output": literal(output), "bucket": digest.BUCKET}
            case.sql(_UNEQUAL.format(**names))
            if not case.number("SELECT count(*) FROM unequal"):
                continue
            case.all_rows()
            case.sql(_TO_PARTITION.format(**names))
        elif spec.topic is not None and spec.placement == "key":
            if not case.number(_KEYS_APART, {"output": output}):
                continue
            case.all_rows()
            unless = "0" if spec.kind == "upsert" else "t.extra + t.wrong"
            case.sql(_BY_KEY.format(output=literal(output), key_text=KEY_TEXT, unless=unless))
        else:
            continue
        case.sql(_WRONG_PARTITION.format(output=literal(output)))
    if not case.differs:  # nothing remains of an empty tally
        return
    upserts = [literal(name) for name, spec in case.outputs.items() if spec.kind == "upsert"]
    case.sql(_REMAINING.format(upserts=", ".join(upserts) or "NULL"))


def _wrong_row(case: Case, output: str) -> None:
    """Find effects misplaced by row: compare the columns other than the identity, if they hold enough to identify an effect."""
    identity = case.scenario.outputs[output].identity
    others = [
        name for name in case.expectations[output].columns if name not in identity and name not in BESIDE_THE_VALUE
    ]
    if others:
        texts = [f"content->>{member(name)}" for name in others]
        filled = " + ".join(f"({text} IS NOT NULL)::INT" for text in texts)
        long = f"greatest({', '.join(f'coalesce(length({text}), 0)' for text in texts)})"
        rest = f"CASE WHEN {filled} > 1 OR {long} >= {_LONG} THEN json_array({', '.join(texts)})::VARCHAR END"
        case.sql(_WRONG_ROW.format(output=literal(output), rest=rest))
