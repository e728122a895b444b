"""The rows of a task by the source partition that they come from, as their columns of topic, partition and offset show it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import SinkError
from ..offsets import Ranges

if TYPE_CHECKING:
    import pyarrow as pa

Place = tuple[str, str]
"""Topic and partition."""


class SourceColumns:
    """The columns of a row with its place in the input: partition and offset, or topic, partition and offset."""

    def __init__(self, names: Sequence[str]) -> None:
        """Raises `SinkError`."""
        if isinstance(names, str) or len(names) not in (2, 3):
            raise SinkError(
                f"source is {names!r}, not the names of two or three columns",
                hint="name the columns with each row's partition and offset, or its topic, partition and offset",
            )
        self.names = tuple(names)
        *self._topic, self._partition, self.offset = self.names

    def demand(self, columns: Sequence[str]) -> None:
        """Raise `SinkError` if a batch lacks one of the columns."""
        if missing := [name for name in self.names if name not in columns]:
            raise SinkError(
                f"the batch has no column {missing[0]!r}, but {', '.join(columns)}",
                hint="select partition and offset of the Kafka source (and topic, if it reads several), and name them as source",
            )

    def only_topic(self, ranges: Ranges) -> str | None:
        """The topic of every row, if rows do not name theirs. Raises `SinkError` if the batch reads several."""
        if self._topic:
            return None
        if len(ranges.end) != 1:
            raise SinkError(
                f"the query reads the topics {', '.join(sorted(ranges.end))}, and its rows name no topic",
                hint="select the topic too, and give source three columns",
            )
        return next(iter(ranges.end))

    def parts(self, batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """The rows in their order, in parts that come from one place each. ``topic`` is that of rows that name none."""
        import pyarrow as pa  # only where rows are written

        for batch in batches:
            partitions = batch.column(self._partition).to_pylist()
            topics = [topic] * len(partitions) if topic is not None else batch.column(self._topic[0]).to_pylist()
            numbers: dict[Place, list[int]] = {}
            for number, (name, partition) in enumerate(zip(topics, partitions, strict=True)):
                numbers.setdefault((str(name), str(partition)), []).append(number)
            if len(numbers) == 1:
                yield next(iter(numbers)), batch
            else:
                yield from ((place, batch.take(pa.array(own))) for place, own in numbers.items())


def by_place(parts: Iterator[tuple[Place, pa.RecordBatch]]) -> Iterator[tuple[Place, Iterator[pa.RecordBatch]]]:
    """Each place with all of its rows, which must be read before the next place.

    Those of the first place are passed on as they come. Those of others are kept in memory, in Arrow's format, until it has ended:
    all rows of a place are needed before it may be committed. Normally a task has one place.
    """
    first = next(parts, None)
    if first is None:
        return
    kept: dict[Place, list[pa.RecordBatch]] = {}

    def of_first() -> Iterator[pa.RecordBatch]:
        yield first[1]
        for place, rows in parts:
            if place == first[0]:
                yield rows
            else:
                kept.setdefault(place, []).append(rows)

    yield first[0], of_first()
    for place, batches in kept.items():
        yield place, iter(batches)


class Checksum:
    """Of the offsets of rows, in whatever order they come."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, offset: int) -> None:
        self.rows += 1
        # A sum of the offsets themselves would be the same for many sets of them.
        self._sum += zlib.crc32(offset.to_bytes(8, "big"))

    def __str__(self) -> str:
        return f"{self.rows}:{self._sum:x}"


def offset_of(row: dict[str, Any], name: str, ranges: Ranges) -> int:
    """The offset of a row. ``ranges`` are those of its place. Raises `SinkError` if the batch does not read it there."""
    ((topic, [(partition, (start, end))]),) = ((t, list(p.items())) for t, p in ranges.by_partition().items())
    offset = row[name]
    if not isinstance(offset, int) or not start <= offset < end:
        raise SinkError(
            f"a row of batch {ranges.batch} has {name} {offset!r} of {topic}/{partition}, of which the batch reads [{start}, {end})",
            hint="source must name columns with the place of each row in the input, as the Kafka source gives them",
        )
    return offset
