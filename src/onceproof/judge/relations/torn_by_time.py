"""Adds to ``judge.torn`` the effects of torn batches of an output whose commits are assigned to batches by time.

A commit belongs to the batch during which it was made: between ``offsets/N`` and ``commits/N``. A Kafka transaction belongs to
the batch during which its last record was created, if its marker came at most a second after the end of that batch, because
the marker is written up to a second after the commit was answered; otherwise to the one during which its marker was written.

Times alone cannot show everything, and a wrong assignment would name a batch that is whole. So nothing is added if

- a commit that changed the output was made in no batch, or at a time that two batches share: it may be part of any batch before it;
- there are not more surplus commits than committed batches with input and without a commit: the commits of whole batches look
  like this if the clocks differ, or if they are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# A batch that was never committed has no end. ``of``: in how many batches the commit may have been made.
_COMMITS = """
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

_RECORDS = """JOIN (SELECT "partition", "offset", timestamp_ms FROM history.output WHERE output = {output}) h
        ON h."partition" = c."partition" AND h."offset" = c."offset" """

_SUMMARY = """
    SELECT count(*) FILTER (of <> 1) AS apart, count(*) - count(DISTINCT batch) AS surplus FROM commits_by_time"""

# A commit that writes what is there already, such as a replay, is no part of a batch. An append has a row more with each insert.
_CHANGING_APART = """
    WITH writes AS (
        SELECT id, txn, min(coalesce(commit_order, at_ms)) AS step, arg_max({{content: content}}, "offset").content AS content,
               bool_or(op = 'insert') AS inserted
        FROM judge.changes WHERE output = {output} AND visibility = 'committed' GROUP BY id, txn),
    states AS (SELECT *, lag(content) OVER (PARTITION BY id ORDER BY step) AS before FROM writes)
    SELECT count(DISTINCT txn) AS n, min_by(place, (at_ms, pos)) AS first FROM states JOIN commits_by_time USING (txn)
    WHERE of <> 1 AND (id IS NULL OR content IS DISTINCT FROM before OR (inserted AND {every_insert}))"""

# An effect that the first commit of its batch wrote as well was visible since then, so it is not late.
_LATE = """
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

_INSERT = """
    INSERT INTO judge.torn SELECT {output}, query, batch, id, NULL, NULL, NULL, min(place), min(main_place)
    FROM late_by_time GROUP BY query, batch, id"""


def of_output(case: Case, output: str, query: str) -> str | None:
    """Add the effects of one output that ``query`` writes. Returns why these cannot be known, or None."""
    case.changes()
    spec = case.scenario.outputs[output]
    unknown = """SELECT count(*) FROM judge.changes
        WHERE output = $output AND visibility = 'committed' AND (txn IS NULL OR at_ms IS NULL)"""
    if case.number(unknown, {"output": output}):
        return "the history does not show in which transaction or at what time its writes became visible"
    if case.number("SELECT count(*) FROM judge.batches WHERE planned_ms IS NULL"):
        return "the history does not show at what time its batches ran"
    names = {"output": literal(output), "query": literal(query)}
    created, records = ("min(at_ms)", "") if spec.has_rows else ("max(h.timestamp_ms)", _RECORDS.format(**names))
    case.sql(_COMMITS.format(**names, created=created, records=records))
    kind = "commit" if spec.has_rows else "transaction"
    summary = case.rows(_SUMMARY)[0]
    if summary["apart"]:
        apart = case.rows(_CHANGING_APART.format(**names, every_insert=spec.kind != "upsert"))[0]
        if apart["n"]:
            return (
                f"{times(apart['n'], kind)} changed it while no batch of query {query} was running, or more than one, the first "
                f"at {apart['first']}: it is not known which batch wrote what"
            )
    if not summary["surplus"]:
        return None
    case.sql(_LATE.format(**names))
    fit = case.rows(_FIT.format(**names))[0]
    if 0 < fit["surplus"] <= fit["without"]:
        return (
            f"{times(fit['surplus'], kind)} came during a batch that already had one, and {times(fit['without'], 'batch')} with input "
            "had none. Clocks may differ: it is not known which batch wrote what"
        )
    case.sql(_INSERT.format(**names))
    return None
