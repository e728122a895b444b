"""Checks that an oracle is a function of its input: asked again, with the same rows in another order, it must expect the same.

Asking again costs as much as asking. So this is done only if the input is small, or if a query uses something that depends on
the order of rows (`onceproof.oracle.contract.query.unordered`). An output for which the two answers differ is not judged.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from onceproof.base.words import times
from onceproof.judge.relations import expected

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import Tolerance

_AGAIN = "judge.expected_again"
_MOST = 10_000

_CAUSE = 'topic, "partition", "offset", "key", nth, to_partition'
_SIDES = (
    """(SELECT {columns}, 1 AS sign FROM judge.expected UNION ALL SELECT {columns}, -1 FROM judge.expected_again)"""
)
_SUSPECTS = f"""
    CREATE TABLE judge.unsteady AS SELECT DISTINCT output, h FROM (
        SELECT output, h FROM {_SIDES.format(columns=f"output, h, digest_1, digest_2, {_CAUSE}")}
        GROUP BY output, h, digest_1, digest_2, {_CAUSE} HAVING sum(sign) <> 0)"""  # noqa: S608
_ROWS = """
    SELECT id, content, concat_ws(' ', coalesce(topic || '/' || "partition" || '@' || "offset", 'unknown input'), 'key ' || "key",
                                  'state ' || nth, 'into partition ' || to_partition) AS cause
    FROM {table} SEMI JOIN judge.unsteady USING (output, h) WHERE output = $output ORDER BY ALL LIMIT $most"""


def check(case: Case) -> None:
    """Ask again if that is cheap or necessary, and put outputs for which the answer differs into ``case.unreadable``."""
    if case.digest_first:  # no query depends on the order of rows, and the input is large
        return
    unordered = any(rows.unordered for rows in case.answer.outputs.values())
    if case.answer.stored or case.run.slice is not None or not (unordered or case.inputs.is_cheap()):
        return
    case.inputs.in_another_order()
    expected.again(case, _AGAIN)
    case.sql(_SUSPECTS)
    for (output,) in case.sql("SELECT DISTINCT output FROM judge.unsteady ORDER BY 1").fetchall():
        if difference := _difference(case, output):
            case.unreadable[output] = difference
    case.sql(f"DROP TABLE judge.unsteady; DROP TABLE {_AGAIN}")


def _difference(case: Case, output: str) -> str | None:
    """The first difference between the two answers, and its likely reason; None if all are within the tolerance."""
    once, again = (
        _by_identity(case.rows(_ROWS.format(table=table), {"output": output, "most": _MOST}))
        for table in ("judge.expected", _AGAIN)
    )
    tolerance = case.scenario.outputs[output].tolerance
    differ = [id_ for id_ in sorted({*once, *again}) if not _same(once[id_], again[id_], tolerance)]
    if not differ:
        return None
    first = differ[0]
    return (
        f"the oracle expects other rows when it is asked again with the same input in another order. "
        f"{times(len(differ), 'identity')} {'differs' if len(differ) == 1 else 'differ'}; the first is {first}: "
        f"{_in_words(once[first])} the first time, {_in_words(again[first])} the second time. "
        f"{_reason(case, output, once[first], again[first])}"
    )


def _by_identity(rows: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        found[row["id"]].append((row["content"], row["cause"]))
    return found


def _same(once: list[tuple[str, str]], again: list[tuple[str, str]], tolerance: dict[str, Tolerance]) -> bool:
    """Whether two answers are equal as multisets, with numbers within the tolerance."""

    def exact(row: tuple[str, str]) -> tuple[str, str]:
        return json.dumps({k: v for k, v in json.loads(row[0]).items() if k not in tolerance}, sort_keys=True), row[1]

    pairs = list(zip(sorted(once, key=exact), sorted(again, key=exact), strict=False))
    return len(once) == len(again) and all(
        exact(a) == exact(b)
        and all(_near(json.loads(a[0])[name], json.loads(b[0])[name], t) for name, t in tolerance.items())
        for a, b in pairs
    )


def _near(one: str | None, other: str | None, tolerance: Tolerance) -> bool:
    if one == other:
        return True
    try:
        a, b = float(one or ""), float(other or "")
    except ValueError:
        return False
    return abs(a - b) <= max(tolerance.absolute, tolerance.relative * abs(a))


def _in_words(rows: list[tuple[str, str]]) -> str:
    if not rows:
        return "no row"
    more = f" and {times(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
    return f"{rows[0][0]} (from {rows[0][1]}){more}"


def _reason(case: Case, output: str, once: list[tuple[str, str]], again: list[tuple[str, str]]) -> str:
    if parts := case.answer.outputs[output].unordered:
        return "; ".join(f"{part}: {part.hint}" for part in parts)
    floats = [
        name
        for name, kind in case.expectations[output].columns.items()
        if kind in ("DOUBLE", "FLOAT")
        and once
        and again
        and json.loads(once[0][0])[name] != json.loads(again[0][0])[name]
    ]
    if floats:
        return f"A sum of {case.expectations[output].columns[floats[0]]} depends on the order: cast {floats[0]} to DECIMAL, or give it a tolerance"
    return "Make its query depend on the values of the rows, not on their order"
