"""``reordered``: within the promised scope, rows or records first appear in another order than their input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

from onceproof.base.words import times
from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import Allows, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.judge.relations import on_demand
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, MODELS, Identity, World
from onceproof.judge.witness import Row, counted, finding, noun

#: The source of a finding about the order between different keys.
_ACROSS_KEYS = "another key"

_SCOPED = """
    SELECT topic, "partition", lane, pos, "offset", query, batch, {scope} AS scope
    FROM judge.caused WHERE output = $output AND nth = 1 AND {scope} IS NOT NULL"""

# How many expected rows there are, and how many of them have a cause, or a cause with a key: only those can be ordered.
_PLACED = """
    SELECT count(*) AS n, count("offset") AS caused, count(scope) FILTER ("offset" IS NOT NULL) AS keyed
    FROM judge.expected_digests WHERE output = $output"""

# Whether whole input partitions are in order, and with them every scope: found without a sort of the effects. The effects of one
# batch in one lane are in order if all of them are at one position, or if position and offset grow alike; and the batches of a
# partition follow each other.
_IN_ORDER = """
    SELECT count(*) FROM (
        SELECT *, max(last_pos) OVER before AS pos_before, max(last) OVER before AS offset_before
        FROM (SELECT topic, "partition", lane, min(pos) AS first_pos, max(pos) AS last_pos, min("offset") AS first, max("offset") AS last,
                     min(pos) = max(pos) OR min("offset" - pos) = max("offset" - pos) AS alike
              FROM judge.caused WHERE output = $output AND nth = 1 GROUP BY topic, "partition", lane, query, batch)
        WINDOW before AS (PARTITION BY topic, "partition", lane ORDER BY first_pos, last_pos
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
    WHERE NOT alike OR pos_before >= first_pos OR offset_before >= first"""

# A scope is in order if every two neighbours are: one sort finds the few scopes that need a closer look. Among equal
# positions (rows of one transaction) the lower offset comes first.
_SUSPECTS = f"""
    CREATE OR REPLACE TEMP TABLE suspects AS
    SELECT DISTINCT topic, "partition", lane, scope FROM (
        SELECT topic, "partition", lane, scope, "offset",
               lag("offset") OVER (PARTITION BY topic, "partition", lane, scope ORDER BY pos, "offset") AS before
        FROM ({_SCOPED}))
    WHERE before > "offset" """  # noqa: S608

# RANGE ... 1 PRECEDING leaves out effects at the same position: rows of one transaction are simultaneous.
_LATE = f"""
    CREATE OR REPLACE TEMP TABLE late AS
    SELECT * FROM (
        SELECT *, max("offset") OVER (PARTITION BY topic, "partition", lane, scope ORDER BY pos
                                      RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead
        FROM ({_SCOPED}) SEMI JOIN suspects USING (topic, "partition", lane, scope))
    WHERE ahead > "offset" """  # noqa: S608

_TOTALS = (
    "SELECT $output AS output, query || '/' || batch AS of_batch, count(*) AS total FROM late GROUP BY ALL ORDER BY ALL"
)

# Scopes with effects of different causes in several lanes. Two lanes are enough to show it, so no list of them is made.
_SPLIT = f"""
    CREATE OR REPLACE TEMP TABLE split AS
    SELECT topic, "partition", min("offset") AS "offset", min(lane) AS one, max(lane) AS other, count(*) OVER () AS n
    FROM ({_SCOPED}) GROUP BY topic, "partition", scope
    HAVING min(lane) < max(lane) AND min("offset") < max("offset")
    ORDER BY ALL LIMIT 1"""  # noqa: S608

_CAUSED_BY_SPLIT = """
    SELECT output, h FROM judge.expected_digests SEMI JOIN split USING (topic, "partition", "offset") WHERE output = $output"""

_SPLIT_KEY = """
    SELECT s.*, min(x."key") AS "key" FROM split s
    JOIN judge.expected x ON x.output = $output AND x.topic = s.topic AND x."partition" = s."partition" AND x."offset" = s."offset"
    GROUP BY ALL"""

# Both members of each pair.
_CAUSED_BY_LATE = """
    SELECT output, h FROM judge.expected_digests
    SEMI JOIN (SELECT topic, "partition", "offset" FROM late UNION SELECT topic, "partition", ahead FROM late)
        USING (topic, "partition", "offset") WHERE output = $output"""

# Both members of a pair, each with its position: a record may be expected, and be there, more than once. If a cause has several
# effects, the first one is named.
_WITNESSES = """
    WITH chosen AS (SELECT * FROM late ORDER BY topic, "partition", "offset", pos LIMIT $limit)
    SELECT $output AS output, l.topic, l."partition", l."offset", l.ahead, l.query, l.batch, x.id, x."key",
           min_by(e.place, e.pos) AS place, min_by(f.place, f.pos) AS ahead_place
    FROM chosen l
    JOIN judge.expected x ON x.output = $output AND x.topic = l.topic AND x."partition" = l."partition" AND x."offset" = l."offset"
    JOIN judge.effects e ON e.output = $output AND e.id = x.id AND e.lane = l.lane AND e.pos = l.pos
    JOIN judge.expected y ON y.output = $output AND y.topic = l.topic AND y."partition" = l."partition" AND y."offset" = l.ahead
    JOIN judge.caused a ON a.output = $output AND a.topic = l.topic AND a."partition" = l."partition" AND a."offset" = l.ahead
         AND a.nth = 1 AND a.lane = l.lane AND a.pos < l.pos
    JOIN judge.effects f ON f.output = $output AND f.id = y.id AND f.lane = a.lane AND f.pos = a.pos
    GROUP BY ALL ORDER BY ALL LIMIT $limit"""


def two_of_a_key_swapped(world: World, choose: Choices) -> Named:
    """Swap two neighbours among the effects of one key; in a table, two from different commits."""
    if world.claim["order"] == "per-partition":  # a swap within one key may also break the order between keys
        world.claim = {**world.claim, "order": "per-key"}
    output = choose.one(world.outputs)
    seen = world.visible(output)
    pairs = []
    for key in sorted({write.key for _, write in seen}):
        of_key = [(t, w) for t, w in seen if w.key == key]
        near = [(a, b) for a, b in pairwise(of_key) if not MODELS[output].table or a[0] is not b[0]]
        if near:
            pairs.append(choose.one(near))
    named: Counter[Identity] = Counter()
    for (_, one), (_, other) in choose.some(pairs):
        named[one.identity] += 1
        one.identity, other.identity = other.identity, one.identity
        one.values, other.values = other.values, one.values
    return {("reordered", output): named}


@checkers.register("reordered")
class Reordered(Checker):
    """Counts first effects that come after the first effect of a later record of the same scope.

    The scope is one input partition (``order: per-partition``), or the records with one key within it (``per-key``, and
    where no order is claimed); there, records without a key have no order. Effects are ordered within one partition of
    an output topic, and by commit in Postgres. There is no order across output partitions: where a claimed scope has
    effects in several of them, the claim can be refuted but not confirmed. Each state of a changelog is an effect, so
    an older state after a newer one is reordered. An upsert keeps only last states and shows no order; nor do rows of
    an append that were written again. For consumers with a claim per key, disorder between keys is a separate finding,
    which the claim allows.
    """

    meaning = "within the promised scope, rows or records first appear in another order than their input"
    explanation = Explanation(
        example="A gate change overtakes the one before it: the board ends on the older gate.",
        causes=(
            "Redelivery on a queue with several consumers: a consumer dies, and m3 comes again after m4 was processed.",
            "A producer without idempotence and with several requests in flight: the first fails, the second succeeds, the "
            "first is sent again (lost acknowledgement of a Produce).",
            "A shuffle or a repartition in the batch spreads one key over tasks that write concurrently.",
            "A retry topic takes a record out of its partition and brings it back later.",
        ),
        decided="Of one key (or of one input partition) two rows or records first appear in the reverse order of their input: by "
        "offset within one partition of an output topic, by commit in Postgres. Rows of one Postgres commit are "
        "simultaneous; repetitions are duplicates and have no order. Across partitions of an output no order can be observed: "
        "where the claimed scope is spread over several, the claim can be refuted but not confirmed.",
        stops=(
            "Send records of one key through one partition, one task and one writer: give the output the key of the input.",
            "Kafka: enable.idempotence=true, which keeps the order with up to five requests in flight.",
            "Pause the partition while a record is retried.",
        ),
        sources=(
            "KIP-98; Kafka's producer documentation: max.in.flight.requests.per.connection",
            "Jepsen's Kafka workload (jepsen.tests.kafka): nonmonotonic-poll",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Acknowledgments and redelivery",
        ),
    )
    rule = ClaimRule(
        allows=(
            Allows({"order": "none"}, "all of it", "no order is claimed"),
            Allows(
                claim={"order": "per-key"},
                what="disorder between the keys of consumers",
                why="order is claimed per key, not between keys",
                when=lambda finding: finding.source == _ACROSS_KEYS,
            ),
        )
    )
    comes_with = {
        "torn-batch": "a row that moved is in the commit of another batch",
        "zombie-write": "a row of an older start comes after one of a newer start",
        "commit-ahead-of-effect": "a row that moved came after its batch was recorded as done",
        "diverged-replay": "an aborted attempt had the right order",
        "precommitted-read": "a row that moved forward can be read before its input's transaction ended",
    }
    damages = (
        Damage(
            two_of_a_key_swapped,
            "two neighbours among the rows of a key are swapped",
            only=(*APPENDS, "log", "journal"),
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        for output, spec in case.outputs.items():
            order = case.scenario.claim_of(output).order
            keyed = order != "per-partition"
            if spec.kind == "upsert":
                if order != "none":
                    yield Gap(output, "an upsert keeps only the last state of each identity: declare it as changelog")
                continue
            if (gap := _gap(case, output, keyed)) is not None:
                yield Gap(output, gap)
                continue
            if order != "none" and (gap := _nothing_in_order(case, output, keyed)) is not None:
                yield Gap(output, gap)
                continue
            case.caused()
            within = list(_late(case, output, keyed))
            yield from within
            if keyed and case.scenario.pipeline.one_by_one:
                yield from _across_keys(case, output, sum(late.total for late in within))
            if order != "none" and not spec.has_rows and (split := _split(case, output, keyed)):
                yield Gap(output, split)


def _gap(case: Case, output: str, keyed: bool) -> str | None:
    expectation = case.expectations[output]
    if not expectation.has_cause:
        return "the oracle names no cause (_partition, _offset)"
    if keyed and not expectation.has_key:
        return "the oracle does not give the key of a cause (_key)"
    if case.scenario.outputs[output].kind == "append" and sources.rewritten(case, output):
        return "its rows were written again (updates or deletes), so their order shows only which was written last"
    return case.no_stream.get(output)


def _nothing_in_order(case: Case, output: str, keyed: bool) -> str | None:
    """Why no row can be ordered, or None. If only some cannot, their number goes into the case's notes."""
    row = case.rows(_PLACED, {"output": output})[0]
    placed = row["keyed"] if keyed else row["caused"]
    if not row["n"] or placed == row["n"]:
        return None
    if placed:
        case.notes[f"unordered.{output}"] = row["n"] - placed
        return None
    lacks = "no cause (_partition, _offset)" if not row["caused"] else "a cause without a key (_key)"
    return f"none of its {times(row['n'], 'expected row')} could be ordered: each has {lacks}"


def _late(case: Case, output: str, keyed: bool) -> Iterator[Finding]:
    if not case.number(_IN_ORDER, {"output": output}):
        return
    case.sql(_in_scope(_SUSPECTS, keyed), {"output": output})
    if not case.number("SELECT count(*) FROM suspects"):
        return
    case.sql(_in_scope(_LATE, keyed), {"output": output})
    if totals := case.rows(_TOTALS, {"output": output}):
        on_demand.load(case, _CAUSED_BY_LATE, {"output": output})
        scope = "key" if keyed else "input partition"
        summary = f"{counted(case, totals)} after the {noun(case, output)} of a later input record of the same {scope}"
        at = ["ahead_place", "place"]
        yield finding(case, "reordered", totals, summary, _WITNESSES, partial(_argument, keyed), at=at)


def _across_keys(case: Case, output: str, within: int) -> Iterator[Finding]:
    """Disorder between the keys of a queue or a partition: reported, but allowed where only the order per key is claimed."""
    for late in _late(case, output, keyed=False):
        if late.total > within:
            more = "" if not within else f"; {within:,} of them within one key"
            yield replace(late, source=_ACROSS_KEYS, summary=late.summary + more)


def _in_scope(query: str, keyed: bool) -> str:
    return query.format(scope="scope" if keyed else "0")


def _split(case: Case, output: str, keyed: bool) -> str | None:
    """Why the order of some scope cannot be observed: its effects are in several lanes. None if there is no such scope."""
    case.sql(_in_scope(_SPLIT, keyed), {"output": output})
    if not case.number("SELECT count(*) FROM split"):
        return None
    on_demand.load(case, _CAUSED_BY_SPLIT, {"output": output})
    for row in case.rows(_SPLIT_KEY, {"output": output}):
        scope = _scope(row, keyed)
        more = f" (so are those of {row['n'] - 1} more)" if row["n"] > 1 else ""
        places = f"partitions {row['one']} and {row['other']} of {case.scenario.outputs[output].topic}"
        return f"the records of {scope} are in {places}{more}, and no reader sees an order across partitions"
    return None


def _argument(keyed: bool, case: Case, row: Row) -> str:
    return (
        f"In {_scope(row, keyed)}, offset {row['offset']} comes before offset {row['ahead']}.\n"
        f"But the {noun(case, row['output'])} of {row['ahead']} comes first, at {row['ahead_place']}; that of {row['offset']} is at {row['place']}."
    )


def _scope(row: Row, keyed: bool) -> str:
    place = f"{row['topic']}/{row['partition']}"
    return f"key {row['key']} in {place}" if keyed else place
