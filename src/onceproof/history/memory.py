"""The tables of a history in memory, for executions that are compared before one of them is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from onceproof.history.schema import TABLES
from onceproof.history.writer import HistoryWriter


class MemoryTables:
    """Rows of the tables of `onceproof.history.schema`. Takes what `HistoryWriter` takes, and checks nothing."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Mapping[str, Any] | pa.RecordBatch]] = {name: [] for name in TABLES}

    def append(self, table: str, rows: Iterable[Mapping[str, Any]] | pa.RecordBatch) -> None:
        if isinstance(rows, pa.RecordBatch):
            self.tables[table].append(rows)
        else:
            self.tables[table].extend(rows)

    def rows(self, table: str) -> list[Mapping[str, Any]]:
        """The rows of a table, those of record batches too."""
        found: list[Mapping[str, Any]] = []
        for item in self.tables[table]:
            found.extend(item.to_pylist() if isinstance(item, pa.RecordBatch) else [item])
        return found

    def write(self, writer: HistoryWriter) -> None:
        """Append everything to a history. Raises `HistoryError` for a value that does not fit its column."""
        for table, items in self.tables.items():
            for item in items:
                writer.append(table, item if isinstance(item, pa.RecordBatch) else [item])
