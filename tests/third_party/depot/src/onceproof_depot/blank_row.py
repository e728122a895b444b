"""Checker ``blank-row``: a row that has its identity and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from onceproof.base.words import times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, checkers
from onceproof.judge.claim_rule import FORBIDDEN, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, World
from onceproof.judge.witness import noun, shown_rows
from onceproof.values.canonical import member

_BLANK = """
    SELECT id, place FROM judge.effects e WHERE output = $output AND {blank}
    AND NOT EXISTS (FROM judge.expected x WHERE x.output = e.output AND x.id = e.id AND x.content = e.content)"""


def blanked(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    writes = [write for _, write in choose.some(world.visible(output))]
    for write in writes:
        assert write.values is not None, "an append has no tombstones"
        write.values = {**dict.fromkeys(write.values), **{name: write.values[name] for name, _ in write.identity}}
    return {("blank-row", output): Counter(write.identity for write in writes)}


@checkers.register("blank-row")
class BlankRow(Checker):
    """Counts effects in which every compared column outside the identity is null, unless the oracle expects just that."""

    meaning: ClassVar[str] = "a row has its identity, and nulls in all other columns"
    explanation: ClassVar[Explanation] = Explanation(
        example="Parcel P000042 is in the table, without a dock and without a weight.",
        causes=("from_json or from_csv got a schema that does not fit the value: it returns nulls and no error.",),
        decided="All compared columns outside the identity are null, and the oracle expects another row.",
        stops=("Parse with mode FAILFAST, or send rows with nulls in all columns to a dead-letter output.",),
        sources=("Spark documentation: from_json, option mode",),
    )
    rule: ClassVar[ClaimRule] = FORBIDDEN
    comes_with: ClassVar[Mapping[str, str]] = {
        "wrong-value": "a blank row is not the expected one",
        "diverged-replay": "another attempt wrote the whole row",
        "torn-batch": "the rest of its batch is right",
        "sink-disagreement": "another output has the whole row",
        "commit-ahead-of-effect": "progress was recorded, and the right row never came",
    }
    damages: ClassVar[tuple[Damage, ...]] = (Damage(blanked, "rows without any value", only=APPENDS),)

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        for output, expectation in case.expectations.items():
            others = expectation.columns.keys() - case.scenario.outputs[output].identity
            if not others:
                yield Gap(output, "it has no columns besides its identity")
                continue
            query = _BLANK.format(blank=" AND ".join(f"(content->>{member(name)}) IS NULL" for name in sorted(others)))
            values = {"output": output}
            total = case.number(f"SELECT count(*) FROM ({query})", values)
            if total:
                yield Finding(
                    "blank-row",
                    output,
                    total,
                    f"{times(total, noun(case, output))} with nothing but an identity",
                    **shown_rows(case, f"{query} ORDER BY id LIMIT $limit", values, _argument, at=["place"]),
                )


def _argument(row: dict[str, Any]) -> str:
    return (
        f"The oracle expects values in the row with the identity {row['id']}.\nBut they are all null at {row['place']}."
    )
