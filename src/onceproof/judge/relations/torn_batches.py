"""Makes the table ``judge.torn``: effects that became visible in another step than most effects of their batch.

One row per such effect: ``output``, ``query``, ``batch``, ``id``, its cause (``topic``, ``partition``, ``offset``; NULL if
unknown), ``place``, and ``main_place``, the position of the batch's main step: the step with the most effects, and of several
such the first. If batches are known by time only, the number of their effects is unknown, and the first step is the main one.

A step is one commit in Postgres, or one transaction in Kafka. A Kafka record outside of a transaction is a step of its own
(which matters only if atomicity is claimed: `of_output` skips such outputs otherwise). The batch of an effect is known

- **by cause**, for appends and changelogs: the batch whose ranges hold the cause. Only first effects count, so replaying a
  batch that was whole at first does not tear it;
- **by time**, for upserts, rows that are written again, and if the oracle names no cause: a commit belongs to the batch during
  which it was made, between ``offsets/N`` and ``commits/N``. A Kafka transaction belongs to the batch during which its last record
  was created, if its marker came at most a second after the end of that batch, because the marker is written up to a second after
  the commit was answered; otherwise to the one during which its marker was written. If the oracle names no cause of some rows
  only, times are examined if all effects with a cause show no torn batch.

Times alone cannot show everything, and a wrong assignment would name a batch that is whole. So no batch is torn by time if

- a commit that changed the output was made in no batch, or at a time that two batches share: any earlier batch may have made it;
- there are not more surplus commits than committed batches with input and without a commit: the commits of whole batches look
  like this if the clocks differ, or if they are late.

If a producer makes several transactions in one epoch, the log does not show which of their parts in different partitions belong
together. Its transactions follow each other: two parts are of different transactions if the marker of one is older than the
first record of the other, and of the same one if their records were created in overlapping times and their markers are at most a
second apart; otherwise this is unknown. It is also unknown if the job sets the creation times itself (`find_own_times`), which does
not always show: equal times in two transactions of one batch overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.judge.case import sources
from onceproof.judge.relations import changes, on_demand
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Creation times that no producer's clock gives: they go backwards in a partition, or do not advance from one transaction to
# the next, or are far from the time of the marker, which a transaction's time-out limits (15 minutes by default).
_OWN_TIMES = """
    CREATE OR REPLACE TEMP TABLE own_times AS
    SELECT DISTINCT producer_id, producer_epoch FROM (
        SELECT producer_id, producer_epoch, timestamp_ms < lag(timestamp_ms) OVER w
            OR (timestamp_ms = lag(timestamp_ms) OVER w AND txn_end_offset IS DISTINCT FROM lag(txn_end_offset) OVER w)
            OR abs(timestamp_ms - txn_end_ms) > 3600000 AS own
        FROM history.output
        WHERE output = {output} AND producer_id IS NOT NULL AND (txn_end_offset IS NOT NULL OR visibility = 'open')
        WINDOW w AS (PARTITION BY producer_id, producer_epoch, "partition" ORDER BY "offset"))
    WHERE own"""

_NO_OWN_TIMES = "CREATE OR REPLACE TEMP TABLE own_times (producer_id BIGINT, producer_epoch INTEGER)"

# What has no batch by cause: expected rows without a cause, and effects whose cause no known batch read.
_WITHOUT_BATCH = """
    SELECT (SELECT count(*) FROM judge.expected_digests WHERE output = $output AND "offset" IS NULL) AS causeless,
           (SELECT count(*) FROM judge.caused WHERE output = $output AND batch IS NULL) AS unplanned"""

_EMPTY = """
    CREATE TABLE judge.torn (output VARCHAR, query VARCHAR, batch BIGINT, id VARCHAR, topic VARCHAR, "partition" INTEGER,
                             "offset" BIGINT, place VARCHAR, main_place VARCHAR)"""

# Aggregates the causes once; the rest reads torn batches only.
_COMMITS = """
    CREATE OR REPLACE TEMP TABLE apart AS
    WITH steps AS (
        SELECT query, batch, pos, count(*) AS n FROM judge.caused WHERE output = {output} AND nth = 1 AND batch IS NOT NULL
        GROUP BY query, batch, pos),
    units AS (
        SELECT query, batch, arg_max(pos, (n, -pos)) AS main FROM steps GROUP BY query, batch HAVING count(*) > 1)
    SELECT c.*, u.main, NULL::BIGINT AS main_lane
    FROM judge.caused c JOIN units u ON u.query = c.query AND u.batch = c.batch
    WHERE c.output = {output} AND c.nth = 1 AND c.pos <> u.main"""

# What one transaction wrote to one partition. Records outside of transactions share one row per producer epoch, without an end.
_STRETCHES = """
    CREATE OR REPLACE TEMP TABLE stretches AS
    SELECT "partition" AS lane, producer_id, producer_epoch, txn_end_offset AS ended, any_value(txn_end_ms) AS end_ms,
           min("offset") AS lo, max("offset") AS hi, min(timestamp_ms) AS first_ms, max(timestamp_ms) AS last_ms
    FROM history.output WHERE output = {output} AND visibility = 'committed'
    GROUP BY ALL"""

# If only one stretch overlaps a batch's span of positions, the whole batch is in it: no record need be read.
_UNITS = """
    CREATE OR REPLACE TEMP TABLE units AS
    WITH spans AS (
        SELECT query, batch, lane, min(pos) AS lo, max(pos) AS hi, count(*) AS n FROM judge.caused
        WHERE output = {output} AND nth = 1 AND batch IS NOT NULL GROUP BY ALL),
    near AS (
        SELECT s.query, s.batch, s.lane, s.n, t.* EXCLUDE (lane), count(*) OVER (PARTITION BY s.query, s.batch, s.lane) AS of
        FROM spans s JOIN stretches t ON t.lane = s.lane AND t.hi >= s.lo AND t.lo <= s.hi),
    mixed AS (
        SELECT c.query, c.batch, c.lane, h.txn_end_offset AS ended, h.producer_id, h.producer_epoch, count(*) AS n
        FROM judge.caused c
        SEMI JOIN (FROM near WHERE of > 1) x ON x.query = c.query AND x.batch = c.batch AND x.lane = c.lane
        JOIN history.output h ON h.output = c.output AND h."partition" = c.lane AND h."offset" = c.pos
        WHERE c.output = {output} AND c.nth = 1 GROUP BY ALL)
    SELECT query, batch, lane, n, producer_id, producer_epoch, ended, end_ms, lo, first_ms, last_ms FROM near WHERE of = 1
    UNION ALL
    SELECT m.query, m.batch, m.lane, m.n, m.producer_id, m.producer_epoch, m.ended, t.end_ms, t.lo, t.first_ms, t.last_ms
    FROM mixed m JOIN stretches t ON t.lane = m.lane AND t.ended IS NOT DISTINCT FROM m.ended
        AND t.producer_id IS NOT DISTINCT FROM m.producer_id AND t.producer_epoch IS NOT DISTINCT FROM m.producer_epoch"""

_CLASSIFY = """
    CREATE OR REPLACE TEMP TABLE classified AS
    WITH epochs AS (
        SELECT u.query, u.batch, u.producer_id, u.producer_epoch, sum(u.n) AS n, count(*) AS stretches, count(DISTINCT u.lane) AS lanes,
               bool_or(u.ended IS NULL) AS outside, any_value(t.markers) AS markers, bool_or(o.producer_id IS NOT NULL) AS own,
               max(u.first_ms) <= min(u.last_ms) AND max(u.end_ms) - min(u.end_ms) <= 1000 AS overlapping,
               max(u.first_ms) > min(u.end_ms) AS apart
        FROM units u LEFT JOIN judge.transactions t ON t.output = {output} AND t.producer_id = u.producer_id
            AND t.producer_epoch = u.producer_epoch
        LEFT JOIN own_times o ON o.producer_id = u.producer_id AND o.producer_epoch = u.producer_epoch
        GROUP BY u.query, u.batch, u.producer_id, u.producer_epoch),
    each AS (
        SELECT *, (outside AND n > 1) OR stretches > lanes OR (markers > 1 AND apart AND NOT own) AS several,
               NOT outside AND stretches > 1 AND markers > 1 AND (own OR (NOT overlapping AND NOT apart)) AS unknown FROM epochs)
    SELECT query, batch, bool_or(outside) AS outside, count(*) > 1 OR bool_or(several) AS torn, bool_or(unknown) AS unknown
    FROM each GROUP BY query, batch"""

_TRANSACTIONS = """
    CREATE OR REPLACE TEMP TABLE apart AS
    WITH effects AS (
        SELECT c.*, h.producer_id, h.producer_epoch, h.txn_end_offset AS ended, coalesce(h.txn_end_ms, h.timestamp_ms) AS at_ms,
               h.timestamp_ms AS created_ms, t.markers > 1 AS nameless
        FROM judge.caused c JOIN classified u ON u.query = c.query AND u.batch = c.batch AND u.torn
        JOIN history.output h ON h.output = c.output AND h."partition" = c.lane AND h."offset" = c.pos
        LEFT JOIN judge.transactions t ON t.output = c.output AND t.producer_id = h.producer_id
            AND t.producer_epoch = h.producer_epoch
        WHERE c.output = {output} AND c.nth = 1),
    steps AS (
        SELECT query, batch, count(*) AS n, min(at_ms) AS first_ms,
               min_by({{lane: lane, pos: pos, ended: ended, at_ms: at_ms, created_ms: created_ms, id: producer_id,
                        epoch: producer_epoch}}, (at_ms, lane, pos)) AS f
        FROM effects
        GROUP BY query, batch, producer_id, producer_epoch, CASE WHEN ended IS NULL THEN (lane, pos) END,
                 CASE WHEN nameless THEN (lane, ended) END),
    units AS (SELECT query, batch, arg_max(f, (n, -first_ms, -f.lane, -f.pos)) AS f FROM steps GROUP BY query, batch),
    mated AS (  -- of nameless transactions in another partition, the one with the nearest marker in time counts as the same
        SELECT e.*, f, arg_min(ended, abs(e.at_ms - f.at_ms)) OVER (PARTITION BY query, batch, lane) AS mate
        FROM effects e JOIN units USING (query, batch))
    SELECT * EXCLUDE (f), f.pos AS main, f.lane AS main_lane FROM mated
    WHERE CASE WHEN ended IS NULL OR f.ended IS NULL THEN (lane, pos) <> (f.lane, f.pos)
               WHEN producer_id <> f.id OR producer_epoch <> f.epoch THEN true
               ELSE nameless AND (ended <> mate OR created_ms > f.at_ms OR f.created_ms > at_ms) END"""

_BY_CAUSE = """
    INSERT INTO judge.torn
    SELECT l.output, l.query, l.batch, x.id, l.topic, l."partition", l."offset", {place}, {main_place}
    FROM apart l JOIN judge.expected x ON x.output = l.output AND x.topic = l.topic AND x."partition" = l."partition"
        AND x."offset" = l."offset" AND l.h IN (x.h, hash(x.h, x.digest_2))"""

# A batch that was never committed has no end. ``of``: in how many batches the commit may have been made.
_TIMED = """
    CREATE OR REPLACE TEMP TABLE commits_by_time AS
    WITH spans AS (
        SELECT query, batch, min(planned_ms) AS planned, coalesce(max(committed_ms), 1::BIGINT << 60) AS committed
        FROM judge.batches WHERE query = {query} GROUP BY query, batch),
    commits AS (
        SELECT txn, min(at_ms) AS at_ms, {created} AS created_ms, min(pos) AS pos, min(place) AS place
        FROM judge.changes c {records} WHERE c.output = {output} AND c.visibility = 'committed' GROUP BY txn),
    dated AS (
        SELECT c.*, CASE WHEN c.created_ms <= s.committed AND c.at_ms <= s.committed + 1000 THEN c.created_ms ELSE c.at_ms END AS ms
        FROM commits c ASOF LEFT JOIN spans s ON c.created_ms >= s.planned)
    SELECT d.*, s.query, s.batch, count(s.batch) OVER (PARTITION BY d.txn) AS of
    FROM dated d LEFT JOIN spans s ON d.ms BETWEEN s.planned AND s.committed"""

_CREATED = """JOIN (SELECT "partition", "offset", timestamp_ms FROM history.output WHERE output = {output}) h
        ON h."partition" = c."partition" AND h."offset" = c."offset" """

_TIMED_TOTALS = """
    SELECT count(*) FILTER (of <> 1) AS apart, count(*) - count(DISTINCT batch) AS surplus FROM commits_by_time"""

# A commit that writes what is there already, such as a replay, need not belong to a batch. Each insert adds a row to an append.
_CHANGING = """
    WITH writes AS (
        SELECT id, txn, min(coalesce(commit_order, at_ms)) AS step, arg_max({{content: content}}, "offset").content AS content,
               bool_or(op = 'insert') AS inserted
        FROM judge.changes WHERE output = {output} AND visibility = 'committed' GROUP BY id, txn),
    states AS (SELECT *, lag(content) OVER (PARTITION BY id ORDER BY step) AS before FROM writes)
    SELECT count(DISTINCT txn) AS n, min_by(place, (at_ms, pos)) AS first FROM states JOIN commits_by_time USING (txn)
    WHERE of <> 1 AND (id IS NULL OR content IS DISTINCT FROM before OR (inserted AND {every_insert}))"""

# An effect that the first commit of its batch wrote as well was visible since then, so it is not late.
_TIMED_LATE = """
    CREATE OR REPLACE TEMP TABLE late_by_time AS
    WITH several AS (
        SELECT *, min_by({{txn: txn, place: place}}, (at_ms, pos)) OVER (PARTITION BY batch) AS f
        FROM commits_by_time WHERE of = 1 QUALIFY count(*) OVER (PARTITION BY batch) > 1),
    writes AS (
        SELECT c.id, c.txn, min(c.place) AS place FROM judge.changes c SEMI JOIN several USING (txn)
        WHERE c.output = {output} AND c.visibility = 'committed' AND c.id IS NOT NULL GROUP BY c.id, c.txn)
    SELECT s.query, s.batch, w.id, w.txn, w.place, s.f.place AS main_place FROM writes w JOIN several s USING (txn)
    WHERE s.txn <> s.f.txn AND NOT EXISTS (FROM writes o WHERE o.txn = s.f.txn AND o.id = w.id)"""

_FIT = """
    SELECT count(DISTINCT txn) AS surplus, (
        SELECT count(DISTINCT batch) FROM judge.batches WHERE query = {query} AND end_offset > start_offset AND committed_ms IS NOT NULL
        AND batch NOT IN (SELECT batch FROM commits_by_time WHERE batch IS NOT NULL)) AS without
    FROM late_by_time"""

_BY_TIME = """
    INSERT INTO judge.torn SELECT {output}, query, batch, id, NULL, NULL, NULL, min(place), min(main_place)
    FROM late_by_time GROUP BY query, batch, id"""


def create(case: Case) -> None:
    """Make the table, still empty; `of_output` fills it."""
    case.caused()
    case.sql(_EMPTY)


def find_own_times(case: Case, output: str) -> None:
    """Make the table ``own_times``: producer epochs whose creation times are not those of the producer's clock."""
    case.sql(_OWN_TIMES.format(output=literal(output)))


