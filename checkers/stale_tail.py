"""``stale-tail``: effects are missing beyond recorded progress, and nothing moves any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from onceproof.base.words import are, times
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, checkers
from onceproof.judge.claim_rule import Allows, ClaimRule
from onceproof.judge.findings import Finding, Witness
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import CAUSED, MODELS, World
from onceproof.judge.witness import Row, by, cause_of, identity_of, input_of, noun, shown, sums

_TAIL = """judge.lost m LEFT JOIN judge.progress p ON p.output = m.output AND p.topic = m.topic AND p."partition" = m."partition"
    WHERE NOT m.covered AND NOT m.hidden AND m."offset" IS NOT NULL"""

_TOTALS = f"""
    SELECT m.output, CASE WHEN p.end_offset > 0 THEN 'beyond offset ' || p.end_offset || ' of ' ELSE 'from ' END || m.topic || '/' || m."partition" AS label,
           m.query || '/' || m.batch AS of_batch, count(*) AS total
    FROM {_TAIL} GROUP BY ALL ORDER BY output, label, of_batch"""  # noqa: S608

_WITNESSES = f"""
    SELECT m.*, p.end_offset FROM {_TAIL} AND m.output = $output
    ORDER BY m.topic, m."partition", m."offset", m.id LIMIT $limit"""  # noqa: S608


def stopped_in_a_batch(world: World, choose: Choices) -> Named:
    """Nothing from some batch on was done, in any output, and the job moves no more."""
    stop = choose.number(0, len(world.batches) - 1)
    due = {output: world.last_of_each(output) for output in world.outputs}
    every = {output: world.visible(output) for output in world.outputs}
    world.txns = [txn for txn in world.txns if txn.batch < stop]
    last = world.batches[stop]
    world.batches = [*world.batches[:stop], replace(last, committed_by=None)]
    world.progress = {partition: start for partition, (start, _) in last.ranges.items()}
    world.document = {"drained": False, "drain_note": "no progress for 60 s", "stuck": True}
    named: Named = {}
    for output in world.outputs:
        if MODELS[output].kind == "append":
            gone = Counter(w.identity for t, w in every[output] if t.batch >= stop)
        elif MODELS[output].kind == "changelog":
            gone = Counter(w.identity for t, w in due[output] if t.batch >= stop)
        else:  # an identity with an earlier state keeps that one
            kept = {w.identity for _, w in world.visible(output)}
            gone = Counter(w.identity for _, w in due[output] if w.identity not in kept)
        if gone:
            named["stale-tail", output] = gone
    choose.need(named)
    return named


@checkers.register("stale-tail")
class StaleTail(Checker):
    """Counts expected effects beyond the recorded progress of a run that did not drain.

    A run that drained has no tail. One that was still making progress when its time ran out is slow, not stuck, and nobody
    waited for a history that was imported as not drained: both are not evaluated. What progress covers is a ``lost-write``,
    what is in an open transaction a ``hanging-transaction``, what is in another place ``misplaced``.
    """

    meaning: ClassVar[str] = (
        "effects are missing beyond recorded progress: healed and restarted, the job makes no more progress"
    )
    explanation: ClassVar[Explanation] = Explanation(
        example="Since 14:03 nothing new arrives in the table. Kafka, Postgres and the driver are up, and no alarm rings.",
        causes=(
            "Every restart runs into the same error: a poison record, a checkpoint that no longer fits, a lock that "
            "nobody releases (reject that outlasts all retries; stall of a client that holds the progress row).",
            "A transaction that was left open holds back the last stable offset of the input: a read_committed source "
            "sees nothing after it.",
            "A client waits without a deadline: librdkafka's send_offsets_to_transaction can hang when the group "
            "coordinator dies.",
        ),
        decided="All faults are healed, the job was restarted once more after a stretch of silence, and its progress still "
        "did not reach the known end of the input; the expected effects beyond recorded progress are missing. A job that "
        "was still moving when time ran out is slow and not stuck: not evaluated. Nor is a history that was imported as not "
        "drained: what is missing may still come.",
        stops=(
            "Deadlines on every call that can wait, shorter than the job's supervisor waits before it intervenes.",
            "A dead-letter topic for records that can never be processed.",
            "Kafka: a stable transactional.id for each slot, so that the successor ends what its predecessor left open.",
        ),
        sources=(
            "Jepsen's Kafka workload (jepsen.tests.kafka): unseen",
            "Spark, Structured Streaming guide: Recovering from failures with checkpointing",
            "B. Alpern, F. Schneider, Defining Liveness (1985)",
        ),
    )
    rule: ClassVar[ClaimRule] = ClaimRule(
        allows=(Allows({"liveness": "none"}, "all of it", "no recovery is claimed"),),
    )
    comes_with: ClassVar[Mapping[str, str]] = {
        "wrong-value": "an upsert shows the state that recorded progress has reached, and not the last one",
        "sink-disagreement": "another output got further",
        "torn-batch": "the last batch was under way",
    }
    damages: ClassVar[tuple[Damage, ...]] = (
        Damage(
            stopped_in_a_batch, "from some batch on nothing was done, and the job makes no more progress", only=CAUSED
        ),
    )

    def check(self, case: Case) -> Iterator[Finding | Gap]:
        if case.drained:
            return
        misplacement.create(case)
        for (output,), rows in by(case.rows(_TOTALS), "output"):
            total = sum(row["total"] for row in rows)
            what = f"{times(total, noun(case, output))} missing beyond recorded progress"
            if case.run.imported:
                missing = f"{times(total, noun(case, output))} {are(total)} missing and may still come"
                yield Gap(output, f"the history was imported as not drained: {missing}")
                continue
            if case.run.stuck is False:
                in_state = "they may still be in the state of a query"
                moved = "the job still made progress when time ran out"
                yield Gap(output, f"{what}, but {in_state if case.open_watermarks('restarted') else moved}")
                continue
            labels = sums(rows, "label")
            yield Finding(
                anomaly="stale-tail",
                output=output,
                total=total,
                summary=f"{what}; the job made no more progress",
                attribution=labels,
                batches=sums(rows, "of_batch"),
                **shown(partial(_witnesses, case, output)),
            )


def _witnesses(case: Case, output: str, limit: int | None) -> Iterator[Witness]:
    for rows in case.pages(_WITNESSES, {"output": output, "limit": limit}):
        for row in rows:
            argument = _argument(case, row)
            yield Witness(identity=identity_of(row), argument=argument, cause=cause_of(row), batch=row["batch"])


def _argument(case: Case, row: Row) -> str:
    taken = "in no planned batch" if row["batch"] is None else f"in batch {row['batch']} of query {row['query']}"
    place = f"{row['topic']}/{row['partition']}"
    done = (
        f"Progress of {place} is recorded up to {row['end_offset']}"
        if row["end_offset"]
        else f"No progress of {place} is recorded"
    )
    note = case.run.drain_note or "the run did not drain"
    return f"{input_of(row)} is committed, {taken}.\n{done}.\nBut its {noun(case, row['output'])} is missing: {note}."
