"""How the rows of one output differ between fault-free runs of one scenario, and whether these runs had the same input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from onceproof.base.words import times
from onceproof.history.reader import open_history
from onceproof.scenario.outputs import OutputSpec
from onceproof.values.canonical import literal, quote

_SETTINGS: dict[str, Any] = {"threads": 2, "memory_limit": "512MB"}


@dataclass(frozen=True)
class ColumnDifference:
    """A column whose values differ between runs."""

    column: str
    effects: int
    """In how many identities it differs between two runs; with several pairs of runs, the largest number."""
    example: str
    """One identity and its two values."""


@dataclass(frozen=True)
class Differences:
    """How the observed rows of one output differ between runs."""

    output: str
    compared: int
    """Number of identities that two runs have in common."""
    columns: tuple[ColumnDifference, ...] = ()
    unmatched: int = 0
    """Number of identities that are not equally often in every run. Ignoring a column would not help."""
    unmatched_example: str = ""

    def __bool__(self) -> bool:
        return bool(self.columns or self.unmatched)

    def to_ignore(self, spec: OutputSpec) -> tuple[str, ...]:
        """The columns that the output ignores already, and those that differ."""
        return tuple(dict.fromkeys([*spec.ignore, *(c.column for c in self.columns)]))

    def sentences(self) -> list[str]:
        lines = [f"column {c.column} differs in {times(c.effects, 'row')}, e.g. {c.example}" for c in self.columns]
        if self.unmatched:
            lines.append(f"not in every run: {times(self.unmatched, 'row')}, e.g. {self.unmatched_example}")
        return lines


def input_digest(run_dir: Path) -> tuple[Any, ...]:
    """Return a value that is equal for runs whose committed input is equal, record by record, at the same offsets."""
    known = literal(str(open_history(run_dir).tables["input"]))
    # Hash MD5 sums, not the bytes: DuckDB has few hashes for texts of one pattern (`onceproof.values.digest`).
    query = f"""SELECT topic, "partition", count(*), sum(hash("offset", md5_number("key"), md5_number("value")))
                FROM read_parquet({known}) WHERE visibility = 'committed' GROUP BY ALL ORDER BY ALL"""  # noqa: S608
    with duckdb.connect(config=_SETTINGS) as db:
        return tuple(db.execute(query).fetchall())


def compare(output: str, spec: OutputSpec, files: Sequence[Path]) -> Differences:
    """Return how the rows of these files differ in the columns that the output compares.

    ``files``: as `onceproof.oracle.contract.precomputed.OracleRunner.store_rows` writes them, one per run.
    """
    worst: dict[str, ColumnDifference] = {}
    compared, unmatched, example = 0, 0, ""
    with duckdb.connect(config=_SETTINGS) as db:
        for left, right in combinations(files, 2):
            pair = _Pair(db, spec, left, right)
            common, alone, first = pair.identities()
            compared = max(compared, common)
            if alone > unmatched:
                unmatched, example = alone, first
            for difference in pair.columns():
                known = worst.get(difference.column)
                if known is None or known.effects < difference.effects:
                    worst[difference.column] = difference
    return Differences(output, compared, tuple(worst[name] for name in sorted(worst)), unmatched, example)


class _Pair:
    """Two files of observed rows of one output. If an identity occurs several times, only the number is compared."""

    def __init__(self, db: duckdb.DuckDBPyConnection, spec: OutputSpec, left: Path, right: Path) -> None:
        self._db = db
        names: dict[str, None] = {}
        for file in (left, right):
            names |= dict.fromkeys(pq.read_schema(file).names)
        wanted = None if spec.compare is None else set(spec.compare)
        self._names = [
            name for name in names if name not in {*spec.identity, *spec.ignore} and (wanted is None or name in wanted)
        ]
        for side, file in (("one", left), ("other", right)):
            has = set(pq.read_schema(file).names)
            fields = {name: quote(name) if name in has else "NULL::VARCHAR" for name in [*spec.identity, *self._names]}
            identity = "{" + ", ".join(f"{literal(name)}: {fields[name]}" for name in spec.identity) + "}"
            listed = "".join(f", any_value({fields[name]}) AS {quote(name)}" for name in self._names)
            db.execute(f"""CREATE OR REPLACE TABLE {side} AS
                SELECT to_json({identity})::VARCHAR AS "=id", count(*) AS "=n"{listed}
                FROM read_parquet({literal(str(file))}) GROUP BY 1""")  # noqa: S608
        db.execute("""CREATE OR REPLACE VIEW pairs AS
            SELECT coalesce(a."=id", b."=id") AS id, a AS l, b AS r, a."=n" IS DISTINCT FROM b."=n" AS alone, a."=n" AS n
            FROM one a FULL JOIN other b ON a."=id" = b."=id" """)

    def identities(self) -> tuple[int, int, str]:
        """Return how many identities both files have equally often, how many they do not, and the first of the latter."""
        query = "SELECT count(*) FILTER (NOT alone), count(*) FILTER (alone), min(id) FILTER (alone) FROM pairs"
        common, alone, first = self._db.execute(query).fetchone() or (0, 0, None)
        return common, alone, first or ""

    def columns(self) -> list[ColumnDifference]:
        found = []
        for name in self._names:
            left, right = (f"struct_extract({side}, {literal(name)})" for side in "lr")
            query = f"""SELECT count(*), min(id), arg_min({left}, id), arg_min({right}, id) FROM pairs
                        WHERE NOT alone AND n = 1 AND {left} IS DISTINCT FROM {right}"""  # noqa: S608
            count, identity, one, other = self._db.execute(query).fetchone() or (0, "", None, None)
            if count:
                found.append(ColumnDifference(name, count, f"{identity}: {_shown(one)} and {_shown(other)}"))
        return found


def _shown(value: str | None) -> str:
    return "NULL" if value is None else repr(value if len(value) <= 60 else f"{value[:57]}...")
