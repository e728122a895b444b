"""Checks a stored history against its format: reads every page of every file once, and refuses what the format forbids.

Checkers trust what they read, so a damaged page or a repeated row could end in a wrong ``held``. `docs/history.md` describes
the format. Rows are numbered from 0 within their file, as in DuckDB's ``file_row_number``.

Files are read in row groups, so a history of any size needs the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError
from onceproof.base.registry import suggest
from onceproof.history.reader import History
from onceproof.history.run_record import AGAIN
from onceproof.history.schema import TABLES
from onceproof.history.version import refuse_other_version
from onceproof.scenario.modes import without_batches
from onceproof.values.lanes import Lanes

_VISIBILITY = ("committed", "aborted", "open")
_WRITER = "the program that wrote this history broke the format (docs/history.md): fix that program"
_BATCH_ROWS = 65_536
# Times have microseconds, so a time that was rounded up may seem to be after its successor.
_ROUNDING_S = 1e-5


@dataclass(frozen=True)
class Rules:
    """The rules of the format for one table, besides the types of its columns."""

    required: tuple[str, ...] = ()
    """Columns that are never null."""
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Column -> its allowed values."""
    counts: tuple[str, ...] = ()
    """Columns that are never negative."""
    ascending: tuple[tuple[str, str], ...] = ()
    """Pairs of columns: where both are known, the first is never greater than the second."""
    proves: tuple[str, tuple[str, ...]] | None = None
    """A boolean column, and the columns that are known where it is true."""
    unique: tuple[str, ...] = ()
    """Columns that together identify a row (small tables only, because their values are kept in memory)."""
    lane: tuple[str, ...] = ()
    position: str | None = None
    """The column that rises strictly from row to row within a lane."""


RULES: dict[str, Rules] = {
    "input": Rules(
        required=("topic", "partition", "offset", "visibility"),
        words={"visibility": _VISIBILITY},
        counts=("partition", "offset"),
        ascending=(("offset", "txn_end_offset"),),
        lane=("topic", "partition"),
        position="offset",
    ),
    "sent": Rules(
        required=("topic", "seq", "status"),
        words={"status": ("acked", "failed", "unknown")},
        counts=("seq", "partition", "offset"),
    ),
    "output": Rules(
        required=("output", "op", "offset", "visibility"),
        words={"op": ("insert", "update", "delete", "truncate"), "visibility": _VISIBILITY},
        counts=("partition", "offset", "commit_order"),
        ascending=(("offset", "txn_end_offset"),),
        lane=("output", "partition"),
        position="offset",
    ),
    "partitions": Rules(
        required=("topic", "partition", "start_offset", "stable_offset", "end_offset"),
        counts=("partition", "start_offset", "stable_offset", "end_offset"),
        ascending=(("start_offset", "stable_offset"), ("stable_offset", "end_offset")),
        unique=("topic", "partition"),
    ),
    "snapshot": Rules(required=("output", "content")),
    "commits": Rules(required=("commit_order", "xid"), counts=("commit_order",), position="commit_order"),
    "progress": Rules(
        required=("query", "batch", "topic", "partition", "end_offset"),
        counts=("batch", "partition", "end_offset"),
        unique=("query", "batch", "topic", "partition"),
    ),
    "batches": Rules(
        required=("query", "batch", "topic", "partition", "start_offset", "end_offset"),
        counts=("batch", "partition", "start_offset", "end_offset", "planned_by", "committed_by"),
        ascending=(("start_offset", "end_offset"), ("planned_at", "committed_at")),
        unique=("query", "batch", "topic", "partition"),
    ),
    "faults": Rules(
        required=("index", "fault", "target"),
        counts=("index", "batch"),
        ascending=(("armed_at", "fired_at"), ("fired_at", "healed_at"), ("armed_at", "healed_at")),
        proves=("hit", ("armed_at", "fired_at")),
        unique=("index",),
    ),
}


def check(history: History) -> None:
    """Read every page of every table. Raises `HistoryError` with the file, the row, the value and a hint."""
    refuse_other_version(history.run.schema_, history.run.onceproof)
    for table, path in history.tables.items():
        _Table(path, RULES[table], TABLES[table], without_batches(history.run.modes)).check()
    _check_faults(history)
    stored = [
        path for folder in ("expected", "decoded") for path in (history.run_dir / "history" / folder).glob("*.parquet")
    ]
    for path in [*history.static.values(), *sorted(stored)]:
        for _ in _pieces(path):
            pass


def _check_faults(history: History) -> None:
    """Check that the faults are those of the scenario, if there are as many: a slice has some of both, in the same order."""
    planned = history.run.scenario.chaos or []
    if not planned or history.footers["faults"].num_rows != len(planned):
        return
    names = ["index", "fault", "target", "batch", "point"]
    rows = pq.read_table(history.tables["faults"], columns=names).to_pylist()
    for number, (row, fault) in enumerate(zip(sorted(rows, key=lambda row: row["index"]), planned, strict=True)):
        at = fault.get("at")
        wanted = {**fault, **(at if isinstance(at, dict) else {})}
        for name in names[1:]:
            if wanted.get(name) is not None and row[name] != wanted[name]:
                raise HistoryError(
                    f"{history.tables['faults']}, index {row['index']}: {name} {row[name]!r} is not {wanted[name]!r}, as in entry "
                    f"{number} of the scenario's chaos",
                    hint=_WRITER,
                )


