"""COPY from Arrow writes the same values, whether Arrow writes the text or psycopg does row by row."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from onceproof.sinks import failpoints
from onceproof.sinks.postgres import PostgresAppend
from onceproof.sinks.postgres_copy import copy_rows, tuples
from onceproof.stack.embedded import EmbeddedStack

from .conftest import FakeCheckpoint

pytestmark = [pytest.mark.real, pytest.mark.services]

MOMENT = datetime(2013, 1, 1, 5, 0, 0, 12)
#: Arrow type, type of the column, values.
VALUES: tuple[tuple[pa.DataType, str, list[Any]], ...] = (
    (pa.bool_(), "boolean", [True, False, None]),
    (pa.int64(), "bigint", [2**63 - 1, -(2**63), None]),
    (pa.int8(), "smallint", [127, -128, None]),
    (pa.float64(), "double precision", [0.1, -0.0, 1e308, 5e-324, float("nan"), float("-inf"), None]),
    (pa.float32(), "double precision", [0.1, 16777217.0, None]),
    (pa.float32(), "real", [0.1, None]),
    (pa.decimal128(38, 18), "numeric", [Decimal("0.000000000000000001"), Decimal("-99999999999999999999.5"), None]),
    (pa.decimal128(10, 0), "numeric", [Decimal(0), Decimal(9999999999), None]),
    (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31), None]),
    (pa.timestamp("us"), "timestamp", [MOMENT, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    (pa.timestamp("us", "UTC"), "timestamp", [MOMENT, None]),
    (pa.timestamp("us", "UTC"), "timestamptz", [MOMENT, None]),
    (pa.timestamp("us", "America/New_York"), "timestamp", [MOMENT, None]),
    (pa.timestamp("us", "America/New_York"), "timestamptz", [MOMENT, None]),
    # In local mean time: the offset of the zone has seconds.
    (pa.timestamp("us", "America/New_York"), "timestamp", [datetime(1880, 1, 1), MOMENT, None]),
    (pa.timestamp("us", "America/New_York"), "timestamptz", [datetime(1880, 1, 1), datetime(1, 1, 2), MOMENT, None]),
    (pa.timestamp("ms", "Europe/Berlin"), "timestamptz", [datetime(1, 1, 2), datetime(1893, 5, 1), None]),
    (pa.string(), "text", ["", "a", 'x "y", z\nw\r', "\\.", "\\N", "NULL", "\u20ac", " ", None]),
    (pa.large_string(), "text", ["", "\\.\n\\.", None]),
    (pa.binary(), "bytea", [b"", b"\\x00\x00\xff", None]),
    (pa.list_(pa.int64()), "bigint[]", [[1, 2], [], None]),
)


@pytest.fixture(scope="module")
def connection(stack: EmbeddedStack) -> Iterator[psycopg.Connection[Any]]:
    assert stack.postgres is not None
    with psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("arrow", "column", "values"), VALUES, ids=[f"{arrow}-{column}" for arrow, column, _ in VALUES]
)
def test_the_values_are_those_of_psycopg(
    arrow: pa.DataType, column: str, values: list[Any], connection: psycopg.Connection[Any]
) -> None:
    rows = pa.table({"n": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, arrow)})
    one, other = (f"t{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in (one, other):
        connection.execute(f"CREATE TABLE {name} (n bigint, v {column})".encode())
    written = copy_rows(connection, sql.Identifier(one), rows.schema, rows.to_batches(max_chunksize=2))
    with connection.cursor() as cursor, cursor.copy(f"COPY {other} (n, v) FROM STDIN".encode()) as copy:
        for batch in rows.to_batches():
            for row in tuples(batch):
                copy.write_row(row)

    def stored(name: str) -> list[Any]:
        # As text: in Python, NaN does not equal itself, and 0.0 equals -0.0.
        return connection.execute(f"SELECT n, v::text FROM {name} ORDER BY n".encode()).fetchall()

    assert written == len(values)
    assert stored(one) == stored(other)
    assert len(stored(one)) == len(values)


@pytest.fixture(scope="module")
def latin1(stack: EmbeddedStack) -> str:
    """Where a database is whose encoding is not UTF-8."""
    assert stack.postgres is not None
    name = f"t{uuid.uuid4().hex[:8]}"
    with psycopg.connect(stack.postgres.harness_conninfo, autocommit=True) as maker:
        maker.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'".encode())
    return make_conninfo(stack.postgres.harness_conninfo, dbname=name)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("row_by_row", [False, True])
def test_text_is_stored_in_the_encoding_of_the_database(latin1: str, kind: pa.DataType, row_by_row: bool) -> None:
    text = "caf\u00e9 \u00df"
    rows = pa.table({"v": pa.array([text, "", None], kind), "n": [1, 2, 3]})
    if row_by_row:  # as it is for a schema with a list
        rows = rows.set_column(1, "n", pa.array([[1], [2], [3]]))
    with psycopg.connect(latin1) as connection:
        connection.execute(f"CREATE TEMPORARY TABLE texts (v text, n bigint{'[]' if row_by_row else ''})".encode())
        copy_rows(connection, sql.Identifier("texts"), rows.schema, rows.to_batches())
        stored = connection.execute("SELECT v, octet_length(v) FROM texts ORDER BY n").fetchall()
    assert stored == [(text, len(text)), ("", 0), (None, None)]


@pytest.mark.parametrize(
    ("numbers", "error"), [([1], psycopg.errors.UntranslatableCharacter), ([[1]], UnicodeEncodeError)], ids=str
)
def test_text_that_the_database_cannot_store_fails_the_batch(
    latin1: str, numbers: list[Any], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(failpoints, "report", lambda event, **_facts: events.append(event))
    table = f"t{uuid.uuid4().hex[:8]}"
    with psycopg.connect(latin1) as connection:
        connection.execute(f"CREATE TABLE {table} (v text, n bigint{'[]' * isinstance(numbers[0], list)})".encode())
    sink = PostgresAppend(latin1, table, pipeline=table, checkpoint=FakeCheckpoint(tmp_path, [1]).folder)
    with pytest.raises(error):
        sink.write(pa.table({"v": ["\u20ac"], "n": numbers}), 0)
    assert events == ["attempt-failed"]
    with psycopg.connect(latin1) as connection:
        assert connection.execute(f"SELECT * FROM {table}".encode()).fetchall() == []
