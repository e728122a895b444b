"""Makes the table ``judge.dirty``: dirty reads, that is, effects that only uncommitted input explains.

Without this table they would count as ``unexplained``, or as wrong values of effects that committed input explains.

One row per identity and content: ``output``, ``id``, ``content``, ``n`` (effects), ``part`` (how
`onceproof.judge.relations.compare` classified them: ``unexplained`` or ``wrong``), ``kind`` (``aborted``: the input's
transaction was aborted; ``open``: it had not ended when the history was collected), and the cause, if the oracle names it:
``topic``, ``partition``, ``offset``.

An effect is a dirty read if the oracle would expect its identity and content with uncommitted input counted too. If committed
input explains no effect of its identity, the identity alone is enough. If the cause is unknown (sums, windows), the kind is
``open`` only if the history holds no aborted input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

_EMPTY = """
    CREATE OR REPLACE TABLE judge.dirty (output VARCHAR, id VARCHAR, content VARCHAR, n BIGINT, part VARCHAR, kind VARCHAR,
                              topic VARCHAR, "partition" INTEGER, "offset" BIGINT)"""

_DIRTY = """
    INSERT INTO judge.dirty
    WITH suspects AS (
        SELECT c.output, c.id, c.content, c.actual::BIGINT AS n, CASE WHEN t.expected = 0 THEN 'unexplained' ELSE 'wrong' END AS part
        FROM judge.counts c JOIN judge.tally t USING (output, id)
        WHERE c.actual > 0 AND c.expected = 0 AND t.wrong + t.unexplained > 0),
    explained AS (
        SELECT s.*, u.topic, u."partition", u."offset"
        FROM suspects s JOIN judge.uncommitted u ON u.output = s.output AND u.id = s.id
            AND (u.content = s.content OR s.part = 'unexplained')
        QUALIFY row_number() OVER (PARTITION BY s.output, s.id, s.content
                                   ORDER BY u.content <> s.content, u."offset", u.topic, u."partition") = 1)
    SELECT e.output, e.id, e.content, e.n, e.part,
           CASE coalesce(nullif(i.visibility, 'committed'), $unknown) WHEN 'open' THEN 'open' ELSE 'aborted' END AS kind,
           e.topic, e."partition", e."offset"
    FROM explained e LEFT JOIN history.input i
      ON i.topic = e.topic AND i."partition" = e."partition" AND i."offset" = e."offset" """


def create(case: Case) -> None:
    """Make the table. Asks the oracle again, but only if there are wrong or unexplained effects."""
    case.compare()
    case.sql(_EMPTY)
    if not case.differs or not case.number("SELECT count(*) FROM judge.tally WHERE wrong + unexplained > 0"):
        return
    case.uncommitted()
    if not case.number("SELECT count(*) FROM judge.uncommitted"):
        return
    aborted = case.number("SELECT count(*) FROM history.input WHERE visibility = 'aborted'")
    case.sql(_DIRTY, {"unknown": "aborted" if aborted else "open"})
