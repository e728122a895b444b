"""Decides which states of a changelog must be there. A batch may write one state for many, so only the last one is mandatory.

An identity may return to an earlier state (a count that goes up and down). The neighbours of an effect decide which of two
equal states it is: if the effects of an identity, in their order, are a subsequence of its states that ends with the last one,
exactly these states are expected. Otherwise something is wrong with the effects. Then, of equal states, the latest are
expected, as many as were found, and the last state in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# For each identity that returns to a state: its expected states, then its effects, both in order.
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

_KEEP_LATEST = """
    DELETE FROM judge.expected WHERE output = $output AND rowid NOT IN (
        WITH states AS (
            SELECT rowid AS r, id, content, nth = max(nth) OVER (PARTITION BY id) AS last,
                   row_number() OVER (PARTITION BY id, content ORDER BY nth DESC) AS back
            FROM judge.expected WHERE output = $output),
        seen AS (SELECT id, content, count(*) AS n FROM judge.effect_rows WHERE output = $output GROUP BY ALL)
        SELECT r FROM states LEFT JOIN seen USING (id, content) WHERE last OR back <= coalesce(n, 0))"""


def drop_unseen(case: Case, output: str) -> None:
    """Delete from ``judge.expected`` the states that a changelog left out. Its effects must be loaded."""
    if left_out := list(_left_out(case, output)):
        case.sql("DELETE FROM judge.expected WHERE rowid IN (SELECT unnest($rows::BIGINT[]))", {"rows": left_out})
    case.left_out[output] += len(left_out) + case.number(_KEEP_LATEST, {"output": output})


def _left_out(case: Case, output: str) -> Iterator[int]:
    rows = case.sql(_RETURNING, {"output": output})
    for _, group in groupby(iter(rows.fetchone, None), key=itemgetter(0)):
        steps = list(group)
        states = [(r, state) for _, found, r, state, _ in steps if not found]
        effects = [state for _, found, _, state, _ in steps if found]
        effect_lanes = {lane for _, found, _, _, lane in steps if found}
        if len(effect_lanes) == 1 and (kept := _as_subsequence(effects, [state for _, state in states])) is not None:
            yield from (r for index, (r, _) in enumerate(states) if index not in kept)


def _as_subsequence(effects: Sequence[int], states: Sequence[int]) -> set[int] | None:
    """Indices of the states that the effects match, from the last one backwards; None if they are not such a subsequence."""
    kept: set[int] = set()
    before = len(states)
    for effect in reversed(effects):
        if not kept and states[-1] != effect:
            return None
        before = next((index for index in range(before - 1, -1, -1) if states[index] == effect), -1)
        if before < 0:
            return None
        kept.add(before)
    return kept or None