def of_output(case: Case, output: str, *, claimed: bool) -> str | None:
    """Add the effects of one output that are not in the main step. Returns why not all of these can be known, or None.

    ``claimed``: batches are claimed to be atomic. Otherwise, outputs with records outside of transactions are skipped.
    """
    spec = case.scenario.outputs[output]
    if spec.has_rows and output in case.no_stream:
        return case.no_stream[output]
    query = _writer(case, output)
    if query is None:
        return "the history does not show which batches wrote it"
    again = spec.kind == "append" and sources.rewritten(case, output)
    if not case.expectations[output].has_cause or spec.kind == "upsert" or again:
        return _by_time(case, output, query)
    if spec.has_rows:
        case.sql(_COMMITS.format(output=literal(output)))
        _insert(case, _xid("l.pos"), _xid("l.main"))
        gap = None
    else:
        gap = _transactions(case, output, claimed)
    return _without_batch(case, output, query) if claimed and gap is None else gap


def _without_batch(case: Case, output: str, query: str) -> str | None:
    """Add by time what has no batch by cause. Returns why that cannot be done, or None.

    If effects with a cause show torn batches, they remain what is counted: times are less exact.
    """
    row = case.rows(_WITHOUT_BATCH, {"output": output})[0]
    if row["unplanned"]:
        kind = "row" if case.scenario.outputs[output].has_rows else "record"
        return f"no known batch read the input of {times(row['unplanned'], kind)}"
    if not row["causeless"]:
        return None
    if case.number("SELECT count(*) FROM judge.torn WHERE output = $output", {"output": output}):
        has = "has" if row["causeless"] == 1 else "have"
        return f"{times(row['causeless'], 'expected row')} {has} no cause (_partition, _offset)"
    return _by_time(case, output, query)


