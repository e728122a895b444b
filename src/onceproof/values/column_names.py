"""The names of columns, as DuckDB compares them. Imports little: the process of a user's function would wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def of_one_name(columns: Iterable[str]) -> list[str]:
    """Return the columns whose names occur several times. To DuckDB, upper and lower case are the same."""
    names = list(columns)
    times = Counter(name.lower() for name in names)
    return [name for name in names if times[name.lower()] > 1]
