"""Which of a changelog's expected states were left out: all but the last of an identity may be, for a batch writes one of many.

An identity may come to a state again (a count that goes up and down). Which of two equal states an effect is, its
neighbours tell: if the effects of an identity can be read, in their order, as some of its states up to the last one, these
are expected and no others. If they cannot, something is wrong with them; then of equal states the latest are expected, as
many as were found, and the last in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# Identities that come to a state again: their expected states, and then their effects, each in its order.
_RETURNING = """
    WITH returning_ids AS (
        SELECT DISTINCT h FROM (
            SELECT h FROM judge.expected WHERE output = $output GROUP BY h, digest_2 HAVING count(*) > 1)),
    steps AS (
        SELECT h, false AS found, rowid AS r, digest_2 AS state, -1 AS lane, nth AS pos, 0 AS within
        FROM judge.expected SEMI JOIN returning_ids USING (h) WHERE output = $output
        UNION ALL
        SELECT h, true, NULL, digest_2, coalesce("partition", -1), coalesce(commit_order, "offset"), "offset"
        FROM judge.effect_rows SEMI JOIN returning_ids USING (h) WHERE output = $output)
    SELECT h, found, r, state, lane FROM steps ORDER BY h, found, pos, within"""

_REST = """
    DELETE FROM judge.expected WHERE output = $output AND rowid NOT IN (
        WITH states AS (
            SELECT rowid AS r, id, content, nth = max(nth) OVER (PARTITION BY id) AS last,
                   row_number() OVER (PARTITION BY id, content ORDER BY nth DESC) AS back
            FROM judge.expected WHERE output = $output),
        seen AS (SELECT id, content, count(*) AS n FROM judge.effect_rows WHERE output = $output GROUP BY ALL)
        SELECT r FROM states LEFT JOIN seen USING (id, content) WHERE last OR back <= coalesce(n, 0))"""


def drop_unseen(case: Case, output: str) -> None:
    """Delete from ``judge.expected`` the states of a changelog that were left out, once its effects are there."""
    if left_out := list(_left_out(case, output)):
        case.sql("DELETE FROM judge.expected WHERE rowid IN (SELECT unnest($rows::BIGINT[]))", {"rows": left_out})
    case.sql(_REST, {"output": output})


def _left_out(case: Case, output: str) -> Iterator[int]:
    rows = case.sql(_RETURNING, {"output": output})
    for _, of_one in groupby(iter(rows.fetchone, None), key=itemgetter(0)):
        steps = list(of_one)
        states = [(r, state) for _, found, r, state, _ in steps if not found]
        effects = [state for _, found, _, state, _ in steps if found]
        lanes = {lane for _, found, _, _, lane in steps if found}
        if len(lanes) == 1 and (kept := _as_some_of(effects, [state for _, state in states])) is not None:
            yield from (r for place, (r, _) in enumerate(states) if place not in kept)


def _as_some_of(effects: Sequence[int], states: Sequence[int]) -> set[int] | None:
    """Places of the states that the effects are, from the last backwards; None if they are not some of them with the last."""
    kept: set[int] = set()
    before = len(states)
    for effect in reversed(effects):
        if not kept and states[-1] != effect:
            return None
        before = next((place for place in range(before - 1, -1, -1) if states[place] == effect), -1)
        if before < 0:
            return None
        kept.add(before)
    return kept or None
