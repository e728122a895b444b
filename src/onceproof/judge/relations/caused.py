"""Makes the table ``judge.caused``: which input caused which effect, and in which batch.

One row per effect whose identity has a cause: ``output``, ``h`` (the digest of its identity, `onceproof.values.digest`; for a
changelog, of identity and content), ``lane`` and ``pos`` (as in ``judge.effects``), ``commit_order``; its cause's
``topic``, ``partition``, ``offset`` and ``scope`` (a hash of its key; NULL without a key); ``nth`` (1: the first effect of this
cause; above 1: a repetition); the ``query`` and ``batch`` that planned the cause, NULL if none did.

The n-th effect of an identity belongs to its n-th cause, and all further effects to its last cause. In a changelog each state
is an effect of its own; `onceproof.judge.relations.states` decides which of two equal states it is.

``judge.output_batches`` holds the batches of the query that writes an output: the query it names, or the only one there is.
``judge.progress`` holds how far that query has recorded the input as done; if the output names no query: how far every query
has. ``furthest`` is how far some query may be: the one of them that is furthest, or for a query of which no progress is recorded
the end of its last committed batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.scenario.modes import without_batches
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Nearly all identities have one effect and one cause: one join on their digest.
_ONCE = """
    SELECT e.h, e.lane, e.pos, e.commit_order, c.topic, c."partition", c."offset", c.scope, 1 AS nth
    FROM ({effects}) e JOIN ({causes}) c ON c.h = e.h
    WHERE {apart}"""

# The other identities: the n-th effect belongs to the n-th cause.
_SEVERAL = """
    SELECT e.h, e.lane, e.pos, e.commit_order, c.topic, c."partition", c."offset", c.scope, greatest(e.nth - c.of, 0) + 1 AS nth
    FROM (SELECT *, row_number() OVER (PARTITION BY h ORDER BY pos, lane) AS nth FROM ({effects}) WHERE {among}) e
    JOIN (SELECT *, row_number() OVER (PARTITION BY h ORDER BY "offset", topic, "partition") AS nth,
                 count(*) OVER (PARTITION BY h) AS of
          FROM ({causes}) WHERE {among}) c ON c.h = e.h AND c.nth = least(e.nth, c.of)"""

_FIND_SEVERAL = """
    CREATE OR REPLACE TEMP TABLE several AS
    SELECT h FROM judge.expected_digests WHERE output = $output GROUP BY h HAVING count(*) > 1
    UNION SELECT h FROM judge.suspects WHERE output = $output"""

_FIND_SUSPECTS = "CREATE OR REPLACE TEMP TABLE several AS SELECT DISTINCT h FROM judge.suspects WHERE output = $output"

_PLACED = """
    SELECT s.*, CASE WHEN s."offset" < b.end_offset THEN b.query END, CASE WHEN s."offset" < b.end_offset THEN b.batch END
    FROM ({rows}) s
    ASOF LEFT JOIN (FROM judge.output_batches WHERE output = $output) b
        ON b.topic = s.topic AND b."partition" = s."partition" AND s."offset" >= b.start_offset"""

# Whether ranges overlap: only then does it matter which of them begins last.
_OVERLAP = """
    SELECT count(*) FROM (
        SELECT end_offset, lead(start_offset) OVER (PARTITION BY topic, "partition" ORDER BY start_offset) AS next
        FROM judge.output_batches WHERE output = $output) WHERE next < end_offset"""

# The ranges cut into stretches of about the length of a range: a join by equality, which needs no sort of the effects.
_STRETCHES = """
    CREATE OR REPLACE TEMP TABLE stretches_of_batches AS
    SELECT query, batch, topic, "partition", start_offset, end_offset,
           unnest(range(start_offset // {length}, (end_offset - 1) // {length} + 1)) AS stretch
    FROM judge.output_batches WHERE output = $output"""

_LENGTH = """
    SELECT greatest(sum(end_offset - start_offset) // count(*), 1) FROM judge.output_batches WHERE output = $output"""

_PLACED_APART = """
    SELECT s.*, b.query, b.batch FROM ({rows}) s
    LEFT JOIN stretches_of_batches b
        ON b.topic = s.topic AND b."partition" = s."partition" AND b.stretch = s."offset" // {length}
        AND s."offset" >= b.start_offset AND s."offset" < b.end_offset"""


def create_batches(case: Case) -> None:
    """Make the table ``judge.output_batches``: for each output, the batches that hold data."""
    only_query = literal(case.queries[0]) if len(case.queries) == 1 else "NULL"
    selects = []
    for output, spec in case.scenario.outputs.items():
        query = only_query if spec.query is None else literal(spec.query)
        selects.append(f"SELECT {literal(output)} AS output, * FROM judge.batches WHERE query = {query}")  # noqa: S608
    union = " UNION ALL ".join(selects)
    case.sql(f"CREATE TABLE judge.output_batches AS FROM ({union}) WHERE end_offset > start_offset")
    _create_progress(case)


def _create_progress(case: Case) -> None:
    """Make the view ``judge.progress``: the progress of the query that writes an output, or the least of all if it names none.

    Progress counts as 0 for a query whose last watermark still had to be acted on by a further batch: the query has read that
    input, but is not done with it. So it does for one in continuous processing that has last repeated an epoch: its commit has the
    end that an earlier driver logged, and the rows up to there may still come.
    """
    open_ = {query for query, _ in case.open_watermarks("restarted", "due", "open")}
    unfinished = ", ".join(map(literal, sorted(open_.union(_repeating(case)))))
    not_done = ", ".join(map(literal, sorted(open_.union(without_batches(case.run.modes)))))
    finished_only = f"WHERE query NOT IN ({unfinished})" if unfinished else ""
    unrecorded = "committed_at IS NOT NULL AND query NOT IN (SELECT query FROM history.progress)"
    unrecorded += f" AND query NOT IN ({not_done})" if not_done else ""
    selects = []
    for output, spec in case.scenario.outputs.items():
        among = "true" if spec.query is None else f"query = {literal(spec.query)}"
        selects.append(f"SELECT {literal(output)} AS output, * FROM done WHERE {among}")  # noqa: S608
    union = " UNION ALL ".join(selects)
    # Also list queries that planned a batch and recorded no progress: they do read the partition.
    case.sql(f"""CREATE VIEW judge.progress AS
        WITH done AS (
            SELECT query, topic, "partition", max(end_offset) AS end_offset, max(furthest) AS furthest FROM (
                SELECT query, topic, "partition", end_offset, end_offset AS furthest FROM history.progress {finished_only}
                UNION ALL SELECT query, topic, "partition", 0, CASE WHEN {unrecorded} THEN end_offset ELSE 0 END FROM history.batches)
            GROUP BY ALL)
        SELECT output, topic, "partition", min(end_offset) AS end_offset, max(furthest) AS furthest FROM ({union}) GROUP BY ALL""")  # noqa: S608


def _repeating(case: Case) -> list[str]:
    """Queries in continuous processing whose last committed epoch was ended by another start of the driver."""
    last = """SELECT any_value(planned_by) IS DISTINCT FROM any_value(committed_by) FROM (
        FROM history.batches WHERE query = $query AND committed_by IS NOT NULL QUALIFY batch = max(batch) OVER ())"""
    return [
        query for query in without_batches(case.run.modes) if case.sql(last, {"query": query}).fetchall() == [(True,)]
    ]


# If a partition's input has no gaps, its least and greatest offset show that it holds all causes, without a join.
_BEYOND = """
    WITH named AS (
        SELECT output, topic, "partition", min("offset") AS low, max("offset") AS high FROM judge.expected_digests
        WHERE "offset" IS NOT NULL GROUP BY ALL)
    SELECT DISTINCT output FROM named n LEFT JOIN judge.held h ON h.topic = n.topic AND h."partition" = n."partition"
    WHERE NOT coalesce(h.low <= n.low AND h.high >= n.high AND h.n = h.high - h.low + 1, false) ORDER BY output"""

_UNKNOWN = """
    SELECT count(*) AS n, min((coalesce(topic, '?'), coalesce("partition", -1), "offset")) AS first FROM judge.expected_digests e
    WHERE output = $output AND "offset" IS NOT NULL AND NOT EXISTS (
        FROM history.input i WHERE i.topic = e.topic AND i."partition" = e."partition" AND i."offset" = e."offset"
        AND i.visibility = 'committed')"""


def unknown(case: Case) -> list[str]:
    """One sentence per output for which the oracle names causes that the input does not hold."""
    doubts = []
    for (output,) in case.sql(_BEYOND).fetchall():
        row = case.rows(_UNKNOWN, {"output": output})[0]
        if row["n"]:
            topic, partition, offset = row["first"].values() if isinstance(row["first"], dict) else row["first"]
            name = "names" if row["n"] == 1 else "name"
            doubts.append(
                f"{times(row['n'], 'expected row')} of output {output!r} {name} a cause that the committed input does not "
                f"hold, the first is {topic}/{partition}@{offset}: their order and loss cannot be judged; "
                "let _topic, _partition and _offset name the input record that causes the row"
            )
    return doubts


# Effects that were found by their text have their cause and batch already (`onceproof.judge.relations.as_written`).
_VIEW = """
    CREATE VIEW judge.caused AS
    SELECT output, h, coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos, commit_order, cause_topic AS topic,
           cause_partition AS "partition", cause_offset AS "offset", scope, 1::BIGINT AS nth, query, batch
    FROM judge.effect_digests WHERE cause_offset IS NOT NULL
    UNION ALL FROM judge.caused_apart"""

_FORGET_CAUSES = """
    UPDATE judge.effect_digests SET cause_offset = NULL
    WHERE output = $output AND cause_offset IS NOT NULL AND h IN (SELECT h FROM several)"""


def create(case: Case) -> None:
    case.compare()
    name = "judge.caused_apart" if case.digest_first else "judge.caused"
    case.sql(f"""CREATE TABLE {name} (output VARCHAR, h UBIGINT, lane INTEGER, pos BIGINT, commit_order BIGINT, topic VARCHAR,
                "partition" INTEGER, "offset" BIGINT, scope UBIGINT, nth BIGINT, query VARCHAR, batch BIGINT)""")
    if case.digest_first:
        case.sql(_VIEW)
    for output, expectation in case.expectations.items():
        if not expectation.has_cause:
            continue
        if case.scenario.outputs[output].kind == "changelog":
            _insert(case, output, name, _SEVERAL, state="hash(h, digest_2)", among="true")
        else:
            several = _find_several(case, output)
            if several and output in case.forms:
                case.sql(_FORGET_CAUSES, {"output": output})
            which = "cause_offset IS NULL" if output in case.forms else "true"
            apart = "e.h NOT IN (SELECT h FROM several)" if several else "true"
            _insert(case, output, name, _ONCE, which=which, apart=apart)
            if several:
                _insert(case, output, name, _SEVERAL, among="h IN (SELECT h FROM several)")


def _find_several(case: Case, output: str) -> bool:
    """Make the table ``several``, if it would have rows."""
    repeated = case.borderline or case.repeated[output]
    if not repeated and not case.differs:
        return False
    case.sql(_FIND_SEVERAL if repeated else _FIND_SUSPECTS, {"output": output})
    return case.number("SELECT count(*) FROM several") > 0


def _insert(
    case: Case, output: str, table: str, query: str, *, state: str = "h", which: str = "true", **conditions: str
) -> None:
    effects = f"""SELECT {state} AS h, coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos, commit_order
        FROM judge.effect_digests WHERE output = $output AND {which}"""  # noqa: S608
    causes = f"""SELECT {state} AS h, topic, "partition", "offset", scope
        FROM judge.expected_digests WHERE output = $output AND "offset" IS NOT NULL"""  # noqa: S608
    rows = with_batches(case, output, query.format(effects=effects, causes=causes, **conditions))
    case.sql(f"INSERT INTO {table} SELECT $output, * FROM ({rows})", {"output": output})  # noqa: S608


def with_batches(case: Case, output: str, rows: str) -> str:
    """SQL that adds ``query`` and ``batch`` to rows with a cause: ``topic``, ``partition``, ``offset``. Takes ``$output``.

    Right until it is called for another output.
    """
    # The stretches save a sort of the effects, which a small history does not need.
    if case.small or case.number(_OVERLAP, {"output": output}):
        return _PLACED.format(rows=rows)
    length = case.number(_LENGTH, {"output": output}) or 1
    case.sql(_STRETCHES.format(length=length), {"output": output})
    return _PLACED_APART.format(rows=rows, length=length)
