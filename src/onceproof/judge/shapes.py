"""The different shapes that the JSON values of a table have: their few lists of names or types, out of millions of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceproof.judge.case import Case


def distinct(case: Case, shape: str, source: str) -> Iterator[Any]:
    """Each value of the expression ``shape`` once, NULL among them, over ``source`` (``FROM ...``).

    Grouped by the 64-bit hash: finding a list among others takes as long again as making it. That two of a handful of
    shapes share one is less likely than that two of ten million identities do, of which `onceproof.judge.digest` tells.
    """
    rows = case.sql(f"SELECT first(shape) FROM (SELECT {shape} AS shape {source}) GROUP BY hash(shape)")  # noqa: S608
    while row := rows.fetchone():
        yield row[0]
