"""The expected rows of some identities, with the types that the oracle gave them, to be stored with a slice of the run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.history.statements import interruptible
from onceproof.history.writer import PARQUET
from onceproof.judge.case.case import Case
from onceproof.judge.case.record_key import BESIDE_THE_VALUE, HEADERS
from onceproof.judge.case.record_key import COLUMN as RECORD_KEY
from onceproof.oracle.contract.precomputed import expected_file
from onceproof.oracle.slice import uncommitted_file
from onceproof.values.canonical import is_nested, literal, member, quote
from onceproof.values.nested import HEX_FUNCTION

_ID = "=id"


@dataclass(frozen=True)
class StoredRows:
    """Expected rows per output, each with its id in the column ``=id``."""

    whole: dict[str, bool]
    rows: dict[str, pa.Table]
    texts: bool
    """The oracle gave them as text observed in another run."""
    uncommitted: dict[str, pa.Table]
    """The additional rows if uncommitted input counted. Empty if there are none, or if they are unknown."""

    @classmethod
    def of_kept(cls, case: Case, outputs: Collection[str]) -> Self:
        """The rows of the identities in table ``kept``. Raises `duckdb.Error` for values that do not fit a column's type."""
        # Read to its end: DuckDB needs this for Arrow.
        some_uncommitted = case.rows("SELECT 1 FROM judge.uncommitted LIMIT 1")
        return cls(
            whole={output: case.expectations[output].whole for output in outputs},
            rows={output: _typed(case, output, "judge.expected") for output in outputs},
            uncommitted={output: _typed(case, output, "judge.uncommitted") for output in outputs if some_uncommitted},
            texts=case.answer.texts,
        )

    def oracle(self) -> dict[str, Any]:
        return {"kind": "slice", "whole": self.whole, "texts": self.texts, "uncommitted": bool(self.uncommitted)}

    def write(self, folder: Path, identities: Collection[tuple[str, str]]) -> None:
        (folder / "history" / "expected").mkdir()
        for rows, file in ((self.rows, expected_file), (self.uncommitted, uncommitted_file)):
            for output, table in rows.items():
                kept = [(output, text) in identities for text in table[_ID].to_pylist()]
                chosen = table.filter(pa.array(kept, pa.bool_())).drop_columns([_ID])
                pq.write_table(chosen, file(folder, output), **PARQUET)


def _typed(case: Case, output: str, table: str) -> pa.Table:
    """The rows of a table like ``judge.expected``, in the form of an oracle's query."""
    expectation = case.expectations[output]
    selected = [
        f"{_cast(name, sql_type)} AS {quote(name)}"
        for name, sql_type in expectation.columns.items()
        if name not in BESIDE_THE_VALUE
    ]
    if expectation.has_cause:
        selected += ["topic AS _topic", '"partition" AS _partition', '"offset" AS _offset']
    selected += ['"key" AS _key'] if expectation.has_key else []
    selected += [f"(content->>{member(RECORD_KEY)}) AS _to_key"] if RECORD_KEY in expectation.columns else []
    selected += [f"(content->>{member(HEADERS)}) AS _headers"] if HEADERS in expectation.columns else []
    selected += ["to_partition AS _to_partition"] if expectation.has_place else []
    query = f"""SELECT {", ".join(selected)}, id AS {quote(_ID)} FROM {table} SEMI JOIN kept USING (output, id)
                WHERE output = {literal(output)} ORDER BY id, content, topic, "partition", "offset" """  # noqa: S608
    return interruptible(case.db, case.relation(query).to_arrow_table)


def _cast(name: str, sql_type: str) -> str:
    text = f"(content->>{member(name)})"
    if sql_type == "BLOB":
        return f"from_hex(substr({text}, 3))"
    if is_nested(sql_type):
        text = f"{HEX_FUNCTION}({text}, {literal(sql_type)})" if "BLOB" in sql_type else text
        return f"CAST({text}::JSON AS {sql_type})"
    return f"CAST({text} AS {sql_type})"
