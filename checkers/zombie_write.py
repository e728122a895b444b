"""``zombie-write``: a write of an older epoch landed after its successor's first commit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from onceproof.base.words import times
from onceproof.judge.anomalies import Explanation
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.findings import Finding, Witness
from onceproof.judge.relations import takeover
from onceproof.judge.witness import Row, by, cause_of, identity_of, noun, shown, sums

# What it left behind. Of an identity whose content is right in the end nothing stays; then it matters what stood there
# when the write landed.
_JUDGED = """
    CREATE OR REPLACE TEMP TABLE judged AS
    WITH before AS (
        SELECT z.rowid AS row, max_by(c.content, (c.pos, c."offset")) AS content
        FROM judge.zombies z JOIN judge.changes c ON c.output = z.output AND c.id = z.id AND c.lane = z.lane AND c.pos < z.pos
        WHERE c.visibility = 'committed' AND z.output IN (SELECT unnest($states))
        GROUP BY z.rowid)
    SELECT z.*, CASE WHEN t.wrong + t.unexplained > 0 THEN 'wrong' WHEN t.extra > 0 THEN 'duplicate'
                     WHEN b.content <> z.content THEN 'older state' WHEN b.content IS NOT NULL THEN 'rewrite'
                     ELSE 'late' END AS source
    FROM judge.zombies z LEFT JOIN judge.tally t ON t.output = z.output AND t.id = z.id LEFT JOIN before b ON b.row = z.rowid"""

_TOTALS = """
    SELECT output, source, CASE how WHEN 'plan' THEN 'by driver start ' WHEN 'epoch' THEN 'by epoch ' ELSE 'by producer epoch ' END
               || older || ' after ' || newer || ' had taken over' AS label,
           query || '/' || batch AS of_batch, count(*) AS total
    FROM judged GROUP BY ALL ORDER BY output, source, label, of_batch"""

_WITNESSES = """
    SELECT * FROM judged WHERE output = $output AND source = $source ORDER BY lane, pos, id LIMIT $limit"""

_LEFT = {
    "wrong": "wrong content that stays",
    "duplicate": "copies that stay",
    "older state": "an older state, for a while",
    "rewrite": "nothing that was not there already",
    "late": "the right content, late",
}


@checkers.register("zombie-write")
class ZombieWrite:
    """Counts writes of an older epoch that landed after its successor's first commit (`onceproof.judge.relations.takeover`).

    One finding for each thing that they leave behind: ``wrong`` (content that stays), ``duplicate`` (copies that stay);
    and, transient, ``older state`` (an identity went back for a while), ``rewrite`` (nothing changed) and ``late`` (the
    right effect, which only the older writer brought). See M. Kleppmann, *Designing Data-Intensive Applications*, chapter
    8, on fencing tokens.
    """

    meaning: ClassVar[str] = "a write of an older epoch landed after its successor's first commit"
    explanation: ClassVar[Explanation] = Explanation(
        example="Driver 1 pauses. Driver 2 takes over and writes batches 5 and 6. Driver 1 wakes and commits its batch 5.",
        causes=(
            "A process that was declared dead was only slow: garbage collection, a paused machine, a partition "
            "(stall of the driver, fence).",
            "The checkpoint does not fence the sink: an old driver learns that it was replaced only when it writes its next "
            "log entry, after the sink.",
            "A COMMIT or EndTxn was on its way while its sender was replaced (late-request).",
            "A check without a lock: both read the same progress, and both write.",
        ),
        decided="A write of an older epoch comes after one of a newer epoch: by the output's own epoch column, by the "
        "producer's epoch in Kafka's log, or by the plan, where a copy of batch N lands after an effect of a later batch "
        "that a later start of the driver planned. If its content stays it survived; if a later write put it right it is transient.",
        stops=(
            "Postgres: a fencing token that the sink checks, such as an epoch in the progress row, locked before anything is written.",
            "Kafka: a stable transactional.id, whose init_transactions bumps the epoch and fences every producer with the old one.",
        ),
        sources=(
            "KIP-98 and KIP-360: producer epochs",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 8: Fencing tokens",
            "SPARK-21145: two runs of one query on one state store",
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        takeover.create(case)
        for output in case.outputs:
            if (gap := takeover.of_output(case, output)) is not None:
                yield Gap(output, gap)
        if not case.number("SELECT count(*) FROM judge.zombies"):
            return
        case.compare()
        case.sql(_JUDGED, {"states": [name for name, spec in case.outputs.items() if spec.kind != "append"]})
        for (output, source), rows in by(case.rows(_TOTALS), "output", "source"):
            total = sum(row["total"] for row in rows)
            yield Finding(
                anomaly="zombie-write",
                output=output,
                total=total,
                summary=f"{times(total, 'write')} of an older epoch after its successor's first, which left {_LEFT[source]}",
                source=source,
                attribution=sums(rows, "label"),
                batches=sums(rows, "of_batch"),
                transient=source not in ("wrong", "duplicate"),
                **shown(partial(_witnesses, case, output, source)),
            )


def _witnesses(case: Case, output: str, source: str, limit: int | None) -> Iterator[Witness]:
    for rows in case.pages(_WITNESSES, {"output": output, "source": source, "limit": limit}):
        for row in rows:
            yield Witness(
                identity=identity_of(row),
                argument=_argument(row, noun(case, output)),
                cause=cause_of(row),
                batch=row["batch"],
                positions=(row["after"], row["place"]),
            )


def _argument(row: Row, what: str) -> str:
    if row["how"] == "plan":
        first = (
            f"Driver start {row['older']} planned batch {row['batch']} of query {row['query']}; start {row['newer']} took over, "
            f"and the first write of its own batches is at {row['after']}.\n"
            "A start that has finished a batch does not go back to it, so an older start wrote what follows.\n"
        )
    else:
        name = "producer epoch" if row["how"] == "producer" else "epoch"
        first = f"Epoch {row['newer']} took over: its first write is at {row['after']}, by its {name}.\n"
    of = f"this {what}" if row["offset"] is None else f"the {what} of {cause_of(row)}"
    by_epoch = "" if row["how"] == "plan" else f" was written by epoch {row['older']} and"
    return f"{first}But {of}{by_epoch} is at {row['place']}. It left {_LEFT[row['source']]}."
