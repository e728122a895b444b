"""Runs as a program (``python -m``): calls a user's function for oracle `python` and stores the rows that it returns."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.registry import suggest
from onceproof.base.user_code import load_function
from onceproof.history.writer import PARQUET
from onceproof.values.column_names import of_one_name


def main(request_file: Path) -> None:
    """``request_file`` is JSON: ``function``; ``tables``, name -> Parquet file; ``outputs``, name -> [file, identity]."""
    request = json.loads(request_file.read_text(encoding="utf-8"))
    function = load_function(request["function"])
    answer = function({name: pq.read_table(path) for name, path in request["tables"].items()})
    for output, table in tables_of(
        answer, {name: identity for name, (_, identity) in request["outputs"].items()}
    ).items():
        pq.write_table(table, request["outputs"][output][0], **PARQUET)


def tables_of(answer: Any, outputs: Mapping[str, list[str]]) -> dict[str, pa.Table]:
    """The function's answer as one table per output. Raises `TypeError` or `ValueError` if it is anything else."""
    if not isinstance(answer, Mapping):
        raise TypeError(f"the function returned a {type(answer).__name__}; it must return a dict: output -> its rows")
    for output in answer:
        if output not in outputs:
            raise ValueError(f"the function returned rows for {output!r}; {suggest(str(output), list(outputs))}")
    if missing := [output for output in outputs if output not in answer]:
        raise ValueError(f"the function returned nothing for output {missing[0]!r}; for no rows, return an empty list")
    return {output: _table(answer[output], output, identity) for output, identity in outputs.items()}


def _table(rows: Any, output: str, identity: list[str]) -> pa.Table:
    """Rows as a pyarrow table, a DataFrame, anything that exports Arrow, or an iterable of dicts."""
    if isinstance(rows, pa.Table):
        table = rows
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    elif isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__iter__"):
        raise TypeError(f"the rows of output {output!r} are a {type(rows).__name__}; they must be dicts, or a table")
    else:
        table = _from_dicts(list(rows), output)
    if "__index_level_0__" in table.column_names:  # pandas' index is not a column of the output
        table = table.drop_columns(["__index_level_0__"])
    if twice := of_one_name(table.column_names):
        raise ValueError(
            f"the rows of output {output!r} have several columns of one name, in upper or lower case: {', '.join(twice)}"
        )
    if not table.num_columns and not table.num_rows:
        table = pa.table({name: pa.array([], pa.string()) for name in identity})
    nulls_only = {field.name: pa.string() for field in table.schema if pa.types.is_null(field.type)}
    return table.cast(pa.schema([pa.field(f.name, nulls_only.get(f.name, f.type)) for f in table.schema]))


def _from_dicts(rows: list[Any], output: str) -> pa.Table:
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row of output {output!r} is a {type(row).__name__}; it must be a dict: column -> value")
    # The columns of all rows: PyArrow would take only those of the first.
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
