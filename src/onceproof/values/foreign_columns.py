"""Reads records and rows from a user's Parquet file column by column: as `onceproof.values.foreign_files` does row by row, and faster.

A piece of the file is read so only if that certainly gives the same values: strings, bytes, whole numbers, booleans, doubles,
decimals, dates, and times in UTC. A piece with anything else (nested values, a value that must be refused, ...) is read row by
row, which also words the error. Texts are made by DuckDB, whose doubles and strings are those of Python's `json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceproof.values import foreign_files
from onceproof.values.canonical import literal
from onceproof.values.foreign_files import Numbered, Row

#: A file's records: either a table with the columns of `COLUMNS`, or records one by one.
Piece: TypeAlias = pa.Table | Iterator[dict[str, Any]]

#: The columns of a table of records. All but the key, the value and the time are never null.
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("visibility", pa.string()),
    ]
)

# Python's `json` writes these control characters otherwise than DuckDB; NUL and others are rare in texts.
_CONTROLS = r"[\x00-\x07\x0b\x0e-\x1f]"
# Between these, both write a 32-bit float without an exponent.
_SMALL_FLOAT, _PLAIN_FLOAT = 1e-3, 1e6


def records(path: Path) -> Iterator[Piece]:
    """Every record of a Parquet file, in pieces. Raises `UsageError` as `foreign_files.records` does."""
    numbered, texts = Numbered(), _Texts()
    for number, table in foreign_files.parquet_tables(path):
        found = _records(table, numbered, texts)
        yield numbered.records(foreign_files.rows_of(path, number, table)) if found is None else found


def documents(path: Path, *, as_texts: bool) -> Iterator[pa.StringArray | Iterator[Row]]:
    """Every row of a Parquet file as the text of a JSON object, in pieces; or row by row.

    ``as_texts``: each value is a string in JSON, as the text that `foreign_files.as_text` makes of it.
    """
    texts = _Texts()
    for number, table in foreign_files.parquet_tables(path):
        found = texts.documents(table, as_texts=as_texts)
        yield foreign_files.rows_of(path, number, table) if found is None else found


def as_strings(values: pa.Array) -> pa.Array | None:
    """Bytes as strings; None if some are not UTF-8."""
    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return texts


def _records(table: pa.Table, numbered: Numbered, texts: _Texts) -> pa.Table | None:
    names = set(table.column_names)
    if names & {"value", "value_base64"}:
        if names & {"value_base64", "key_base64"} or not names <= set(foreign_files.FIELDS):
            return None
        value = _bytes(table["value"])
    else:
        documents = texts.documents(table, as_texts=False)
        value = None if documents is None else documents.cast(pa.binary())
        table = table.select([])
    found = {
        "key": _given(table, "key", _bytes, lambda n: pa.nulls(n, pa.binary())),
        "value": value,
        "partition": _given(table, "partition", _counts, lambda n: pa.array(np.zeros(n, np.int64))),
        "timestamp_ms": _given(table, "timestamp_ms", _times, lambda n: pa.nulls(n, pa.int64())),
        "visibility": _given(table, "visibility", _visibility, lambda n: pa.repeat("committed", n)),
    }
    rows = len(value) if value is not None else 0
    columns = {name: make(rows) if callable(make) else make for name, make in found.items()}
    if any(column is None for column in columns.values()):
        return None
    own = table["offset"] if "offset" in names & set(table.column_names) else None
    if own is not None and own.null_count == rows:
        own = None
    offsets = None if own is None else _counts(own, nulls=False)
    if own is not None and offsets is None:
        return None
    given = numbered.of_columns(columns["partition"].to_numpy(), None if offsets is None else offsets.to_numpy())
    if given is None:
        return None
    columns["offset"] = pa.array(given)
    try:
        return pa.table({field.name: columns[field.name].cast(field.type) for field in COLUMNS}, schema=COLUMNS)
    except pa.ArrowInvalid:  # a partition beyond 32 bits
        return None


def _given(table: pa.Table, name: str, read: Callable[[pa.ChunkedArray], Any], default: Callable[[int], Any]) -> Any:
    return read(table[name]) if name in table.column_names else default


def _bytes(column: pa.ChunkedArray) -> pa.Array | None:
    kind = column.type
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks == 1 else pa.concat_arrays(whole.chunks)
    if pa.types.is_null(kind):
        return whole.cast(pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return whole.cast(pa.binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            whole.validate(full=True)
        except pa.ArrowInvalid:
            return None
        return whole.cast(pa.binary())
    return None


def _counts(column: pa.ChunkedArray, *, nulls: bool = True) -> pa.Array | None:
    """Whole numbers from 0 up; a null is 0."""
    if not pa.types.is_integer(column.type) or (column.null_count and not nulls):
        return None
    try:
        numbers = pc.fill_null(column.cast(pa.int64()), 0)
    except pa.ArrowInvalid:
        return None
    if len(numbers) and pc.min(numbers).as_py() < 0:
        return None
    return pa.concat_arrays(numbers.chunks) if numbers.num_chunks else pa.array([], pa.int64())


def _times(column: pa.ChunkedArray) -> pa.Array | None:
    """Milliseconds since 1970, of whole numbers or of times in microseconds."""
    is_time = pa.types.is_timestamp(column.type) and column.type.unit == "us"
    if not (is_time or pa.types.is_integer(column.type)):
        return None
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if numbers.null_count < len(numbers) and pc.min(numbers).as_py() < 0:
        return None
    numbers = pc.divide(numbers, 1000) if is_time else numbers
    return pa.concat_arrays(numbers.chunks) if numbers.num_chunks else pa.array([], pa.int64())


def _visibility(column: pa.ChunkedArray) -> pa.Array | None:
    if not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        return None
    words = pc.fill_null(column.cast(pa.string()), "committed")
    if not pc.all(pc.is_in(words, value_set=pa.array(foreign_files.VISIBILITY))).as_py():
        return None
    return pa.concat_arrays(words.chunks) if words.num_chunks else pa.array([], pa.string())


class _Texts:
    """Makes JSON texts of the rows of a table, by a database of its own."""

    def __init__(self) -> None:
        self._db = duckdb.connect(config={"threads": 2})
        self._db.execute("SET TimeZone = 'UTC'")

    def documents(self, table: pa.Table, *, as_texts: bool) -> pa.StringArray | None:
        """The rows as JSON objects; None if they must be read one by one."""
        query = _query(table, as_texts=as_texts)
        if query is None:
            return None
        # By number: to DuckDB, names that differ only by case are the same.
        self._db.register("piece", table.rename_columns([f"c{number}" for number in range(table.num_columns)]))
        try:
            texts = self._db.sql(query).to_arrow_table()["document"].cast(pa.string())
        except duckdb.Error:  # a value that DuckDB does not take: row by row, it is read or refused
            return None
        finally:
            self._db.unregister("piece")
        return pa.concat_arrays(texts.chunks) if texts.num_chunks else pa.array([], pa.string())


def _query(table: pa.Table, *, as_texts: bool) -> str | None:
    """SQL for the rows of ``piece``, whose columns are ``c0``, ``c1``, ...; None if they must be read one by one."""
    members = []
    for number, field in enumerate(table.schema):
        text = _text(table.column(number), f"c{number}", as_texts=as_texts)
        if text is None:
            return None
        name = foreign_files.as_json(field.name) + ":"
        members.append(f"{literal(name)} || coalesce({text}, 'null')")
    if not members:
        return None
    fields = " || ',' || ".join(members)
    return f"SELECT '{{' || {fields} || '}}' AS document FROM piece"  # noqa: S608


def _text(column: pa.ChunkedArray, name: str, *, as_texts: bool) -> str | None:
    """SQL for the JSON text of a column's values; None if this column must be read row by row."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return None
        odd = pc.any(pc.match_substring_regex(column, _CONTROLS)).as_py()
        return None if odd else f"to_json({name})::VARCHAR"
    plain = _plain(column, kind, name)
    if plain is None:
        return None
    text, is_string = plain
    return f"""('"' || {text} || '"')""" if is_string or as_texts else text


