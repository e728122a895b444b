"""``zombie-write``: a write of an older epoch landed after its successor's first commit.

One row of ``judge.zombies`` per write: ``output``, ``id``, ``content``, ``lane``, ``pos``, ``place``; ``how`` it is known (``epoch``, ``producer``
or ``plan``), ``older`` and ``newer`` (epochs, or starts of the driver), ``after`` (the place of the successor's first
write); its cause (``topic``, ``partition``, ``offset``), ``query`` and ``batch``, NULL where unknown.

- **epoch**: a column of the output holds its writer's epoch, and a row with a lower epoch comes after a row with a
  higher one (in one partition, or in a later commit);
- **producer**: the same by the ``producer_epoch`` that the Kafka log gives each record of a ``producer_id``. Brokers refuse
  such a write, so the broker is broken (or the log was made by hand);
- **plan**: an effect of a batch comes after the first effect of a batch that a later start of the driver planned and
  committed, or became visible after that batch was committed. A start never goes back to a batch that it has finished, so an
  earlier start wrote the effect. Only for outputs that are never rewritten: elsewhere an effect's position is that of its
  last write. A batch that an even later start committed is left out: that start may have written the effect.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from onceproof.base.words import times
from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import TRANSIENT, Allows, ClaimRule
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, Identity, Txn, World, WorldBatch, at
from onceproof.judge.witness import Row, by, cause_of, finding, noun, total_of
from onceproof.values.canonical import literal, member

_EMPTY = """
    CREATE TABLE judge.zombies (output VARCHAR, id VARCHAR, content VARCHAR, lane BIGINT, pos BIGINT, place VARCHAR,
        how VARCHAR, older BIGINT, newer BIGINT, after VARCHAR, topic VARCHAR, "partition" INTEGER, "offset" BIGINT,
        query VARCHAR, batch BIGINT)"""

_WRITES = """
    SELECT {scope} AS scope, coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos, "offset", {epoch} AS epoch
    FROM history.output WHERE output = {output} AND visibility = 'committed' AND op IN ('insert', 'update')"""

# First and last position of each epoch: only where two epochs overlap are the writes compared one by one.
_OUTDATED = f"""
    CREATE OR REPLACE TEMP TABLE outdated AS
    WITH writes AS ({_WRITES}),
    epochs AS (SELECT scope, lane, epoch, min(pos) AS lo, max(pos) AS hi FROM writes WHERE epoch IS NOT NULL GROUP BY ALL),
    crossed AS (
        SELECT o.scope, o.lane, o.epoch, min(n.lo) AS first, arg_min(n.epoch, n.lo) AS newer
        FROM epochs o JOIN epochs n ON n.scope = o.scope AND n.lane = o.lane AND n.epoch > o.epoch AND o.hi > n.lo
        GROUP BY ALL)
    SELECT w.lane, w.pos, w."offset", w.epoch AS older, c.newer, c.first
    FROM writes w JOIN crossed c ON c.scope = w.scope AND c.lane = w.lane AND c.epoch = w.epoch AND w.pos > c.first"""  # noqa: S608

_FROM_WRITES = """
    INSERT INTO judge.zombies
    WITH firsts AS (SELECT lane, pos, min(place) AS place FROM judge.changes WHERE output = {output} GROUP BY lane, pos)
    SELECT {output}, c.id, c.content, c.lane, c.pos, c.place, {how}, o.older, o.newer, f.place, x.cause.t, x.cause.p, x.cause.o,
           b.query, b.batch
    FROM outdated o
    JOIN judge.changes c ON c.output = {output} AND c.lane = o.lane AND c.pos = o.pos AND c."offset" = o."offset"
    JOIN firsts f ON f.lane = o.lane AND f.pos = o.first
    LEFT JOIN (SELECT id, content, min_by({{t: topic, p: "partition", o: "offset"}}, "offset") AS cause
               FROM judge.expected WHERE output = {output} GROUP BY id, content) x ON x.id = c.id AND x.content = c.content
    LEFT JOIN judge.output_batches b ON b.output = {output} AND b.topic = x.cause.t AND b."partition" = x.cause.p
        AND x.cause.o >= b.start_offset AND x.cause.o < b.end_offset
    ANTI JOIN judge.zombies z ON z.output = {output} AND z.lane = c.lane AND z.pos = c.pos AND z.id = c.id"""

# Per start of the driver: the position of the first effect of its own batches, and when the first of them was committed.
# ``held``: records of a batch that one start planned and another committed may have been written first and committed last, in a
# transaction that the first start kept open. (In all other batches the last effect was also committed last.)
_OVERTAKEN = """
    CREATE OR REPLACE TEMP TABLE overtaken AS
    WITH spans AS (
        SELECT query, batch, lane, min(pos) AS lo, max(pos) AS hi FROM judge.caused
        WHERE output = {output} AND batch IS NOT NULL GROUP BY ALL),
    owners AS (
        SELECT query, batch, min(planned_by) AS planned_by, max(committed_by) AS committed_by, max(committed_ms) AS committed_ms
        FROM judge.output_batches WHERE output = {output} GROUP BY ALL),
    starts AS (
        SELECT query, planned_by AS start, min(batch) AS batch, min(committed_ms) AS done_ms
        FROM owners WHERE planned_by = committed_by GROUP BY ALL),
    begun AS (
        SELECT s.query, o.planned_by AS start, s.lane, min(s.lo) AS first FROM spans s JOIN owners o USING (query, batch)
        WHERE o.planned_by = o.committed_by GROUP BY ALL),
    held AS (
        SELECT c.query, c.batch, c.lane, max(h.txn_end_ms) AS at_ms FROM judge.caused c JOIN owners o USING (query, batch)
        JOIN history.output h ON h.output = {output} AND h."partition" = c.lane AND h."offset" = c.pos
        WHERE c.output = {output} AND o.planned_by < o.committed_by GROUP BY ALL),
    tops AS (
        SELECT s.*, o.planned_by, o.committed_by,
               greatest(coalesce(h.txn_end_ms, h.timestamp_ms, k.commit_time_us // 1000), z.at_ms) AS at_ms
        FROM spans s JOIN owners o USING (query, batch) LEFT JOIN held z USING (query, batch, lane)
        LEFT JOIN history.output h ON h.output = {output} AND h."partition" = s.lane AND h."offset" = s.hi
        LEFT JOIN history.commits k ON s.lane = -1 AND k.commit_order = s.hi)
    SELECT t.query, t.batch, t.lane, t.planned_by, min(n.start) AS newer, min(g.first) FILTER (t.hi > g.first) AS first,
           min(n.done_ms) FILTER (t.at_ms > n.done_ms) AS done_ms, min(n.batch) AS later
    FROM tops t JOIN starts n ON n.query = t.query AND n.start > t.planned_by AND n.start >= t.committed_by
    LEFT JOIN begun g ON g.query = t.query AND g.start = n.start AND g.lane = t.lane
    WHERE t.hi > g.first OR t.at_ms > n.done_ms GROUP BY ALL"""

_FROM_PLAN = """
    INSERT INTO judge.zombies
    WITH late AS (
        SELECT c.*, o.planned_by, o.newer, o.first, o.later,
               coalesce(h.txn_end_ms, h.timestamp_ms, k.commit_time_us // 1000) AS at_ms, o.done_ms
        FROM judge.caused c JOIN overtaken o ON o.query = c.query AND o.batch = c.batch AND o.lane = c.lane
        LEFT JOIN history.output h ON h.output = c.output AND h."partition" = c.lane AND h."offset" = c.pos
        LEFT JOIN history.commits k ON c.lane = -1 AND k.commit_order = c.pos
        WHERE c.output = {output})
    SELECT {output}, e.id, e.content, l.lane, l.pos, e.place, 'plan', l.planned_by, l.newer,
           CASE WHEN l.pos > l.first THEN (SELECT min(place) FROM judge.effects f WHERE f.output = {output} AND f.lane = l.lane AND f.pos = l.first)
                ELSE 'commits/' || l.later END,
           l.topic, l."partition", l."offset", l.query, l.batch
    FROM late l JOIN judge.effects e ON e.output = {output} AND e.lane = l.lane AND e.pos = l.pos
        AND l.h IN (e.h, hash(e.h, e.digest_2))
    ANTI JOIN judge.zombies z ON z.output = {output} AND z.lane = l.lane AND z.pos = l.pos AND z.id = e.id
    WHERE l.pos > l.first OR l.at_ms > l.done_ms"""

# What each write left behind. If the identity's content is right in the end, nothing stays, and the content before the write
# decides.
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
    "rewrite": "the same content as before",
    "late": "the right content, late",
}


def older_start_writes_on(world: World, choose: Choices) -> Named:
    """An older start repeats its batch long after another start took over and committed a batch of its own."""
    output = choose.one(world.outputs)
    own = [(n, b.planned_by) for n, b in enumerate(world.batches) if b.planned_by == b.committed_by]
    active = {txn.batch for txn in world.committed(output)}
    outdated = [
        txn
        for txn in world.committed(output)
        if any(_took_over(start, world.batches[txn.batch]) for n, start in own if n in active)
    ]
    named: Counter[Identity] = Counter()
    for txn in choose.some(outdated):
        named.update(write.identity for write in txn.writes)
        start = world.batches[txn.batch].planned_by
        world.txns.append(Txn(output, txn.batch, start, at(900, txn.batch), deepcopy(txn.writes)))
    return {("zombie-write", output): named, ("duplicate", output): named}


def _took_over(start: int, batch: WorldBatch) -> bool:
    return batch.committed_by is not None and start > batch.planned_by and start >= batch.committed_by


@checkers.register("zombie-write")
class ZombieWrite(Checker):
    """Counts writes of an older epoch that landed after its successor's first commit (``judge.zombies``).

    There is one finding per source, which is what the writes left behind: ``wrong`` (wrong content that stays), ``duplicate``
    (copies that stay); and, transient, ``older state`` (an identity went back for a while), ``rewrite`` (nothing changed) and
    ``late`` (the right effect, which only the older writer wrote). See M. Kleppmann, *Designing Data-Intensive Applications*,
    chapter 8, on fencing tokens.
    """

    meaning = "a write of an older epoch landed after its successor's first commit"
    explanation = Explanation(
        example="Driver 1 pauses. Driver 2 takes over and writes batches 5 and 6. Driver 1 wakes and commits its batch 5.",
        causes=(
            "A process that was declared dead is only slow: garbage collection, a paused machine, a partition "
            "(stall of the driver, fence).",
            "The checkpoint does not fence the sink: an old driver notices that it was replaced only when it writes its next "
            "log entry, after it has written to the sink.",
            "A COMMIT or EndTxn is on its way while its sender is replaced (late-request).",
            "A check without a lock: two drivers read the same progress, and both write.",
        ),
        decided="A write of an older epoch comes after one of a newer epoch: by the output's own epoch column, by the "
        "producer's epoch in Kafka's log, or by the plan, where a copy of batch N lands after a row of a later "
        "batch that a later start of the driver planned. If its content stays, it survived; if a later write "
        "corrected it, it is transient.",
        stops=(
            "Postgres: a fencing token that the sink checks, such as an epoch in the progress row, locked before anything is written.",
            "Kafka: a stable transactional.id, whose init_transactions bumps the epoch and fences every producer with the old one.",
            "Webhook: send a fencing token with each request, and a receiver that refuses one older than it has seen.",
        ),
        sources=(
            "KIP-98 and KIP-360: producer epochs",
            "M. Kleppmann, Designing Data-Intensive Applications, chapter 8: Fencing tokens",
            "SPARK-21145: two runs of one query on one state store",
        ),
    )
    rule = ClaimRule(
        allows=(
            Allows(
                claim={"delivery": "at-least-once"},
                what="a finding that leaves only copies",
                why="at-least-once allows what it left behind: copies of right rows, whose cause is known",
                when=lambda finding: finding.source == "duplicate",
            ),
            replace(
                TRANSIENT,
                what="a finding that is gone at the quiet point and set no identity back",
                when=lambda finding: finding.transient and finding.source != "older state",
            ),
            replace(TRANSIENT, claim={"order": "none"}, what="a finding that set an identity back for a while"),
        ),
        counted_as="Content that stays is counted as a duplicate, a wrong-value or unexplained.",
    )
    comes_with = {
        "duplicate": "the older start's write is there in addition to its successor's",
        "sink-disagreement": "another output holds fewer copies for the same input",
        "wrong-value": "the older start's write is there instead of its successor's",
        "torn-batch": "both starts wrote the batch",
        "commit-ahead-of-effect": "it came after progress was recorded",
        "reordered": "it comes after rows of later input",
        "diverged-replay": "the two starts wrote different content",
    }
    damages = (
        Damage(
            older_start_writes_on,
            "the start that planned a batch writes it again after another start took over",
            only=(*APPENDS, "log", "journal"),
            restarted=True,
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        _create(case)
        for output in case.outputs:
            if (gap := _of_output(case, output)) is not None:
                yield Gap(output, gap)
        if not case.number("SELECT count(*) FROM judge.zombies"):
            return
        case.compare()
        case.changes()
        case.sql(_JUDGED, {"states": [name for name, spec in case.outputs.items() if spec.kind != "append"]})
        for rows in by(case.rows(_TOTALS), "output", "source"):
            writes, left = times(total_of(rows), "write"), _LEFT[rows[0]["source"]]
            yield finding(
                case,
                "zombie-write",
                rows,
                f"{writes} of an older epoch after its successor's first write; left behind: {left}",
                _WITNESSES,
                _argument,
                at=["after", "place"],
                transient=rows[0]["source"] not in ("wrong", "duplicate"),
            )


def _create(case: Case) -> None:
    """Make an empty table, which `_of_output` fills."""
    case.caused()
    case.sql(_EMPTY)


def _of_output(case: Case, output: str) -> str | None:
    """Add the zombie writes of one output. Returns why some of them cannot be found, or None."""
    spec = case.scenario.outputs[output]
    if spec.has_rows and output in case.no_stream:
        return case.no_stream[output] if spec.epoch is not None or _taken_over(case) else None
    gap = None
    if spec.epoch is not None:
        text = f"CASE WHEN json_valid(content) THEN content->>{member(spec.epoch)} END"
        _by_epoch(case, output, "epoch", scope="0", epoch=f"TRY_CAST({text} AS BIGINT)")
        unread = f"""SELECT count(*) FROM history.output WHERE output = $output AND visibility = 'committed'
            AND op IN ('insert', 'update') AND content IS NOT NULL AND TRY_CAST({text} AS BIGINT) IS NULL"""  # noqa: S608
        if count := case.number(unread, {"output": output}):
            gap = f"{times(count, 'write')} without a whole number in the epoch column {spec.epoch!r}"
    produced = "SELECT count(DISTINCT producer_epoch) FROM history.output WHERE output = $output"
    if spec.topic is not None and case.number(produced, {"output": output}) > 1:
        _by_epoch(case, output, "producer", scope="producer_id", epoch="producer_epoch")
    if spec.kind != "upsert" and _taken_over(case) and not sources.rewritten(case, output):
        case.sql(_OVERTAKEN.format(output=literal(output)))
        if case.number("SELECT count(*) FROM overtaken"):
            case.all_rows()
            case.sql(_FROM_PLAN.format(output=literal(output)))
    return gap


def _taken_over(case: Case) -> bool:
    starts = "SELECT count(DISTINCT planned_by) FROM history.batches"
    return case.memo(("starts",), lambda: case.number(starts)) > 1


def _by_epoch(case: Case, output: str, how: str, *, scope: str, epoch: str) -> None:
    case.sql(_OUTDATED.format(output=literal(output), scope=scope, epoch=epoch))
    if case.number("SELECT count(*) FROM outdated"):
        case.all_rows()
        case.changes()
        case.sql(_FROM_WRITES.format(output=literal(output), how=literal(how)))


def _argument(case: Case, row: Row) -> str:
    what = noun(case, row["output"])
    if row["how"] == "plan":
        first = (
            f"Driver start {row['older']} planned batch {row['batch']} of query {row['query']}; start {row['newer']} took over, "
            f"and the first write of its own batches is at {row['after']}.\n"
            "A start does not go back to a batch that it has finished, so an older start made the following write.\n"
        )
    else:
        name = "producer epoch" if row["how"] == "producer" else "epoch"
        first = f"Epoch {row['newer']} took over: its first write is at {row['after']}, by its {name}.\n"
    of = f"this {what}" if row["offset"] is None else f"the {what} of {cause_of(row)}"
    by_epoch = "" if row["how"] == "plan" else f" was written by epoch {row['older']} and"
    return f"{first}But {of}{by_epoch} is at {row['place']}. It left {_LEFT[row['source']]}."
