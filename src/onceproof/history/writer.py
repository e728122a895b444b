"""Writes the history of a run as Parquet, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError
from onceproof.history.schema import TABLES, VERSION, VERSION_KEY

# A row group is held in memory. Rows are narrow, but one value may have 64 MiB, so both rows and bytes are bounded.
_GROUP_ROWS = 16_384
_GROUP_BYTES = 4 << 20
#: A tuple, and no sum of a generator: this is asked of each value of a history, and takes half the time.
_SIZED = (str, bytes)

#: How every file of a history is written. With checksums, because zstd decompresses many flipped bits without an error. Without
#: statistics, because they have no checksum, and wrong ones make a reader skip rows.
PARQUET: Mapping[str, Any] = {"compression": "zstd", "write_page_checksum": True, "write_statistics": False}


class HistoryWriter:
    """Appends observations to the tables of `onceproof.history.schema`, under ``run_dir/history``.

    Thread-safe. A table is called ``NAME.parquet.part`` until `close` has completed it, so a file that a killed harness left
    half written is never taken for a complete one. After `close` every table exists, empty where nothing was observed. As a
    context manager it completes the tables only if the body does not raise; otherwise they stay ``.part`` files.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "history"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._tables = {name: _TableWriter(self.folder / f"{name}.parquet", schema) for name, schema in TABLES.items()}
        self._closed = False

    def append(self, table: str, rows: Iterable[Mapping[str, Any]] | pa.RecordBatch) -> None:
        """Add rows (column -> value; a column left out is null) or a record batch of exactly the table's schema.

        Raises `HistoryError` for an unknown table or column, for a value that does not fit its column, and after `close`.
        """
        with self._lock:
            if self._closed:
                raise HistoryError(f"rows for {table!r} came after the history was closed")
            if table not in self._tables:
                raise HistoryError(f"a history has no table {table!r}; it has {', '.join(self._tables)}")
            writer = self._tables[table]
            if isinstance(rows, pa.RecordBatch):
                writer.add_batch(rows)
            else:
                for row in rows:
                    writer.add_row(row)

    def close(self) -> None:
        """Complete every table. Idempotent."""
        self._end(_TableWriter.close)

    def abandon(self) -> None:
        """Stop writing, and complete no table. Idempotent; does nothing after `close`."""
        self._end(_TableWriter.abandon)

    def _end(self, end: Callable[[_TableWriter], None]) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                for table in self._tables.values():
                    end(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class _TableWriter:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._schema = schema.with_metadata({VERSION_KEY: str(VERSION).encode()})
        self._columns = frozenset(schema.names)
        self._rows: list[Mapping[str, Any]] = []
        self._row_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._batch_rows = 0
        self._batch_bytes = 0
        self._file = pq.ParquetWriter(self._part, self._schema, **PARQUET)

    def add_row(self, row: Mapping[str, Any]) -> None:
        if unknown := row.keys() - self._columns:
            raise HistoryError(f"table {self._path.stem!r} has no column {sorted(unknown)[0]!r}")
        self._rows.append(row)
        for value in row.values():
            if isinstance(value, _SIZED):
                self._row_bytes += len(value)
        if len(self._rows) >= _GROUP_ROWS or self._row_bytes >= _GROUP_BYTES:
            self._flush()

    def add_batch(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._schema, check_metadata=False):
            raise HistoryError(f"a batch for table {self._path.stem!r} has the columns {batch.schema.to_string()}")
        self._take_rows()  # rows that were appended earlier are written first
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        self._batch_bytes += batch.nbytes
        if self._batch_rows >= _GROUP_ROWS or self._batch_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()
        self._part.replace(self._path)

    def abandon(self) -> None:
        # Closing writes a footer. If that fails, a full disk may be why the history is abandoned, and the first error
        # is reported.
        with suppress(OSError, pa.ArrowException):
            self._file.close()

    def _take_rows(self) -> None:
        if not self._rows:
            return
        try:
            batch = pa.RecordBatch.from_pylist([dict(row) for row in self._rows], schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise HistoryError(f"a row for table {self._path.stem!r} does not fit its columns: {error}") from error
        finally:
            self._rows, self._row_bytes = [], 0
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        self._batch_bytes += batch.nbytes

    def _flush(self) -> None:
        self._take_rows()
        if self._batches:
            self._file.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._batch_rows, self._batch_bytes = [], 0, 0
