"""Loads the rows that are compared record by record, where a history was first reduced to digests.

``judge.expected`` and ``judge.effect_rows`` then hold only the rows that a relation or a checker asked for, so a relation
that reads these tables loads what it reads first. For a history that is loaded whole (`onceproof.judge.relations.digests`), nothing here
does anything. A checker that does not load what it reads (`onceproof.judge.checker.Checker.by_digest`) gets all rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onceproof.judge.relations import effects, expected
from onceproof.values import digest
from onceproof.values.canonical import literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

# So few causes are given to DuckDB as a list, which it applies before it decodes the values of the other records.
_FEW = 2_000


def load_all(case: Case) -> None:
    """Load all rows. `Case.all_rows` calls this once."""
    case.all_expected()
    if case.digest_first:
        case.sql("DELETE FROM judge.effect_rows")
        for output in case.expectations:
            effects.insert(case, output)


def load_expected(case: Case) -> None:
    """Load all expected rows. `Case.all_expected` calls this once."""
    if case.digest_first:
        case.sql("DELETE FROM judge.expected")
        expected.again(case, "judge.expected")


def load(case: Case, query: str, values: dict[str, Any] | None = None) -> None:
    """Load the rows of the identities that ``query`` gives as ``output`` and ``h``, expected and found, where they are not loaded."""
    if not case.digest_first or case.is_made("all_rows"):
        return
    case.once("loaded", lambda: _create(case))
    case.sql("DELETE FROM judge.wanted")
    case.sql(
        f"""INSERT INTO judge.wanted
            SELECT DISTINCT q.output, q.h FROM ({query}) q ANTI JOIN judge.loaded l ON l.output = q.output AND l.h = q.h""",  # noqa: S608
        values,
    )
    for (output,) in case.sql("SELECT DISTINCT output FROM judge.wanted ORDER BY output").fetchall():
        if output in case.expectations:
            if not case.is_made("all_expected"):
                expected.again(case, "judge.expected", only={output: _chosen(case, output)})
            effects.insert(case, output, wanted=True)
    case.sql("INSERT INTO judge.loaded FROM judge.wanted")


def load_ids(case: Case, output: str, ids: Iterable[str]) -> None:
    """Load the rows of these identities of one output."""
    if case.digest_first:
        names = f"SELECT $output AS output, {digest.of_text('id')} AS h FROM (SELECT unnest($ids) AS id)"  # noqa: S608
        load(case, names, {"output": output, "ids": list(ids)})


def _create(case: Case) -> None:
    for table in ("loaded", "wanted"):
        case.sql(f"CREATE TABLE judge.{table} (output VARCHAR, h UBIGINT)")


def _chosen(case: Case, output: str) -> expected.Chosen:
    """Conditions for the wanted rows of one output: the oracle's database is another one, so they are passed as a file."""
    file = literal(str(case.inputs.folder / "wanted.parquet"))
    case.sql(f"COPY (SELECT h FROM judge.wanted WHERE output = {literal(output)}) TO {file} (FORMAT parquet)")  # noqa: S608
    row = case.rows(
        """SELECT count(*) AS n, count("offset") AS caused, list(DISTINCT "offset") AS offsets
           FROM judge.expected_digests SEMI JOIN judge.wanted USING (output, h) WHERE output = $output""",
        {"output": output},
    )[0]
    few = row["n"] == row["caused"] and 0 < row["n"] <= _FEW
    of_cause = f"_offset IN ({', '.join(map(str, sorted(row['offsets'])))})" if few else None
    return expected.Chosen(of_cause, f"h IN (SELECT h FROM read_parquet({file}))")  # noqa: S608
