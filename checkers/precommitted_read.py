"""``precommitted-read``: a row or record is visible before the transaction of its input committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onceproof.judge.case.case import Case
from onceproof.judge.checker import Checker, Explanation, Gap, Results, checkers
from onceproof.judge.claim_rule import ClaimRule
from onceproof.judge.relations import misplacement, on_demand
from onceproof.judge.synthetic.damage import Choices, Damage, Named
from onceproof.judge.synthetic.world import APPENDS, MODELS, World, at, effect_of
from onceproof.judge.witness import Row, by, cause_of, counted, finding, identity_of, noun, sums
from onceproof.values import digest
from onceproof.values.canonical import literal

_CREATE = """
    CREATE OR REPLACE TEMP TABLE precommitted (output VARCHAR, rule VARCHAR, h UBIGINT, lane BIGINT, pos BIGINT, id VARCHAR,
        topic VARCHAR, "partition" INTEGER, "offset" BIGINT, query VARCHAR, batch BIGINT, ended BIGINT, at_ms BIGINT, n BIGINT)"""

# Effects of input whose transaction has not ended at all.
_OPEN = """
    INSERT INTO precommitted
    SELECT d.output, 'open', NULL, NULL, NULL, d.id, d.topic, d."partition", d."offset", b.query, b.batch, NULL, NULL, d.n
    FROM judge.dirty d LEFT JOIN judge.output_batches b ON b.output = d.output AND b.topic = d.topic
         AND b."partition" = d."partition" AND d."offset" >= b.start_offset AND d."offset" < b.end_offset
    WHERE d.kind = 'open'"""

_ENDED = """(SELECT topic, "partition", "offset", txn_end_ms FROM history.input
             WHERE visibility = 'committed' AND txn_end_ms IS NOT NULL)"""

# When each position of the output could first be read.
_TABLE_TIMES = "SELECT -1 AS lane, commit_order AS pos, commit_time_us // 1000 AS at_ms FROM history.commits"
_TOPIC_TIMES = """SELECT "partition" AS lane, "offset" AS pos, coalesce(txn_end_ms, timestamp_ms) AS at_ms
                  FROM history.output WHERE output = {output}"""

_BY_EFFECT = """
    INSERT INTO precommitted
    SELECT c.output, 'effect', c.h, c.lane, c.pos, NULL, c.topic, c."partition", c."offset", c.query, c.batch,
           i.txn_end_ms, v.at_ms, 1
    FROM judge.caused c JOIN ({times}) v ON v.lane = c.lane AND v.pos = c.pos
    JOIN {ended} i ON i.topic = c.topic AND i."partition" = c."partition" AND i."offset" = c."offset"
    WHERE c.output = {output} AND i.txn_end_ms > v.at_ms
      -- an upsert's state that differs from the one expected of its cause (an older state) has another cause
      AND ({any_content} OR c.h NOT IN (SELECT {digest} FROM judge.tally WHERE output = {output} AND wrong > 0))"""

_BY_BATCH = """
    INSERT INTO precommitted
    SELECT b.output, 'batch', NULL, NULL, NULL, NULL, i.topic, i."partition", i."offset", b.query, b.batch,
           i.txn_end_ms, b.committed_ms, 1
    FROM {ended} i ASOF JOIN (FROM judge.output_batches WHERE output = {output}) b
      ON b.topic = i.topic AND b."partition" = i."partition" AND i."offset" >= b.start_offset
    WHERE i."offset" < b.end_offset AND i.txn_end_ms > b.committed_ms"""

_TOTALS = """
    SELECT output, CASE rule WHEN 'open' THEN 'its transaction has not ended' WHEN 'effect' THEN 'visible before the marker'
                             ELSE 'batch committed before the marker' END AS label,
           query || '/' || batch AS of_batch, sum(n)::BIGINT AS total
    FROM precommitted GROUP BY ALL ORDER BY output, label, of_batch"""

# Adds the identity and place. An effect known by its position is joined by hash: that of a changelog's state includes
# its content.
_WITNESSES = """
    WITH chosen AS (
        SELECT *, row_number() OVER (ORDER BY rule, topic, "partition", "offset", id, pos) AS nth
        FROM precommitted WHERE output = $output ORDER BY nth LIMIT $limit)
    SELECT c.* EXCLUDE (id), coalesce(c.id, e.id) AS id, coalesce(e.place, o.place) AS place
    FROM chosen c
    LEFT JOIN judge.effects e ON e.output = c.output AND e.lane = c.lane AND e.pos = c.pos
        AND c.h IN (e.h, hash(e.h, e.digest_2))
    LEFT JOIN judge.effects o ON o.output = c.output AND o.id = c.id
    QUALIFY row_number() OVER (PARTITION BY c.nth ORDER BY o.pos, o.lane) = 1
    ORDER BY c.nth"""


def marker_came_late(world: World, choose: Choices) -> Named:
    ended = {(r.partition, r.end_offset) for r in world.records if r.end_offset and r.visibility == "committed"}
    late = choose.some(sorted(ended))
    world.records = [replace(r, end_ms=at(900, 0)) if (r.partition, r.end_offset) in late else r for r in world.records]
    named: Named = {}
    for output in world.outputs:
        of_output = [r for r in world.records if (r.partition, r.end_offset) in late and MODELS[output].takes(r)]
        if of_output:
            named["precommitted-read", output] = Counter(effect_of(r).identity for r in of_output)
    choose.need(named)
    return named


@checkers.register("precommitted-read")
class PrecommittedRead(Checker):
    """Counts effects that could be read before the transaction of their input ended, or although it never ended.

    The transaction ended at its marker's time. An effect became visible at the time of its Postgres commit, of the
    marker of its own Kafka transaction, or of the record. Where the oracle names no cause, or the output has no such
    times, the checker counts input records whose batch was committed before their marker was written. All clocks are on
    one host and have milliseconds, so only a strictly later marker counts. Jepsen's Kafka workload uses the same name.

    An effect that a transactional sink makes visible after the input's marker is not a precommitted read, however early the job
    read the input: nobody could see the effect before.
    """

    meaning = "a row or record is visible before the transaction of its input committed"
    explanation = Explanation(
        example="The alert went out at 12:00:01. The transaction that wrote its measurement committed at 12:00:05, and might "
        "have aborted.",
        causes=(
            "The source reads with read_uncommitted and is faster than the producer's commit: the output is right only by luck "
            "(a producer that keeps its transaction open).",
            "Data took another path (a cache, a call) and arrived before the log had committed it.",
        ),
        decided="The row or record could be read, or the batch that read its input was committed, strictly before the marker of the "
        "input's transaction was written, or although there is no marker. Both times are wall clocks, of the broker and of the "
        "writer: exact on one host, elsewhere as exact as the clocks agree. Needs the brokers' log files "
        "(markers); without them it is not evaluated where some input is, or may be, transactional.",
        stops=("kafka.isolation.level=read_committed as an option of the source.",),
        sources=(
            "Jepsen's Kafka workload (jepsen.tests.kafka): precommitted-read",
            "H. Berenson et al., A Critique of ANSI SQL Isolation Levels (1995): P1, dirty read",
        ),
    )
    rule = ClaimRule(
        counted_as="If the input was committed in the end, the output is right and nothing stays; if it was aborted, "
        "there is an aborted-read, which is found without clocks.",
    )
    comes_with = {
        "aborted-read": "of several uncommitted records, some were aborted in the end",
    }
    damages = (
        Damage(
            marker_came_late, "the transaction markers of some input came after the rows that it causes", only=APPENDS
        ),
    )

    by_digest = True

    def check(self, case: Case) -> Results:
        misplacement.create(case)
        case.sql(_CREATE)
        if case.differs and case.number("SELECT count(*) FROM judge.dirty WHERE kind = 'open'"):
            case.sql(_OPEN)
        yield from _by_time(case)
        if not case.number("SELECT count(*) FROM precommitted"):
            return
        on_demand.load(case, "SELECT output, h FROM precommitted WHERE h IS NOT NULL")
        for rows in by(case.rows(_TOTALS), "output"):
            how = ", ".join(sums(rows, "label"))
            summary = f"{counted(case, rows)} of input whose transaction had not committed: {how}"
            yield finding(
                case, "precommitted-read", rows, summary, _WITNESSES, _argument, at=["place"], identity=_identity
            )


# Offsets without a record in partitions whose log was not read: the markers of transactions, unless compaction removed records.
_WITHOUT_RECORD = """
    SELECT topic, "partition", any_value(p.end_offset - p.start_offset) - count(*) AS offsets
    FROM history.partitions p JOIN history.input i USING (topic, "partition") WHERE i."offset" >= p.start_offset
    GROUP BY topic, "partition" HAVING bool_and(i.producer_id IS NULL) AND offsets > 0 ORDER BY topic, "partition" LIMIT 1"""


def _unknown(case: Case, *, aborted: bool) -> str | None:
    """Why it is unknown when the input's transactions ended. None: it is known, or nothing shows that there were any."""
    unrecorded = "the history does not record when its transactions ended"
    if aborted:
        return f"some input is transactional, and {unrecorded}"
    if case.run.slice is not None:  # it lacks records that the run has
        return None
    for row in case.rows(_WITHOUT_RECORD):
        where = f"{row['topic']}/{row['partition']} holds {row['offsets']} offset{'s' * (row['offsets'] > 1)} without a record"
        return f"some input may be transactional ({where}), and {unrecorded}"
    return None


