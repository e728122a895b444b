"""Makes the view ``judge.changes``: every write in an output's log, visible or not.

`onceproof.judge.relations.effects` shows the result of the run; this shows how it came about. Columns: those of
``judge.effects``, and

- ``op``: insert, update, delete (``content`` is then NULL), or truncate (``id`` is then NULL, too);
- ``visibility``: committed, aborted or open;
- ``txn``: a name that the writes of one transaction share: ``xid N`` for rows, ``PRODUCER:EPOCH`` for records. If a producer
  made several transactions in one epoch, the log does not show which of their parts in different partitions belong together:
  the name is then NULL, unless all of them are in one partition;
- ``at_ms``: the server's wall clock when the write became visible: the time of the commit, of the transaction's marker, or,
  without a transaction, of the record. NULL if it is not visible.

Each query decodes the view again, and only the columns it selects. What no query selects, such as a value in an aborted
transaction, may be undecodable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case import sources
from onceproof.judge.relations import effects
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# One row per producer epoch in an output: whether PRODUCER:EPOCH identifies a transaction.
_TRANSACTIONS = """
    CREATE TABLE judge.transactions AS
    SELECT output, producer_id, producer_epoch, count(*) AS partitions, max(ended) AS markers
    FROM (SELECT output, producer_id, producer_epoch, "partition", count(DISTINCT txn_end_offset) AS ended
          FROM history.output WHERE txn_end_offset IS NOT NULL OR (visibility = 'open' AND producer_id IS NOT NULL) GROUP BY ALL)
    GROUP BY ALL"""

_KAFKA_TXN = """CASE WHEN t.markers <= 1 THEN h.producer_id || ':' || h.producer_epoch
             WHEN t.partitions = 1 THEN h.producer_id || ':' || h.producer_epoch || '@' || coalesce(h.txn_end_offset::VARCHAR, 'open') END"""


def create_transactions(case: Case) -> None:
    """Make the table ``judge.transactions``, once."""
    case.once("transactions", lambda: _create_transactions(case))


def _create_transactions(case: Case) -> None:
    case.sql(_TRANSACTIONS)


def create(case: Case) -> None:
    """Make the view over all outputs that can be judged."""
    create_transactions(case)
    selects = [_changes_of(case, output) for output in case.expectations] or [_NO_CHANGES]
    union = "\nUNION ALL BY NAME\n".join(selects)
    case.sql(f"""CREATE VIEW judge.changes AS
        SELECT c.*, {effects.POSITION} FROM ({union}) c JOIN judge.outputs USING (output)""")  # noqa: S608


def _changes_of(case: Case, output: str) -> str:
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
    # A deleted row has an identity and no content.
    return f"""SELECT * REPLACE (CASE WHEN op = 'truncate' THEN NULL ELSE id END AS id,
                                 CASE WHEN op IN ('delete', 'truncate') THEN NULL ELSE content END AS content) FROM ({rows})"""  # noqa: S608


_NO_CHANGES = """
    SELECT *, NULL::VARCHAR AS op, NULL::VARCHAR AS visibility, NULL::VARCHAR AS txn, NULL::BIGINT AS at_ms
    FROM judge.effect_rows WHERE false"""