class _Table:
    def __init__(self, path: Path, rules: Rules, schema: pa.Schema, goes_back: list[str]) -> None:
        """``goes_back``: queries whose offset log may go back."""
        self._goes_back = pa.array(goes_back, pa.string())
        self._path = path
        self._rules = rules
        self._seen: dict[tuple[Any, ...], int] = {}
        self._lanes = Lanes()
        # Few distinct values in many rows: read as a dictionary, each value is checked once per row group.
        text = {f.name for f in schema if f.type == pa.string()}
        self._words = [name for name in {*rules.words, *rules.lane} if name in text]

    def check(self) -> None:
        rules = self._rules
        for first, rows in _pieces(self._path, self._words):
            for name in rules.required:
                if rows[name].null_count:
                    self._refuse(first, rows, pc.is_null(rows[name]), name, "may not be null")
            for name, allowed in rules.words.items():
                self._only(first, rows, name, allowed, f"is not one of {', '.join(allowed)}")
            for name in rules.counts:
                if _least(rows[name]) < 0:
                    self._refuse(first, rows, pc.less(rows[name], 0), name, "may not be negative")
            for low, high in rules.ascending:
                self._ascending(first, rows, low, high)
            if rules.proves is not None:
                claim, known = rules.proves
                for name in known:
                    wrong = pc.and_(pc.fill_null(rows[claim], False), pc.is_null(rows[name]))
                    self._refuse(first, rows, wrong, name, f"may not be null where {claim} is true")
            if rules.unique:
                self._unique(first, rows)
            if rules.position is not None:
                self._rising(first, rows, rules.position)

    def _only(self, first: int, rows: pa.Table, name: str, allowed: tuple[str, ...], why: str) -> None:
        column = rows[name]
        for chunk in column.chunks:
            strange = [word for word in chunk.dictionary.to_pylist() if word not in allowed]
            if strange:  # the dictionary may hold values that no row has
                wrong = pc.is_in(column.cast(pa.string()), value_set=pa.array(strange, pa.string()))
                self._refuse(first, rows, wrong, name, why, suggest(strange[0], list(allowed)))
                return

    def _ascending(self, first: int, rows: pa.Table, low: str, high: str) -> None:
        wrong = pc.greater(rows[low], rows[high])
        if low.endswith("_at") and pc.any(wrong).as_py():
            wrong = pc.greater(rows[low], pc.add(rows[high], _ROUNDING_S))
        if low == "start_offset" and "query" in rows.column_names and len(self._goes_back):
            wrong = pc.and_not(wrong, pc.is_in(rows["query"], value_set=self._goes_back))
        self._refuse(first, rows, wrong, low, f"is greater than its {high}", other=high)

    def _unique(self, first: int, rows: pa.Table) -> None:
        columns = [rows[name].to_pylist() for name in self._rules.unique]
        for number, name in enumerate(zip(*columns, strict=True), start=first):
            if name in self._seen:
                values = ", ".join(f"{c} {v!r}" for c, v in zip(self._rules.unique, name, strict=True))
                raise self._error(number, f"{values} is already in row {self._seen[name]}")
            self._seen[name] = number

    def _rising(self, first: int, rows: pa.Table, position: str) -> None:
        found = self._lanes.fall([rows[name] for name in self._rules.lane], rows[position])
        if found is not None:
            row, before = found
            where = "".join(f"{name} {rows[name][row].as_py()!r}, " for name in self._rules.lane)
            value = rows[position][row].as_py()
            what = "occurs twice" if value == before else f"comes after {before}"
            raise self._error(first + row, f"{where}{position} {value} {what}, but it must rise from row to row")

    def _refuse(
        self, first: int, rows: pa.Table, wrong: Any, name: str, why: str, near: str = "", other: str | None = None
    ) -> None:
        if not pc.any(wrong).as_py():
            return
        row = pc.index(wrong, pa.scalar(True)).as_py()
        value = rows[name][row].as_py()
        limit = "" if other is None else f" {rows[other][row].as_py()!r}"
        raise self._error(first + row, f"{name} {value!r} {why}{limit}{near and f' ({near})'}")

    def _error(self, row: int, what: str) -> HistoryError:
        return HistoryError(f"{self._path}, row {row}: {what}", hint=_WRITER)


def _least(numbers: pa.ChunkedArray) -> int:
    """The least number, or 0 if there is none. Takes a fraction of the time of a comparison with 0."""
    least: int | None = pc.min_max(numbers)["min"].as_py()
    return 0 if least is None else least


def _pieces(path: Path, words: list[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
    """All rows in pieces, fully decoded and with checksums verified: the number of the first row, and the rows."""
    read = 0
    try:
        with pq.ParquetFile(path, read_dictionary=words, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                before = read
                # One thread: handing out the columns of a small row group to several costs more than it saves.
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                    for column in batch.columns:
                        column.validate(full=pa.types.is_string(column.type))
                    yield read, pa.Table.from_batches([batch])
                    read += batch.num_rows
                _check_metadata(file, group, read - before)
            if read != file.metadata.num_rows:
                raise pa.ArrowInvalid(f"it has {read} rows, but its metadata has {file.metadata.num_rows}")
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} is damaged after row {read}: {error}", hint=AGAIN) from error


def _check_metadata(file: pq.ParquetFile, group: int, rows: int) -> None:
    """Compare a row group with its metadata, which has no checksum and which other readers rely on."""
    metadata = file.metadata.row_group(group)
    values = {
        metadata.column(column).num_values
        for column in range(metadata.num_columns)
        if file.schema.column(column).max_repetition_level == 0  # a list has as many as it has elements
    }
    if not {metadata.num_rows, *values} <= {rows}:
        raise pa.ArrowInvalid(
            f"row group {group} has {rows} rows, but its metadata has {metadata.num_rows}, with columns of {values}"
        )
