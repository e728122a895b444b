"""``reordered``: first effects in another order than their causes, inside the promised scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.judge.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.witness import Row, identity_of, times

# The n-th effect of an identity belongs to its n-th cause; effects beyond that are repetitions and have no order.
_FIRSTS = """
    CREATE OR REPLACE TEMP TABLE firsts AS
    WITH causes AS (
        SELECT md5_number(id) AS id, topic, "partition", "offset", "key",
               row_number() OVER (PARTITION BY md5_number(id) ORDER BY "offset", topic, "partition") AS nth
        FROM judge.expected WHERE output = $output AND "offset" IS NOT NULL AND ("key" IS NOT NULL OR NOT $keyed)),
    seen AS (
        SELECT md5_number(id) AS id, lane, pos,
               row_number() OVER (PARTITION BY md5_number(id) ORDER BY pos, lane) AS nth
        FROM judge.effects WHERE output = $output)
    SELECT s.lane, s.pos, c.topic, c."partition", c."offset", CASE WHEN $keyed THEN md5_number(c."key") END AS scope
    FROM seen s JOIN causes c ON c.id = s.id AND c.nth = s.nth"""

# RANGE ... 1 PRECEDING leaves out what has the same position: rows of one transaction are simultaneous.
_LATE = """
    CREATE OR REPLACE TEMP TABLE late AS
    SELECT * FROM (
        SELECT *, max("offset") OVER (PARTITION BY topic, "partition", lane, scope ORDER BY pos
                                      RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead
        FROM firsts)
    WHERE ahead > "offset" """

# Scopes with effects of different causes in several lanes; lanes need no list, two of them are enough to see it.
_SPLIT = """
    WITH split AS (
        SELECT topic, "partition", min("offset") AS "offset", min(lane) AS one, max(lane) AS other, count(*) OVER () AS n
        FROM firsts GROUP BY topic, "partition", scope
        HAVING min(lane) < max(lane) AND min("offset") < max("offset")
        ORDER BY ALL LIMIT 1)
    SELECT s.*, min(x."key") AS "key" FROM split s
    JOIN judge.expected x ON x.output = $output AND x.topic = s.topic AND x."partition" = s."partition" AND x."offset" = s."offset"
    GROUP BY ALL"""

# Both members of a pair by their causes; a cause may have several effects, of which the first is named.
_WITNESSES = """
    WITH chosen AS (SELECT * FROM late ORDER BY topic, "partition", "offset", pos LIMIT $limit)
    SELECT l.topic, l."partition", l."offset", l.ahead, x.id, x."key",
           min_by(e.place, e.pos) AS place, min_by(f.place, f.pos) AS ahead_place
    FROM chosen l
    JOIN judge.expected x ON x.output = $output AND x.topic = l.topic AND x."partition" = l."partition" AND x."offset" = l."offset"
    JOIN judge.effects e ON e.output = $output AND e.id = x.id AND e.lane = l.lane AND e.pos = l.pos
    JOIN judge.expected y ON y.output = $output AND y.topic = l.topic AND y."partition" = l."partition" AND y."offset" = l.ahead
    JOIN judge.effects f ON f.output = $output AND f.id = y.id AND f.lane = l.lane AND f.pos < l.pos
    GROUP BY ALL ORDER BY ALL"""


@checkers.register("reordered")
class Reordered:
    """Counts first effects that stand after the first effect of a later record of the same scope.

    The scope is one input partition (``order: per-partition``), or the records with one key within it (``per-key``, and
    where no order is claimed); records without a key have no order there. Effects are ordered within one partition of
    an output topic, and by commit in Postgres; there is no order across output partitions: where a claimed scope has
    effects in several of them, the claim can be broken but not be proved.
    """

    meaning: ClassVar[str] = "inside the promised scope, first effects stand in another order than their causes"

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        for output in case.outputs:
            order = case.scenario.claim_of(output).order
            keyed = order != "per-partition"
            gap = _gap(case, output, keyed)
            if gap is not None:
                yield Gap(output, gap)
                continue
            case.sql(_FIRSTS, {"output": output, "keyed": keyed})
            case.sql(_LATE)
            total = case.number("SELECT count(*) FROM late")
            if total:
                scope = "key" if keyed else "input partition"
                summary = f"{times(total, 'effect')} after an effect of a later record of the same {scope}"
                yield Finding("reordered", output, total, summary, _witnesses(case, output, keyed))
            if order != "none" and (split := _split(case, output, keyed)):
                yield Gap(output, split)
            case.sql("DROP TABLE late")
            case.sql("DROP TABLE firsts")


def _gap(case: Case, output: str, keyed: bool) -> str | None:
    expectation = case.expectations[output]
    if not expectation.has_cause:
        return "the oracle names no cause (_partition, _offset)"
    if keyed and not expectation.has_key:
        return "the oracle does not say which key a cause has (_key)"
    return case.no_stream.get(output)


def _split(case: Case, output: str, keyed: bool) -> str | None:
    """That no reader sees the order of some scope, for its effects lie in several lanes."""
    for row in case.rows(_SPLIT, {"output": output}):
        scope = _scope(row, keyed)
        more = f" (so do those of {row['n'] - 1} more)" if row["n"] > 1 else ""
        places = f"partitions {row['one']} and {row['other']} of {case.scenario.outputs[output].topic}"
        return f"the effects of {scope} lie in {places}{more}, and across partitions no reader sees an order"
    return None


def _witnesses(case: Case, output: str, keyed: bool) -> tuple[Witness, ...]:
    rows = case.rows(_WITNESSES, {"output": output, "limit": MAX_WITNESSES})
    return tuple(
        Witness(
            identity=identity_of(row),
            argument=_argument(row, keyed),
            cause=f"{row['topic']}/{row['partition']}@{row['offset']}",
            positions=(row["ahead_place"], row["place"]),
        )
        for row in rows
    )


def _argument(row: Row, keyed: bool) -> str:
    return (
        f"In {_scope(row, keyed)}, offset {row['offset']} comes before offset {row['ahead']}.\n"
        f"Yet the effect of {row['ahead']} stands first, at {row['ahead_place']}; that of {row['offset']} at {row['place']}."
    )


def _scope(row: Row, keyed: bool) -> str:
    place = f"{row['topic']}/{row['partition']}"
    return f"key {row['key']} in {place}" if keyed else place