def _by_time(case: Case) -> Iterator[Gap]:
    known = """SELECT count(*) FILTER (txn_end_ms IS NOT NULL) AS ended,
                      count(*) FILTER (visibility = 'aborted' AND txn_end_ms IS NULL) > 0 AS aborted FROM history.input"""
    row = case.rows(known)[0]
    unknown = _unknown(case, aborted=row["aborted"])
    for output, spec in case.outputs.items():
        if unknown is not None:
            yield Gap(output, unknown)
        elif not row["ended"]:
            continue
        elif case.expectations[output].has_cause and output not in case.no_stream:
            case.caused()
            seen = _TABLE_TIMES if spec.has_rows else _TOPIC_TIMES.format(output=literal(output))
            any_content = str(spec.kind != "upsert").lower()
            case.sql(
                _BY_EFFECT.format(
                    output=literal(output),
                    times=seen,
                    ended=_ENDED,
                    any_content=any_content,
                    digest=digest.of_text("id"),
                )
            )
        else:
            case.sql(_BY_BATCH.format(output=literal(output), ended=_ENDED))


def _identity(row: Row) -> dict[str, Any]:
    return {} if row["id"] is None else identity_of(row)


def _argument(case: Case, row: Row) -> str:
    what = noun(case, row["output"])
    if row["rule"] == "open":
        at = "" if row["place"] is None else f", at {row['place']}"
        cause = "Some input" if row["offset"] is None else f"Input {cause_of(row)}"
        return f"{cause} is in a transaction that has not ended, and no committed input explains this {what}.\nBut it can be read{at}."
    ended = f"The transaction of input {cause_of(row)} was committed at {row['ended']} ms, the time of its marker."
    if row["rule"] == "effect":
        return f"{ended}\nBut its {what} could be read {row['ended'] - row['at_ms']} ms earlier, at {row['place']}."
    return (
        f"{ended}\nBatch {row['batch']} of query {row['query']} read that record.\n"
        f"But the batch was committed {row['ended'] - row['at_ms']} ms earlier."
    )
