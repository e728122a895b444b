"""``diverged-replay``: the same batch, run again, wrote other content."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy

from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import TRANSIENT, ClaimRule
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Identity, Txn, World, at
from onceproof.judge.witness import Row, by, counted, finding, named_values

_CREATE = """
    CREATE OR REPLACE TEMP TABLE diverged (output VARCHAR, query VARCHAR, batch BIGINT, id VARCHAR, content VARCHAR,
        place VARCHAR, again VARCHAR, again_place VARCHAR)"""

# Replayed batches, the time in which their writes became visible, and the last fault that fired meanwhile: the driver was
# restarted because of it, so all writes of the replay come after it.
_REPLAYED = """
    CREATE OR REPLACE TEMP TABLE replayed AS
    SELECT b.output, b.query, b.batch, min(b.planned_ms) AS from_ms, coalesce(max(b.committed_ms), 9223372036854775807) AS to_ms,
           (SELECT max((1000 * ($began::DOUBLE + f.fired_at))::BIGINT) FROM history.faults f
            WHERE f.fired_at BETWEEN min(b.planned_at) AND coalesce(max(b.committed_at), 'infinity'::DOUBLE)) AS fault_ms
    FROM judge.output_batches b WHERE b.replayed GROUP BY b.output, b.query, b.batch"""

# The writes of identities whose cause is in a replayed batch. If the output was never rewritten, a diverged write is still
# there and counts as wrong, so only identities with wrong content are read.
_BY_CAUSE = """
    CREATE OR REPLACE TEMP TABLE writes AS
    WITH suspects AS (
        SELECT DISTINCT e.id, b.query, b.batch
        FROM judge.expected e JOIN judge.output_batches b ON b.output = e.output AND b.replayed AND b.topic = e.topic
             AND b."partition" = e."partition" AND e."offset" >= b.start_offset AND e."offset" < b.end_offset
        WHERE e.output = $output AND ($all OR e.id IN (SELECT id FROM judge.tally WHERE output = $output AND wrong > 0)))
    SELECT s.query, s.batch, c.id, c.content, c.place, c.pos, c.lane, dense_rank() OVER (ORDER BY c.pos, c.lane) AS attempt
    FROM judge.changes c JOIN suspects s USING (id)
    WHERE c.output = $output AND c.visibility = 'committed' AND c.op IN ('insert', 'update')"""

# The writes that became visible while a replayed batch ran. The attempt that wrote them follows from the time of the fault, or
# else from the producer (each start has its own) or the commit.
_BY_TIME = """
    CREATE OR REPLACE TEMP TABLE writes AS
    SELECT r.query, r.batch, c.id, c.content, c.place, c.pos, c.lane,
           CASE WHEN r.fault_ms IS NOT NULL THEN (c.at_ms > r.fault_ms)::BIGINT::VARCHAR
                ELSE coalesce(h.producer_id || ':' || h.producer_epoch, c.xid::VARCHAR, '') END AS attempt
    FROM judge.changes c JOIN replayed r ON r.output = $output AND c.at_ms BETWEEN r.from_ms AND r.to_ms
    LEFT JOIN history.output h ON c."partition" IS NOT NULL AND h.output = c.output
         AND h."partition" = c."partition" AND h."offset" = c."offset"
    WHERE c.output = $output AND c.visibility = 'committed' AND c.op IN ('insert', 'update')"""

# Writes of earlier attempts that the last attempt did not repeat. An attempt that was cut short wrote less, but a
# replay that did not diverge repeats every earlier write. For an append, at least one of the two contents must differ
# from the expected one.
_DIVERGED = """
    INSERT INTO diverged
    WITH contested AS (
        SELECT query, batch, id, max_by(attempt, (pos, lane)) AS last FROM writes
        GROUP BY query, batch, id HAVING min(content) < max(content) AND min(attempt) < max(attempt)),
    other AS (
        SELECT w.*, c.last FROM writes w JOIN contested c USING (query, batch, id)
        WHERE w.attempt <> c.last AND NOT EXISTS (
            FROM writes l WHERE l.query = w.query AND l.batch = w.batch AND l.id = w.id AND l.attempt = c.last AND l.content = w.content))
    SELECT $output, o.query, o.batch, o.id, min_by(o.content, (o.pos, o.lane)), min_by(o.place, (o.pos, o.lane)),
           max_by(l.content, (l.pos, l.lane)), max_by(l.place, (l.pos, l.lane))
    FROM other o JOIN writes l ON l.query = o.query AND l.batch = o.batch AND l.id = o.id AND l.attempt = o.last
    WHERE $upsert
       OR NOT EXISTS (FROM judge.expected e WHERE e.output = $output AND e.id = o.id AND e.content = o.content)
       OR NOT EXISTS (FROM judge.expected e WHERE e.output = $output AND e.id = l.id AND e.content = l.content)
    GROUP BY o.query, o.batch, o.id"""

_DIVERGED_WITH_END = """SELECT d.*, EXISTS (FROM judge.tally t WHERE t.output = d.output AND t.id = d.id
                                   AND t.wrong + t.extra + t.unexplained > 0) AS survives FROM diverged d"""

_TOTALS = f"""
    SELECT output, survives, query || '/' || batch AS of_batch, 'from the replay of batch ' || batch || ' (query ' || query || ')' AS label,
           count(*) AS total
    FROM ({_DIVERGED_WITH_END}) GROUP BY ALL ORDER BY output, survives DESC, of_batch"""  # noqa: S608

_WITNESSES = f"""
    SELECT s.*, b.planned_by, b.committed_by FROM ({_DIVERGED_WITH_END}) s
    LEFT JOIN (SELECT DISTINCT query, batch, planned_by, committed_by FROM judge.batches) b USING (query, batch)
    WHERE output = $output AND survives = $survives ORDER BY s.query, s.batch, id LIMIT $limit"""  # noqa: S608


def first_attempt_wrote_otherwise(world: World, choose: Choices) -> Named:
    """The first attempt at a batch writes wrong content. An append keeps both contents, an upsert the right one."""
    output = choose.one(world.outputs)
    named: Counter[Identity] = Counter()
    for txn in choose.some([t for t in world.committed(output) if t.batch in world.replayed()]):
        second = world.batches[txn.batch].committed_by
        assert second is not None
        txn.start, txn.at_ms = second, at(txn.batch, 6)
        writes = deepcopy(txn.writes)
        for write in writes:
            write.falsify()
        world.before(txn, Txn(output, txn.batch, world.batches[txn.batch].planned_by, at(txn.batch, 3), writes))
        named.update({write.identity for write in writes})
    return {("diverged-replay", output): named}


@checkers.register("diverged-replay")
class DivergedReplay(Checker):
    """Counts identities for which a batch ran twice and wrote two different contents, both of them visible.

    The job is not deterministic (a clock, a random number, a table that changes), or it adds to the rows it finds. The
    finding survives if the identity's effects are not right in the end; otherwise it is transient: the wrong content
    was visible for a while.

    A write belongs to a replayed batch by its cause, where the output is an append and the oracle names causes;
    otherwise by time: it became visible between the batch's two log entries (all clocks are on one host). By time, the
    fault that fired in between separates the first attempt from the replay, or else the Kafka producer or the Postgres
    commit does. Only a write that the replay did not repeat counts, since an attempt may have been cut short. Aborted
    writes were never visible and do not count. Not evaluated for a changelog, where one batch may write several states
    of an identity, nor for an output without the times or decoded commits that this needs. What survives there is still
    reported as a ``wrong-value``.
    """

    meaning = "the same batch or record, replayed, was written with other content"
    explanation = Explanation(
        example="Batch 7 wrote order 12 with price 10. After the crash batch 7 ran again and wrote order 12 with price 12.",
        causes=(
            "The row holds a value that differs per execution: rand(), uuid(), the wall clock (crash at after-sink-commit).",
            "The batch looks up rows in a table that changed in between: the join depends on when it ran.",
            "The replay has other boundaries: offsets/N was lost, or progress is written asynchronously, so the same batch id "
            "covers other records (crash at before-offset-log, a damaged checkpoint).",
        ),
        decided="Two writes of one identity by the same replayed batch have different contents. If the last one is right, "
        "the other was visible only for a while (transient). Needs every write of the output with its time: Kafka's log, or "
        "Postgres' decoded commits. Not evaluated for a changelog, where one batch may write several states of an identity.",
        stops=(
            "Compute rows from the record alone: join versioned data, use event time, derive ids from the offset.",
            "A sink that recognises a batch by its offset ranges and does not write it a second time.",
        ),
        sources=(
            "SPARK-28650: the same batch may give other data on failure",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 11: Time-dependence of joins",
        ),
    )
    rule = ClaimRule(
        allows=(TRANSIENT,),
        counted_as="Other content that stays is counted as a wrong-value, or as a duplicate where both contents are expected.",
    )
    comes_with = {
        "wrong-value": "the other content stayed",
        "duplicate": "both contents were expected of the identity, and one of them is there twice",
        "sink-disagreement": "one of the contents is there twice, and another output holds fewer copies",
        "torn-batch": "both attempts at the batch were committed",
        "zombie-write": "the older attempt landed last",
    }
    damages = (
        Damage(
            first_attempt_wrote_otherwise,
            "the first attempt at a batch wrote other content than the second",
            only=(*APPENDS, "totals", "sums", "latest"),
            restarted=True,
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        replayed = case.sql("SELECT DISTINCT output FROM judge.output_batches WHERE replayed").fetchall()
        outputs = {output for (output,) in replayed}
        if not outputs.intersection(case.outputs):
            return
        case.compare()
        case.sql(_CREATE)
        for output in case.outputs:
            if output in outputs and (gap := _collect(case, output)) is not None:
                yield Gap(output, gap)
        if not case.number("SELECT count(*) FROM diverged"):
            return
        for rows in by(case.rows(_TOTALS), "output", "survives"):
            transient = not rows[0]["survives"]
            end = "; the content is right at the end" if transient else ""
            summary = f"{counted(case, rows)} that a replayed batch wrote with other content than before{end}"
            at = ["place", "again_place"]
            yield finding(case, "diverged-replay", rows, summary, _WITNESSES, _argument, at=at, transient=transient)


def _find_replayed(case: Case) -> None:
    case.sql(_REPLAYED, {"began": case.run.wall_start})


def _collect(case: Case, output: str) -> str | None:
    """Add the diverged writes of one output. Returns why they cannot be found, or None."""
    spec = case.scenario.outputs[output]
    if spec.kind == "changelog":
        return "a batch was replayed, and in a changelog one batch may write several states of an identity"
    if output in case.no_stream:
        return case.no_stream[output]
    upsert = spec.kind == "upsert"
    if case.expectations[output].has_cause and not upsert:
        every = sources.rewritten(case, output)
        if every:
            case.all_rows()
        elif not case.differs:
            return None
        case.changes()
        case.sql(_BY_CAUSE, {"output": output, "all": every})
    else:
        case.all_rows()
        case.once("replayed", lambda: _find_replayed(case))
        timed = """SELECT count(*) FROM replayed WHERE output = $output AND from_ms IS NULL"""
        if case.number(timed, {"output": output}):
            return "a batch was replayed, and the history does not record at which wall-clock time it ran"
        case.changes()
        case.sql(_BY_TIME, {"output": output})
    case.sql(_DIVERGED, {"output": output, "upsert": upsert})
    return None


def _argument(_case: Case, row: Row) -> str:
    first, again = json.loads(row["content"]), json.loads(row["again"])
    names = [name for name in first if first[name] != again[name]]
    end = "never committed" if row["committed_by"] is None else f"committed by start {row['committed_by']}"
    return (
        f"Batch {row['batch']} of query {row['query']} was planned by driver start {row['planned_by']} and {end}.\n"
        f"It wrote {named_values(names, first)} at {row['place']}.\n"
        f"But its replay wrote {named_values(names, again)} for the same identity, at {row['again_place']}."
    )
