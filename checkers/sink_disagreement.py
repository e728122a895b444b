"""``sink-disagreement``: two outputs of one pipeline disagree at a quiet point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onceproof.base.words import times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import STRUCK, Allows, ClaimRule
from onceproof.judge.relations import misplacement, on_demand
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import World
from onceproof.judge.witness import Row, by, finding, holding, input_of, noun, total_of, unsettled_loss
from onceproof.scenario.outputs import OutputSpec
from onceproof.values import digest
from onceproof.values.canonical import literal

#: The source of a finding about the number of copies.
_COPIES = "copies"

# Effects that an output lacks or holds too often, and wrong states of an upsert. ``extra``: copies beyond the expected number.
_FAULTY = """
    CREATE OR REPLACE TEMP TABLE faulty AS
    SELECT output, id, topic, "partition", "offset", query, batch, reason AS source, 0 AS extra
    FROM judge.lost WHERE NOT hidden
    UNION ALL
    SELECT r.output, r.id, x.topic, x."partition", x."offset", b.query, b.batch,
           CASE WHEN r.wrong > 0 THEN 'other state' ELSE 'copies' END, r.extra
    FROM judge.remaining r JOIN judge.expected x ON x.output = r.output AND x.id = r.id
    LEFT JOIN judge.output_batches b ON b.output = x.output AND b.topic = x.topic AND b."partition" = x."partition"
        AND x."offset" >= b.start_offset AND x."offset" < b.end_offset
    WHERE (r.wrong > 0 AND r.output IN ({upserts})) OR (r.wrong = 0 AND r.extra > 0 AND r.output NOT IN ({upserts}))
    QUALIFY row_number() OVER (PARTITION BY r.output, r.id ORDER BY x."offset", x.topic, x."partition", b.query, b.batch) = 1"""

# Pairs a faulty effect with an effect of another output that should match: one of the same input record or, where a cause is
# unknown, of the same identity. A wrong state is paired only with the state of the same identity in another upsert.
_DISAGREEMENTS = """
    CREATE OR REPLACE TEMP TABLE disagreements AS
    WITH pairs AS (
        SELECT f.*, e.output AS other, e.id AS other_id FROM faulty f
        JOIN judge.expected e ON e.topic = f.topic AND e."partition" = f."partition" AND e."offset" = f."offset"
        WHERE e.output <> f.output AND f.source <> 'other state'
        UNION
        SELECT f.*, e.output, e.id FROM faulty f JOIN judge.expected e ON e.id = f.id
        WHERE e.output <> f.output AND (f."offset" IS NULL OR e."offset" IS NULL OR f.source = 'other state')
          AND (e.output IN ({upserts}) OR f.source <> 'other state'))
    SELECT p.* EXCLUDE (other, other_id), min(other) AS present, min_by(other_id, other) AS present_id
    FROM pairs p LEFT JOIN judge.remaining o ON o.output = p.other AND o.id = p.other_id
    WHERE NOT EXISTS (FROM judge.missing m WHERE m.output = p.other AND m.id = p.other_id)
      AND NOT EXISTS (FROM judge.tally t WHERE t.output = p.other AND t.id = p.other_id AND t.wrong > 0)
      AND (p.source <> 'copies' OR (coalesce(o.extra, 0) < p.extra AND p.other NOT IN ({upserts})))
    GROUP BY ALL"""

_SAME_CAUSE_OR_IDENTITY = f"""
    SELECT output, h FROM judge.expected_digests SEMI JOIN faulty USING (topic, "partition", "offset")
    UNION
    SELECT output, h FROM judge.expected_digests WHERE h IN (SELECT {digest.of_text("id")} FROM faulty)"""  # noqa: S608

_TOTALS = """
    SELECT output, source,
           CASE source WHEN 'other state' THEN 'right in ' WHEN 'copies' THEN 'fewer copies in ' ELSE 'present in ' END
           || present AS label, query || '/' || batch AS of_batch, count(*) AS total
    FROM disagreements GROUP BY ALL ORDER BY output, source, label, of_batch"""

# ``there``: where the other output has its effect.
_WITNESSES = """
    WITH others AS (
        SELECT e.output AS present, e.id AS present_id, min_by(e.place, (e.pos, e.lane)) AS there FROM judge.effects e
        SEMI JOIN disagreements d ON d.present = e.output AND d.present_id = e.id GROUP BY ALL)
    SELECT d.*, r.actual, coalesce(o.extra, 0) AS other_extra, t.there FROM disagreements d
    LEFT JOIN others t USING (present, present_id)
    LEFT JOIN judge.remaining r ON r.output = d.output AND r.id = d.id
    LEFT JOIN judge.remaining o ON o.output = d.present AND o.id = d.present_id
    WHERE d.output = $output AND source = $source
    ORDER BY topic, "partition", "offset", d.id LIMIT $limit"""


def in_one_output_only(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = choose.some(world.visible(output))
    for _, write in sites:
        world.drop(write)
    lacking = Counter(write.identity for _, write in sites)
    return {("sink-disagreement", output): lacking, ("lost-write", output): lacking}


@checkers.register("sink-disagreement")
class SinkDisagreement(Checker):
    """Counts effects and states in which one output is at fault and another one is right.

    These are effects that one output lacks while another has its effect of the same input record; effects of which one output
    holds more copies than another (each beyond its own expected number); and states that are wrong in one upsert and right
    in another of the same identity.

    Only effects that both outputs should hold are compared, so an output that filters more than the other agrees with
    it. Effects are matched by cause or, where the oracle names none, by identity; one of the two must be known. Outputs
    may differ while an effect is on its way: before a quiet point a disagreement is transient, and an effect in a
    transaction that has not ended is left out. With one output there is nothing to compare. Dual writes: Kleppmann,
    *Making Sense of Stream Processing*, chapter 3.
    """

    meaning = "two outputs of one pipeline disagree at a quiet point"
    explanation = Explanation(
        example="The order is in the table, but it never reached the topic that the warehouse reads.",
        causes=(
            "One foreachBatch writes to two systems, and the driver dies in between (crash at between-sinks).",
            "One of two sinks refuses the write, and the job swallows the error (reject).",
            "Dual writes: two clients write to two systems in different orders, and nothing compares the results.",
        ),
        decided="Both outputs should hold a row of one input record (where the oracle names no cause: of one "
        "identity). One holds it, or the right state; the other lacks it, has another state, or holds more copies. "
        "Outputs that filter differently agree. The faulty output has a lost-write, stale-tail, duplicate or "
        "wrong-value as well; this finding adds that the other output is right. Before a quiet point it is transient: "
        "the row may still be on its way.",
        stops=(
            "Make each sink effectively-once by itself: the replayed batch then completes the sink that is behind.",
            "Write to one system and derive the other from its log: an outbox table, or change data capture.",
        ),
        sources=(
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Keeping systems in sync",
            "P. Helland, Life beyond Distributed Transactions (2007)",
        ),
    )
    rule = ClaimRule(
        allows=(
            Allows(
                claim={"delivery": "at-least-once"},
                what="a difference in the number of copies",
                why="at-least-once allows copies whose cause is known; the others are reported as duplicate",
                when=lambda finding: finding.source == _COPIES,
            ),
            STRUCK,
            Allows(
                claim={},
                what="a finding in a run that reached no quiet point",
                why="transient: the run reached no quiet point, and until then outputs may differ by rows that are on their way",
                when=lambda finding: finding.transient,
            ),
        ),
        counted_as="The fault of the one output is counted there, as a lost-write, stale-tail, duplicate or wrong-value.",
    )
    comes_with = {
        "lost-write": "what one output lacks is missing there",
        "torn-batch": "the rest of its batch is visible",
        "commit-ahead-of-effect": "progress was recorded, and the row or record never came",
    }
    damages = (
        Damage(in_one_output_only, "one of two outputs lacks a row or record", only=("events", "rows"), outputs=2),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        if len(_compared(case)) < 2:
            return
        yield from _incomparable(case)
        misplacement.create(case)
        if not case.differs or not case.number("SELECT count(*) FROM judge.tally"):
            return
        upserts = ", ".join(literal(name) for name, spec in case.outputs.items() if spec.kind == "upsert") or "''"
        case.sql(_FAULTY.format(upserts=upserts))
        on_demand.load(case, _SAME_CAUSE_OR_IDENTITY)
        case.sql(_DISAGREEMENTS.format(upserts=upserts))
        for rows in by(case.rows(_TOTALS), "output", "source"):
            kind, source = noun(case, rows[0]["output"]), rows[0]["source"]
            what, how = {
                "other state": ("state", "right in another output and wrong in this one"),
                _COPIES: (kind, "with more copies in this output than in another"),
            }.get(source, (kind, "present in another output and missing in this one"))
            yield finding(
                case,
                "sink-disagreement",
                rows,
                f"{times(total_of(rows), what)} {how}",
                _WITNESSES,
                _argument,
                placed=True,
                transient=not case.drained,
                unsettled=unsettled_loss(rows),
            )


def _compared(case: Case) -> dict[str, OutputSpec]:
    """The outputs to compare: not those that must stay empty, nor dead letters, which hold what another output lacks."""
    return {output: spec for output, spec in case.outputs.items() if not spec.is_side_output}


def _incomparable(case: Case) -> Iterator[Gap]:
    """Outputs whose effects cannot be matched with those of any other output."""
    outputs = _compared(case)
    causes = {output: case.expectations[output].has_cause for output in outputs}
    for output, spec in outputs.items():
        others = [other for other in outputs if other != output]
        by_cause = causes[output] and any(causes[other] for other in others)
        by_identity = any(sorted(case.outputs[other].identity) == sorted(spec.identity) for other in others)
        if not by_cause and not by_identity:
            why = "neither a cause (_partition, _offset) nor an identity connects its rows with those of another output"
            yield Gap(output, why)


def _argument(case: Case, row: Row) -> str:
    at, here = f", at {row['there']}" if row["there"] else "", row["places"]
    if row["source"] == "other state":
        first = f"Outputs {row['output']!r} and {row['present']!r} keep the state of this identity.\n"
        wrong = f" (at {here[0]})" if here else ""
        return f"{first}{row['present']!r} holds the right one{at}.\nBut {row['output']!r} holds another{wrong}."
    where = f"{input_of(row)} should be in {row['output']!r} and in {row['present']!r}.\n"
    if row["source"] == _COPIES:
        extra, other = row["extra"], row["other_extra"]
        as_expected = "as many as expected" if not other else f"{other} more than expected"
        return (
            f"{where}{row['present']!r} holds {as_expected}{at}.\n"
            f"But {row['output']!r} holds {extra} more than expected: {holding(case, row['output'], row['actual'], here)}."
        )
    return f"{where}{row['present']!r} holds its {noun(case, row['present'])}{at}.\nBut {row['output']!r} does not."
