"""Parquet files are imported column by column, with exactly the result of reading them row by row."""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceproof.base.errors import UsageError
from onceproof.values import foreign_columns, foreign_files

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=6)),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "truth": (pa.bool_(), st.booleans()),
    "fraction": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "money": (
        pa.decimal128(12, 4),
        st.decimals(Decimal(-9999), Decimal(9999), places=4, allow_nan=False, allow_infinity=False),
    ),
    "day": (pa.date32(), st.dates()),
    "local": (pa.timestamp("us"), TIMES),
    "second": (pa.timestamp("s"), TIMES.map(lambda t: t.replace(microsecond=0))),
    "instant": (pa.timestamp("us", "UTC"), TIMES.map(lambda t: t.replace(tzinfo=dt.UTC))),
    "clock": (pa.time64("us"), st.times()),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=2)),
}
PLAIN = ("text", "bytes", "whole", "truth", "fraction", "money", "day", "local", "instant")


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 4))
    columns = {}
    for number, name in enumerate(kinds):
        kind, values = KINDS[name]
        found = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[draw(st.sampled_from([name, f'a "{number}"', f"n'{number}"]))] = pa.array(found, kind)
    return pa.table(columns)


@settings(deadline=None)
@given(table=tables())
def test_rows_have_the_text_that_reading_row_by_row_gives(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.parquet"
        pq.write_table(table, file)
        assert _records(foreign_columns.records(file)) == _records([foreign_files.records(file)])
        by_row = [
            foreign_files.as_json({name: foreign_files.as_text(value) for name, value in row.items()})
            for _, row in foreign_files.rows(file)
        ]
        assert _documents(foreign_columns.documents(file, as_texts=True)) == by_row


@st.composite
def record_tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 5))

    def column(kind: pa.DataType, values: st.SearchStrategy[Any]) -> pa.Array:
        return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)

    texts = draw(st.sampled_from([(pa.string(), TEXTS), (pa.binary(), st.binary(max_size=4))]))
    columns = {"value": column(texts[0], st.none() | texts[1])}
    more = {
        "key": (pa.string(), st.none() | TEXTS),
        "partition": (pa.int32(), st.none() | st.integers(-1, 2)),
        "offset": (pa.int64(), st.none() | st.integers(0, 9)),
        "timestamp_ms": draw(
            st.sampled_from([(pa.int64(), st.none() | st.integers(-5, 2**45)), (pa.timestamp("us"), st.none() | TIMES)])
        ),
        "visibility": (pa.string(), st.none() | st.sampled_from(["committed", "aborted", "open", "lost"])),
    }
    for name in draw(st.lists(st.sampled_from(list(more)), unique=True)):
        columns[name] = column(*more[name])
    return pa.table(columns)


@settings(deadline=None)
@given(table=record_tables())
def test_records_are_those_of_reading_row_by_row(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.parquet"
        pq.write_table(table, file)
        assert _or_error(lambda: _records(foreign_columns.records(file))) == _or_error(
            lambda: _records([foreign_files.records(file)])
        )


@pytest.mark.parametrize("name", PLAIN)
def test_plain_types_are_read_column_by_column(tmp_path: Path, name: str) -> None:
    kind, _ = KINDS[name]
    value = {
        "text": 'a "b"\n',
        "bytes": b"\x00",
        "whole": 5,
        "truth": True,
        "fraction": 0.5,
        "money": Decimal("1.5"),
        "day": dt.date(2013, 1, 1),
        "local": dt.datetime(2013, 1, 1),
        "instant": dt.datetime(2013, 1, 1, tzinfo=dt.UTC),
    }[name]
    pq.write_table(pa.table({"x": pa.array([value, None], kind)}), tmp_path / "rows.parquet")
    assert all(isinstance(piece, pa.Table) for piece in foreign_columns.records(tmp_path / "rows.parquet"))


def _records(pieces: Any) -> list[dict[str, Any]]:
    """All records, with the defaults of what a record need not have."""
    found = []
    for piece in pieces:
        found += piece.to_pylist() if isinstance(piece, pa.Table) else piece
    return [{"timestamp_ms": None, "visibility": "committed", **record} for record in found]


def test_columns_whose_names_differ_only_by_case(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"A": [1, 2], "a": ["x", "y"], "A_1": [3, 4]}), file)
    (first, _) = _records(foreign_columns.records(file))
    assert first["value"] == b'{"A":1,"a":"x","A_1":3}'
    assert _records(foreign_columns.records(file)) == _records([foreign_files.records(file)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3_000_000], pa.date32()),
        pa.array([-800_000], pa.date32()),
        pa.array([253_402_300_800_000_000], pa.timestamp("us")),
        pa.array([{"x": 253_402_300_800_000_000}], pa.struct([("x", pa.timestamp("us"))])),
    ],
)
def test_dates_beyond_the_calendar_are_refused(tmp_path: Path, column: pa.Array) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"t": column}), file)
    with pytest.raises(UsageError, match=r"rows\.parquet cannot be read after row 0") as refused:
        _records(foreign_columns.records(file))
    assert refused.value.hint == "dates and times must be in the years 1 to 9999"


def test_old_times_of_96_bits_keep_their_range(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    times = [dt.datetime(9999, 12, 31), dt.datetime(2020, 1, 1, 1, 2, 3, 456789)]
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us"))}), file, use_deprecated_int96_timestamps=True)
    assert [row["t"] for _, row in foreign_files.rows(file)] == times


def _documents(pieces: Any) -> list[str]:
    found: list[str] = []
    for piece in pieces:
        if isinstance(piece, pa.Array):
            found += piece.to_pylist()
        else:
            found += [
                foreign_files.as_json({name: foreign_files.as_text(value) for name, value in row.items()})
                for _, row in piece
            ]
    return found


def _or_error(read: Any) -> Any:
    try:
        return read()
    except UsageError as error:
        return str(error)


def test_a_file_of_many_groups_is_read_in_the_memory_of_a_few(tmp_path: Path) -> None:
    """What was read of a group is dropped with it: the memory does not grow with the file."""
    file, dice = tmp_path / "many.parquet", random.Random(4)  # bytes that cannot be compressed
    with pq.ParquetWriter(file, pa.schema([("value", pa.binary())])) as writer:
        for _ in range(40):
            writer.write(pa.table({"value": pa.array([dice.randbytes(200_000)], pa.binary())}))
    before, most = pa.total_allocated_bytes(), 0
    for _ in foreign_columns.records(file):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 200_000 <= most < 10 * 200_000