def _writer(case: Case, output: str) -> str | None:
    row = case.sql("SELECT min(query) FROM judge.output_batches WHERE output = $output", {"output": output}).fetchone()
    return str(row[0]) if row and row[0] is not None else None


def _by_time(case: Case, output: str, query: str) -> str | None:
    """Add by time the effects of one output that ``query`` writes. Returns why these cannot be known, or None."""
    case.changes()
    spec = case.scenario.outputs[output]
    unknown = """SELECT count(*) FROM judge.changes
        WHERE output = $output AND visibility = 'committed' AND (txn IS NULL OR at_ms IS NULL)"""
    if case.number(unknown, {"output": output}):
        return "the history does not show in which transaction or at what time its writes became visible"
    if case.number("SELECT count(*) FROM judge.batches WHERE planned_ms IS NULL"):
        return "the history does not show at what time its batches ran"
    names = {"output": literal(output), "query": literal(query)}
    created, records = ("min(at_ms)", "") if spec.has_rows else ("max(h.timestamp_ms)", _CREATED.format(**names))
    case.sql(_TIMED.format(**names, created=created, records=records))
    kind = "commit" if spec.has_rows else "transaction"
    summary = case.rows(_TIMED_TOTALS)[0]
    if summary["apart"]:
        apart = case.rows(_CHANGING.format(**names, every_insert=spec.kind != "upsert"))[0]
        if apart["n"]:
            return (
                f"{times(apart['n'], kind)} changed it while no batch of query {query} was running, or more than one, the first "
                f"at {apart['first']}: it is not known which batch wrote what"
            )
    if not summary["surplus"]:
        return None
    case.sql(_TIMED_LATE.format(**names))
    fit = case.rows(_FIT.format(**names))[0]
    if 0 < fit["surplus"] <= fit["without"]:
        return (
            f"{times(fit['surplus'], kind)} came during a batch that already had one, and {times(fit['without'], 'batch')} with input "
            "had none. Clocks may differ: it is not known which batch wrote what"
        )
    case.sql(_BY_TIME.format(**names))
    return None


