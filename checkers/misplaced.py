"""``misplaced``: the right content in the wrong topic, partition or row."""

from __future__ import annotations

from collections import Counter
from typing import Any

from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Results, checkers
from onceproof.judge.claim_rule import FORBIDDEN
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Txn, World, WorldWrite, identity
from onceproof.judge.witness import Row, by, counted, finding, input_of, noun, sums

_TOTALS = """
    SELECT output, CASE how WHEN 'topic' THEN 'in ' || found_output WHEN 'row' THEN 'in another row'
                            ELSE 'in another partition' END AS label,
           query || '/' || batch AS of_batch, count(*) AS total
    FROM judge.misplaced GROUP BY ALL ORDER BY output, label, of_batch"""

_WITNESSES = """
    SELECT * FROM judge.misplaced WHERE output = $output
    ORDER BY how, topic, "partition", "offset", id, place LIMIT $limit"""


def in_the_other_topic(world: World, choose: Choices) -> Named:
    choose.need(len(world.outputs) == 2)
    output = choose.one(world.outputs)
    (other,) = set(world.outputs) - {output}
    sites = choose.some(world.visible(output))
    for txn, write in sites:
        world.drop(write)
        world.txns.append(Txn(other, txn.batch, txn.start, txn.at_ms, [write]))
    return {("misplaced", output): Counter(write.identity for _, write in sites)}


def in_another_partition(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = choose.some(world.visible(output))
    for _, write in sites:
        write.partition += 5
    return {("misplaced", output): Counter(write.identity for _, write in sites)}


def away_from_its_key(world: World, choose: Choices) -> Named:
    """Move one record of a key that has at least two others."""
    by_key: dict[str, list[WorldWrite]] = {}
    for _, write in world.visible("log"):
        by_key.setdefault(write.key, []).append(write)
    keys = choose.some(sorted(key for key, writes in by_key.items() if len(writes) > 2))
    for key in keys:
        choose.one(by_key[key]).partition += 5
    return {("misplaced", "log"): Counter(identity(k=key) for key in keys)}


def in_another_row(world: World, choose: Choices) -> Named:
    output = choose.one(world.outputs)
    sites = [write.identity for _, write in choose.some(world.last_of_each(output))]
    for txn in world.committed(output):
        for write in txn.writes:
            if write.identity in sites:
                column, value = write.identity[-1]
                assert write.values is not None
                odd: Any = int(value) + 20_000 if column == "o" else f"ghost-{value}"
                write.values = {**write.values, column: odd}
                write.identity = (*write.identity[:-1], (column, str(odd)))
                write.key = str(odd) if column == "k" else write.key
    return {("misplaced", output): Counter(sites)}


@checkers.register("misplaced")
class Misplaced(Checker):
    """Counts right effects in the wrong place; `onceproof.judge.relations.misplacement` defines them.

    The finding names the output where the effect belongs. The effect is then neither a ``lost-write`` there nor ``unexplained``
    where it is. The partition is judged only where the oracle gives ``_to_partition`` or the output declares
    ``placement: key``.
    """

    meaning = "the right content in the wrong topic, partition or row"
    explanation = Explanation(
        example="Every order arrived exactly once, but those of customer 7 are in two partitions, and their consumer reads "
        "half of them.",
        causes=(
            "The output has another key than its reader expects, or a key only sometimes: a record without a key goes to any "
            "partition.",
            "The number of partitions was changed while the job ran: from then on a key hashes to another partition.",
            "A client sends a record to the wrong topic: KAFKA-19012, in Java producers under disconnects.",
            "A join on the wrong key writes the right values into another row.",
        ),
        decided="Shown by position or content: the row or record that one output lacks is in another output, where no input explains "
        "it; a record is in another partition than the oracle's _to_partition, or not with the other records of its key "
        "(placement: key); or a row under an unknown identity has the content of one missing row, and of no other expected "
        "row. One short value in common is not evidence: two columns must agree, or one with 16 characters or more. Only "
        "matches that are unique in both directions count. What is misplaced is neither a lost-write nor unexplained.",
        stops=(
            "Use the same key and partitioner for records that must stay together, and do not change the number of partitions.",
            "Use clients in which KAFKA-19012 is fixed, and check in the reader that a record belongs to its topic.",
        ),
        sources=("KAFKA-19012: messages ending up on the wrong topic", "Kafka documentation: partitioning by key"),
    )
    rule = FORBIDDEN
    comes_with = {
        "torn-batch": "the rest of its batch is where it should be",
        "sink-disagreement": "another output has it in the right place for the same input",
        "commit-ahead-of-effect": "progress was recorded, and the row or record never reached its place",
        "reordered": "in the wrong partition it comes after later records of its scope",
        "wrong-value": "an upsert shows an older state instead of the last one",
        "diverged-replay": "another attempt wrote it to the right place",
    }
    damages = (
        Damage(in_the_other_topic, "in the other topic", only=("even", "odd"), outputs=2),
        Damage(in_another_partition, "in another partition than the oracle expects", only=("events", "even", "odd")),
        Damage(away_from_its_key, "in another partition than the rest of its key", only=("log",), crowded=True),
        Damage(in_another_row, "under another identity", only=(*APPENDS, "totals", "sums", "latest")),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        if not case.number("SELECT count(*) FROM judge.misplaced"):
            return
        for rows in by(case.rows(_TOTALS), "output"):
            summary = f"{counted(case, rows)} in the wrong place ({', '.join(sums(rows, 'label'))})"
            yield finding(case, "misplaced", rows, summary, _WITNESSES, _argument, at=["place"])


def _argument(case: Case, row: Row) -> str:
    if row["how"] == "partition":
        by_key = case.scenario.outputs[row["output"]].placement == "key"
        why = "the other records of its key are" if by_key else "the oracle expects its record"
        return f"{input_of(row)} is committed; {why} in partition {row['due']}.\nBut its record is at {row['place']}."
    premise = f"{input_of(row)} is committed; its {noun(case, row['output'])} belongs in {row['output']!r} and is missing there."
    if row["how"] == "topic":
        return (
            f"{premise}\nBut the same content under the same identity is at {row['place']}, where no input explains it."
        )
    return (
        f"{premise}\nBut its content is at {row['place']}, under identity {row['found_id']}, which no input explains."
    )