def _plain(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> tuple[str, bool] | None:
    """SQL for the text of a value without characters that JSON escapes, and whether it is a string in JSON."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal128(kind):
        return f"{name}::VARCHAR", False
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        return (f"{name}::VARCHAR", False) if _is_plain_float(column, kind) else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"('\\\\x' || lower(hex({name})))", True
    if pa.types.is_date32(kind) and _within_four_digits(column.cast(pa.timestamp("s"))):
        return f"strftime({name}, '%Y-%m-%d')", True
    if pa.types.is_timestamp(kind) and kind.tz in (None, "UTC") and _within_four_digits(column):
        local = f"{name}::TIMESTAMP" if kind.tz is None else f"({name} AT TIME ZONE 'UTC')"
        zone = "" if kind.tz is None else "+00:00"
        fraction = f"CASE WHEN epoch_us({local}) % 1000000 = 0 THEN '' ELSE strftime({local}, '.%f') END"
        return f"(strftime({local}, '%Y-%m-%dT%H:%M:%S') || {fraction} || '{zone}')", True
    return None


def _is_plain_float(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether all values are finite, and DuckDB writes them as Python or numpy does."""
    values = column.drop_null()
    if not pc.all(pc.is_finite(values)).as_py() and len(values):
        return False
    if pa.types.is_float64(kind):
        return True
    sizes = pc.abs(values)
    small = pc.and_(pc.less(sizes, _SMALL_FLOAT), pc.not_equal(sizes, 0))
    return not pc.any(pc.or_(pc.greater_equal(sizes, _PLAIN_FLOAT), small)).as_py()


def _within_four_digits(column: pa.ChunkedArray) -> bool:
    """Whether all years have four digits."""
    years = pc.min_max(pc.year(column))
    low, high = years["min"].as_py(), years["max"].as_py()
    return low is None or (low >= 1000 and high <= 9999)