def _transactions(case: Case, output: str, claimed: bool) -> str | None:
    case.sql(_STRETCHES.format(output=literal(output)))
    if not claimed and case.number("SELECT count(*) FROM stretches WHERE ended IS NULL"):
        return None
    changes.create_transactions(case)
    several = "SELECT count(*) FROM judge.transactions WHERE output = $output AND markers > 1"
    if case.number(several, {"output": output}):
        find_own_times(case, output)
    else:  # then no creation time decides anything
        case.sql(_NO_OWN_TIMES)
    for statement in (_UNITS, _CLASSIFY):
        case.sql(statement.format(output=literal(output)))
    row = case.rows("""SELECT bool_or(outside) AS outside, count(*) FILTER (torn) AS torn,
                              count(*) FILTER (unknown AND NOT torn) AS unknown FROM classified""")[0]
    if row["outside"] and not producers_known(case, output):
        return "the history does not show which of its records were written in a transaction"
    if row["torn"]:
        case.sql(_TRANSACTIONS.format(output=literal(output)))
        _insert(case, _offset(case, output, "l.lane", "l.pos"), _offset(case, output, "l.main_lane", "l.main"))
    if row["unknown"]:
        return "its producer makes several transactions in one epoch, and the history does not separate them across partitions"
    return None


