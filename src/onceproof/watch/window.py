"""A window: the input records between two sets of offsets, and how far the output had been read when it was closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

#: (topic or output, partition) -> the next offset to read.
Positions = Mapping[tuple[str, int], int]

#: A window with more input records is closed at once, so that judging it takes a bounded amount of memory. It is less than
#: `onceproof.oracle.contract.inputs.CHEAP_ROWS`, so the judge loads a window whole.
MOST_RECORDS = 100_000


@dataclass
class Window:
    """Input records that are judged together. Later windows begin where this one ends."""

    number: int
    start: dict[tuple[str, int], int]
    """Where each input partition began; one that is not listed began at 0."""
    lead_in: bool = False
    """Its records were written before the watch began: they explain rows, and are not judged themselves."""
    records: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    """Rows of the table ``input``, in offset order within a partition."""
    end: dict[tuple[str, int], int] = field(default_factory=dict)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    """How far each output partition had been read before the input's ends were asked for. The causes of rows before these offsets are
    in this window or an earlier one, because a row is written after its cause."""
    closed_at: float = 0.0
    """Seconds of a monotonic clock."""

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.records += batch.num_rows

    def ranges(self) -> str:
        """The offsets that it covers, in words: ``orders/0@5 to 19``; at most four partitions."""
        found = [
            f"{topic}/{partition}@{self.start.get((topic, partition), 0)} to {end - 1}"
            for (topic, partition), end in sorted(self.end.items())
            if end > self.start.get((topic, partition), 0)
        ]
        more = f", and {len(found) - 4} more" if len(found) > 4 else ""
        return ", ".join(found[:4]) + more


def reached(positions: Positions, ends: Positions) -> bool:
    """Whether every one of these ends has been read."""
    return all(positions.get(place, 0) >= end for place, end in ends.items())


def behind(positions: Positions, ends: Positions) -> int:
    """How many offsets lie between the two. Markers of transactions count, so it is an upper bound for records."""
    return sum(max(0, end - positions.get(place, 0)) for place, end in ends.items())


def following(starts: Positions, batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int], int]:
    """The positions after these records of the input."""
    found = dict(starts)
    for batch in batches:
        if batch.num_rows:
            last = batch.num_rows - 1
            place = (batch.column("topic")[last].as_py(), batch.column("partition")[last].as_py())
            found[place] = batch.column("offset")[last].as_py() + 1
    return found
