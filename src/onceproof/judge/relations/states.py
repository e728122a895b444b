"""Decides which states of a changelog must be there. A batch may write one state for many, so only the last one is mandatory.

An identity may return to an earlier state (a count that goes up and down). The neighbours of an effect decide which of two
equal states it is: if the effects of an identity, in their order, are a subsequence of its states that ends with the last one,
exactly these states are expected. Otherwise something is wrong with the effects. Then, of equal states, the latest are
expected, as many as were found, and the last state in any case.

With a tolerance, an effect may be near several states. Again, if there is a choice that makes the effects of an identity a
subsequence of its states that ends with the last one, this choice counts; otherwise each effect is the nearest state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from onceproof.values import digest
from onceproof.values.canonical import document, member
from onceproof.values.tolerance import within

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import Tolerance

# One row per effect and state of its identity that it is within the tolerances.
_NEAR = """
    CREATE OR REPLACE TEMP TABLE near_states AS
    SELECT a.rowid AS r, x.nth, x.content, {distance} AS distance
    FROM judge.effect_rows a JOIN judge.expected x ON x.output = a.output AND x.id = a.id
    WHERE a.output = $output AND {snapped} = x.content AND {near}"""

# For each identity with an effect near several states: its effects in order, and the numbers of the states that each is near.
_SEVERAL = """
    WITH several AS (
        SELECT DISTINCT h FROM judge.effect_rows WHERE rowid IN (SELECT r FROM near_states GROUP BY r HAVING count(*) > 1))
    SELECT a.h, a.rowid AS r, coalesce(a."partition", -1) AS lane, last.nth AS last,
           (SELECT list(n.nth ORDER BY n.nth) FROM near_states n WHERE n.r = a.rowid) AS near
    FROM judge.effect_rows a SEMI JOIN several USING (h)
    JOIN (SELECT h, max(nth) AS nth FROM judge.expected WHERE output = $output GROUP BY h) last USING (h)
    WHERE a.output = $output ORDER BY a.h, coalesce(a.commit_order, a."offset"), a."offset\""""

_FORGET_OTHERS = """
    DELETE FROM near_states n USING (SELECT unnest($effects::BIGINT[]) AS r, unnest($states::BIGINT[]) AS nth) chosen
    WHERE n.r = chosen.r AND n.nth <> chosen.nth"""

_BECOME_STATES = """
    UPDATE judge.effect_rows AS e SET content = n.content, digest_1 = {one}, digest_2 = {two} FROM (
        FROM near_states QUALIFY row_number() OVER (PARTITION BY r ORDER BY distance, nth DESC) = 1) n
    WHERE e.rowid = n.r AND e.content <> n.content"""

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


def tolerate(case: Case, output: str, tolerances: Mapping[str, Tolerance]) -> None:
    """Replace each effect that is within all tolerances of some states by one of these. Other effects stay as they are."""

    def field(side: str, name: str) -> str:
        return f"({side}.content->>{member(name)})"

    near, distances = [], []
    values: dict[str, str | float] = {"output": output}
    for number, (name, tolerance) in enumerate(tolerances.items()):
        found, wanted = field("a", name), field("x", name)
        limits = {"absolute": f"$absolute_{number}", "relative": f"$relative_{number}"}
        values |= {f"absolute_{number}": tolerance.absolute, f"relative_{number}": tolerance.relative}
        finite = f"isfinite(TRY_CAST({found} AS DOUBLE)) AND isfinite(TRY_CAST({wanted} AS DOUBLE))"
        near.append(f"""CASE WHEN {found} IS NOT DISTINCT FROM {wanted} THEN true
                             WHEN {finite} THEN {within(found, wanted, **limits)} ELSE false END""")
        distances.append(f"coalesce(abs(TRY_CAST({found} AS DOUBLE) - TRY_CAST({wanted} AS DOUBLE)), 0)")
    columns = case.expectations[output].columns
    snapped = document({name: field("x" if name in tolerances else "a", name) for name in columns})
    case.sql(_NEAR.format(distance=" + ".join(distances), snapped=snapped, near=" AND ".join(near)), values)
    effects: list[int] = []
    states: list[int] = []
    rows = case.sql(_SEVERAL, {"output": output})
    for _, group in groupby(iter(rows.fetchone, None), key=itemgetter(0)):
        steps = list(group)
        if len({lane for _, _, lane, _, _ in steps}) == 1:
            chosen = _last_choice([near or () for *_, near in steps], steps[0][3])
            effects += [r for _, r, *_ in steps[: len(chosen)]]
            states += chosen
    if effects:
        case.sql(_FORGET_OTHERS, {"effects": effects, "states": states})
    one, two = digest.of_content("n.content")
    case.sql(_BECOME_STATES.format(one=one, two=two))


def _last_choice(near: Sequence[Collection[int]], last: int) -> list[int]:
    """For effects in order: the states that rise and end with the last one, the latest possible; empty if there are none."""
    chosen: list[int] = []
    for options in reversed(near):
        fitting = [state for state in options if (state < chosen[-1] if chosen else state == last)]
        if not fitting:
            return []
        chosen.append(max(fitting))
    return chosen[::-1]


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
