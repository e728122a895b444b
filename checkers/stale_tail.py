"""``stale-tail``: expected rows or records are missing beyond recorded progress, and the job makes no more progress."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onceproof.base.words import are
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import Allows, ClaimRule
from onceproof.judge.relations import misplacement
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import CAUSED, MODELS, World
from onceproof.judge.witness import Row, by, counted, finding, input_of, noun, total_of

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
    """The job stops at some batch, for every output, and makes no more progress."""
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
        else:  # an identity that has an earlier state keeps it, so nothing is missing
            kept = {w.identity for _, w in world.visible(output)}
            gone = Counter(w.identity for _, w in due[output] if w.identity not in kept)
        if gone:
            named["stale-tail", output] = gone
    choose.need(named)
    return named


@checkers.register("stale-tail")
class StaleTail(Checker):
    """Counts expected effects beyond the recorded progress of a run that did not drain.

    A run that drained has no tail. Two cases are not evaluated: a run that still made progress when its time ran out is
    slow, not stuck; and the effects missing in a history that was imported as not drained may still come. Missing effects
    that progress covers are a ``lost-write``, those in an open transaction a ``hanging-transaction``, those in another
    place ``misplaced``.
    """

    meaning = (
        "expected rows or records are missing beyond recorded progress: faults are healed, the job is restarted, and it "
        "makes no more progress"
    )
    explanation = Explanation(
        example="Nothing new has arrived in the table since 14:03. Kafka, Postgres and the driver are up; there is no alarm.",
        causes=(
            "Every restart hits the same error: a poison record, a checkpoint that no longer fits, a lock that is "
            "never released (reject that outlasts all retries; stall of a client that holds the progress row).",
            "A transaction left open holds back the last stable offset of the input: a read_committed source "
            "reads nothing after it.",
            "A client waits without a deadline: librdkafka's send_offsets_to_transaction can hang when the group "
            "coordinator dies.",
            "A topic is given more partitions, and the job reads those that it had at its start (add-partitions).",
        ),
        decided="All faults were healed, the job was restarted once more after a period without progress, and its "
        "progress still did not reach the known end of the input; the expected rows beyond recorded progress are "
        "missing. Not evaluated for a job that still made progress when time ran out, which is slow and not stuck, "
        "nor for a history that was imported as not drained: the missing rows may still come.",
        stops=(
            "A deadline on every call that can block, shorter than the supervisor of the job waits before it intervenes.",
            "Kafka: a stable transactional.id for each slot, so that the successor ends the open transaction of its predecessor.",
        ),
        after={
            "poison": "A dead-letter table or topic for records that can never be processed.",
            "add-partitions": "Subscribe to the topic and let the group assign its partitions, instead of a list from the start.",
        },
        sources=(
            "Jepsen's Kafka workload (jepsen.tests.kafka): unseen",
            "Spark, Structured Streaming guide: Recovering from failures with checkpointing",
            "B. Alpern, F. Schneider, Defining Liveness (1985)",
        ),
    )
    rule = ClaimRule(
        allows=(Allows({"liveness": "none"}, "all of it", "no recovery is claimed"),),
    )
    comes_with = {
        "wrong-value": "an upsert shows the state at the recorded progress instead of the last one",
        "sink-disagreement": "another output got further",
        "torn-batch": "the last batch was in progress",
    }
    damages = (Damage(stopped_in_a_batch, "the job stops at some batch and makes no more progress", only=CAUSED),)

    by_digest = True

    def check(self, case: Case) -> Results:
        if case.drained:
            return
        misplacement.create(case)
        if not case.differs:
            return
        for rows in by(case.rows(_TOTALS), "output"):
            output, what = rows[0]["output"], f"{counted(case, rows)} missing beyond recorded progress"
            if case.run.imported:
                missing = f"{counted(case, rows)} {are(total_of(rows))} missing and may still come"
                yield Gap(output, f"the history was imported as not drained: {missing}")
                continue
            if case.run.stuck is False:
                in_state = "they may still be in the state of a query"
                moved = "the job still made progress when time ran out"
                yield Gap(output, f"{what}, but {in_state if case.open_watermarks('restarted') else moved}")
                continue
            yield finding(case, "stale-tail", rows, f"{what}; the job made no more progress", _WITNESSES, _argument)


def _argument(case: Case, row: Row) -> str:
    place = f"{row['topic']}/{row['partition']}"
    if case.scenario.outputs[row["output"]].query is None and len(case.queries) > 1:
        taken = ""
        recorded = f"progress up to {row['end_offset']}" if row["end_offset"] else "no progress"
        done = f"The query that is furthest behind in {place} has recorded {recorded}"
    else:
        taken = (
            ", in no planned batch" if row["batch"] is None else f", in batch {row['batch']} of query {row['query']}"
        )
        done = (
            f"Progress of {place} is recorded up to {row['end_offset']}"
            if row["end_offset"]
            else f"No progress of {place} is recorded"
        )
    note = case.run.drain_note or "the run did not drain"
    return f"{input_of(row)} is committed{taken}.\n{done}.\nBut its {noun(case, row['output'])} is missing: {note}."
