"""Numbers the records of a topic that was created again: its offsets begin at 0 again, but a place in a history exists once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceproof.stores.kafka.read_back import Rows

_OF_INPUT = ("offset", "txn_end_offset")
_OF_PARTITIONS = ("start_offset", "stable_offset", "end_offset")


class NumberedOn:
    """Writes the rows of the only partition of ``topic`` with ``by`` added to each offset: the number of records of the old topic.

    Implements `onceproof.stores.kafka.read_back.Rows`; everything else is passed on as it is.
    """

    def __init__(self, writer: Rows, topic: str, by: int) -> None:
        self._writer = writer
        self._topic = topic
        self._by = by

    def append(self, table: str, rows: Iterable[Mapping[str, Any]] | pa.RecordBatch) -> None:
        if isinstance(rows, pa.RecordBatch):
            self._writer.append(table, self._shifted(rows) if table == "input" else rows)
        else:
            self._writer.append(table, map(self._counted_on, rows) if table == "partitions" else rows)

    def _shifted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for name in _OF_INPUT:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pc.add(rows.column(name), self._by))
        return rows

    def _counted_on(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if row["topic"] != self._topic:
            return row
        return {**row, **{name: row[name] + self._by for name in _OF_PARTITIONS}}