def producers_known(case: Case, output: str) -> bool:
    """Whether it is known which records of a Kafka output are in a transaction: the history names producers, or the log has no
    gap in which a transaction's marker could be (a marker takes an offset).
    """
    if case.number("SELECT count(*) FROM history.output WHERE output = $o AND producer_id IS NOT NULL", {"o": output}):
        return True
    gaps = """SELECT count(*) FROM history.partitions p
        LEFT JOIN (SELECT "partition", count(*) AS n FROM history.output WHERE output = $o GROUP BY "partition") h USING ("partition")
        WHERE p.topic = $topic AND coalesce(h.n, 0) <> p.end_offset - p.start_offset"""
    topic = {"topic": case.scenario.outputs[output].topic}
    partitions = case.number("SELECT count(*) FROM history.partitions WHERE topic = $topic", topic)
    return partitions > 0 and case.number(gaps, {"o": output, **topic}) == 0


def _insert(case: Case, place: str, main_place: str) -> None:
    if case.number("SELECT count(*) FROM apart"):
        on_demand.load(case, "SELECT output, h FROM apart")
        case.sql(_BY_CAUSE.format(place=place, main_place=main_place))


def _xid(commit_order: str) -> str:
    named = """(SELECT named || ' ' || commit_word || ' ' FROM judge.outputs o WHERE o.output = l.output)"""
    xid = f"(SELECT any_value(xid) FROM history.commits k WHERE k.commit_order = {commit_order})"  # noqa: S608
    return f"{named} || {xid}"


def _offset(case: Case, output: str, lane: str, pos: str) -> str:
    return f"{literal(case.scenario.outputs[output].place)} || '/' || {lane} || '@' || {pos}"
