"""Every write that ever stood in an output's log, visible or not: the view ``judge.changes``.

Where `onceproof.judge.relations.effects` shows what is there after the run, this shows how it came about. Columns: those of
``judge.effects``, and

- ``op``: insert, update, delete (``content`` is NULL then), or truncate (``id`` is NULL then too);
- ``visibility``: committed, aborted or open;
- ``txn``: a name that the writes of one transaction share: ``xid N`` for rows, ``PRODUCER:EPOCH`` for records. A
  producer that makes several transactions in one epoch cannot be told apart across partitions by its log: then the name
  is NULL, unless all of them stand in one partition;
- ``at_ms``: the server's wall clock when it became visible: the commit's time, or that of the transaction's marker, or
  of the record where there is no transaction. NULL while it is not visible.

A view: it is decoded anew by each query, and only what the query asks for. What is never asked for, a value in an aborted
transaction say, may be undecodable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case import sources
from onceproof.judge.relations import effects
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# One row a producer's epoch in an output: whether its name tells its transactions apart.
_TRANSACTIONS = """
    CREATE VIEW judge.transactions AS
    SELECT output, producer_id, producer_epoch, count(*) AS partitions, max(ended) AS markers
    FROM (SELECT output, producer_id, producer_epoch, "partition", count(DISTINCT txn_end_offset) AS ended
          FROM history.output WHERE txn_end_offset IS NOT NULL OR (visibility = 'open' AND producer_id IS NOT NULL) GROUP BY ALL)
    GROUP BY ALL"""

_KAFKA_TXN = """CASE WHEN t.markers <= 1 THEN h.producer_id || ':' || h.producer_epoch
             WHEN t.partitions = 1 THEN h.producer_id || ':' || h.producer_epoch || '@' || coalesce(h.txn_end_offset::VARCHAR, 'open') END"""


def create(case: Case) -> None:
    """Make the view over all outputs that can be judged."""
    case.sql(_TRANSACTIONS)
    parts = [_of(case, output) for output in case.expectations] or [_none()]
    union = "\nUNION ALL BY NAME\n".join(parts)
    case.sql(f"""CREATE VIEW judge.changes AS
        SELECT c.*, {effects.STANDING} FROM ({union}) c JOIN judge.outputs USING (output)""")  # noqa: S608


def _of(case: Case, output: str) -> str:
    spec = case.scenario.outputs[output]
    if not spec.has_rows:
        source = f"""SELECT {sources.record_content(spec)} AS content, h."partition", h."offset", h.xid, h.commit_order, h."key", h.headers,
                CASE WHEN h.content IS NULL AND h.raw IS NULL THEN 'delete' ELSE h.op END AS op, h.visibility, {_KAFKA_TXN} AS txn,
                CASE WHEN h.visibility = 'committed' THEN coalesce(h.txn_end_ms, h.timestamp_ms) END AS at_ms
            FROM history.output h LEFT JOIN judge.transactions t ON t.output = h.output
                AND t.producer_id = h.producer_id AND t.producer_epoch = h.producer_epoch
            WHERE h.output = {literal(output)}"""  # noqa: S608
    else:
        source = f"""SELECT coalesce(h.content, h.before) AS content, h."partition", h."offset", h.xid, h.commit_order, h."key",
                h.op, h.visibility, 'xid ' || h.xid AS txn, c.commit_time_us // 1000 AS at_ms
            FROM history.output h LEFT JOIN history.commits c USING (commit_order)
            WHERE h.output = {literal(output)}"""  # noqa: S608
    rows = effects.decoded(case, output, source, "op", "visibility", "txn", "at_ms")
    # A deleted row tells its identity and has no content any more.
    return f"""SELECT * REPLACE (CASE WHEN op = 'truncate' THEN NULL ELSE id END AS id,
                                 CASE WHEN op IN ('delete', 'truncate') THEN NULL ELSE content END AS content) FROM ({rows})"""  # noqa: S608


def _none() -> str:
    return """SELECT *, NULL::VARCHAR AS op, NULL::VARCHAR AS visibility, NULL::VARCHAR AS txn, NULL::BIGINT AS at_ms
              FROM judge.effect_rows WHERE false"""
