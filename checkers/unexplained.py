"""``unexplained``: a row or record that no input explains."""

from __future__ import annotations

from collections import Counter

from onceproof.base.words import are, times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import MODELS, OFF, Identity, World, WorldWrite, identity
from onceproof.judge.witness import Row, behind, finding, holding, noun

_TOTALS = """
    SELECT output, sum(unexplained)::BIGINT AS total FROM judge.remaining
    WHERE unexplained > 0 GROUP BY output ORDER BY output"""

_WITNESSES = """
    SELECT output, id, unexplained FROM judge.remaining WHERE output = $output AND unexplained > 0 ORDER BY id LIMIT $limit"""


def effect_of_nothing(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = world.committed(output)
    named: Counter[Identity] = Counter()
    for number in range(choose.number(1, 3)):
        if MODELS[output].kind == "append":
            values = {"p": 0, "o": 10_000 + number, "k": "ghost", "n": OFF + number}
            write = WorldWrite(identity(p=0, o=10_000 + number), values, 0, "ghost")
        else:
            key = f"ghost{number}"
            write = WorldWrite(identity(k=key), {"k": key, "total": OFF + number, "c": 1}, 0, key)
        choose.one(sites).writes.append(write)
        named[write.identity] += 1
    return {("unexplained", output): named}


@checkers.register("unexplained")
class Unexplained(Checker):
    """Counts effects with an identity that the oracle expects nowhere in that output.

    Effects that uncommitted input explains (``aborted-read``, ``precommitted-read``) and effects that belong elsewhere
    (``misplaced``) do not count.
    """

    meaning = "a row or record that no input explains"
    explanation = Explanation(
        example="The table holds a row for order 4711. Nobody ever sent an order 4711.",
        causes=(
            "The job damages the identity: a wrong decoding, a default in place of a null, an id drawn at random in "
            "each execution.",
            "A filter is not applied, or applied to the wrong columns.",
            "Another program writes to the output: a second job, a test, an older run in the same topic or table.",
            "A delete or a tombstone was not applied to a view.",
        ),
        decided="A row or record is in an output under an identity that the oracle expects nowhere in it. "
        "Uncommitted input does not explain it, and it is not misplaced. Not evaluated for an output of kind upsert of a run "
        "that did not drain, unless the oracle is identity: the input that is left may still remove the row.",
        stops=(
            "Derive identities from the input alone: source topic, partition and offset, or a business key.",
            "One writer per output: its own table or topic, and a role of its own with the right to write.",
        ),
        sources=(
            "P. Alvaro, K. Kingsbury, Elle: Inferring Isolation Anomalies from Experimental Observations (2020): "
            "garbage reads",
        ),
    )
    rule = FORBIDDEN
    comes_with = {
        "diverged-replay": "another attempt did not write it",
    }
    damages = (Damage(effect_of_nothing, "a row of an identity that the oracle does not expect"),)

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.differs:
            return
        for row in case.rows(_TOTALS):
            spec = case.scenario.outputs[row["output"]]
            if not case.drained and spec.kind == "upsert" and case.scenario.oracle.kind != "identity":
                what = f"{times(row['total'], noun(case, row['output']))} {are(row['total'])} not expected at the end of the input"
                yield Gap(row["output"], f"{what}, but {behind(case)}")
                continue
            why = (
                "in an output that must stay empty" if spec.expected == "empty" else "that no committed input explains"
            )
            why = why if spec.dead_letter_of is None else f"matching no missing row in {spec.dead_letter_of}"
            summary = f"{times(row['total'], 'row' if spec.is_side_output else noun(case, row['output']))} {why}"
            yield finding(case, "unexplained", [row], summary, _WITNESSES, _argument, placed=True)


def _argument(case: Case, row: Row) -> str:
    return f"{_premise(case, row['output'])}\nBut {holding(case, row['output'], row['unexplained'], row['places'])}."


def _premise(case: Case, output: str) -> str:
    spec = case.scenario.outputs[output]
    if spec.expected == "empty":
        return f"Output {output!r} must stay empty."
    if spec.dead_letter_of is not None:
        of = "identity" if spec.source is None else "input record"
        main = spec.dead_letter_of
        others = [
            f"{name!r}" for name, other in case.outputs.items() if other.dead_letter_of == main and name != output
        ]
        holds = " or ".join([f"{main!r}", *others])
        return f"A row of {output!r} replaces one that {main!r} lacks; {holds} holds a row of this {of}, or {main!r} must hold none."
    return f"No committed input explains a {noun(case, output)} with this identity in {output!r}."
