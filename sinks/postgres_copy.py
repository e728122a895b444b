"""Writes Arrow rows to a Postgres table with COPY, on the driver or in a task."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ._lazy import psycopg, sql

if TYPE_CHECKING:
    import pyarrow as pa

#: Names of the predicates in ``pyarrow.types`` for the types that Arrow's CSV writer writes as psycopg does. Not ``float32``, of which
#: it writes fewer digits.
_IN_CSV = ("boolean", "integer", "float64", "decimal", "date", "timestamp", "string", "large_string")


def copy_rows(
    connection: psycopg.Connection[Any], table: sql.Composable, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> int:
    """Append ``batches``, all of ``schema``, to the columns of the same names. Returns the number of rows.

    If the schema has only plain types, Arrow writes the text itself, which is faster than row by row in Python. The values are
    the same either way.
    Raises `psycopg.Error`; nothing is written then.
    """
    from pyarrow import csv, types  # costs 0.1 s, which a job without this sink should not pay

    rows = 0
    plain = all(any(getattr(types, f"is_{known}")(kind) for known in _IN_CSV) for kind in schema.types)
    # Each value in quotes and each NULL without: Postgres reads an unquoted empty field as NULL, and "" as empty text.
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    columns = sql.SQL(", ").join(map(sql.Identifier, schema.names))
    # Arrow writes UTF-8, whatever the connection's encoding. Row by row, psycopg encodes.
    how = sql.SQL(" (FORMAT csv, ENCODING 'UTF8')" if plain else "")
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, columns) + how
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in batches:
            rows += batch.num_rows
            if plain:
                text = io.BytesIO()
                csv.write_csv(_with_exact_offsets(batch), text, options)
                copy.write(text.getbuffer())
            else:
                for row in tuples(batch):
                    copy.write_row(row)
    return rows


def _with_exact_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch``, with times as text if their zone's offset has seconds: local mean time, as in Berlin before 1893 (+00:53:28).

    Arrow writes such an offset without its seconds, which would be another moment.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, column in enumerate(batch.columns):
        if not pa.types.is_timestamp(column.type) or column.type.tz in (None, "UTC"):
            continue
        offset = pc.subtract(pc.local_timestamp(column).cast(pa.int64()), column.cast(pa.int64()))
        minute = 60 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        if pc.any(pc.not_equal(pc.multiply(pc.divide(offset, minute), minute), offset)).as_py():
            texts = [None if moment is None else moment.isoformat(" ") for moment in column.to_pylist()]
            batch = batch.set_column(place, batch.schema.names[place], pa.array(texts, pa.string()))
    return batch


def tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch as Python values."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
