"""Reads the exact offset ranges of a batch from the checkpoint, and decides by recorded progress whether to write it.

Spark writes ``offsets/N`` (end offsets, exclusive) before it calls the sink for batch N, and replays an unfinished batch
with the same file. So the ranges are known before the first row: batch N is ``[end of N-1, end of N)``. A batch id
alone proves nothing: after a checkpoint is deleted, batch 0 comes again with other data (SPARK-55058, Delta's ``txnVersion``).

Offsets alone do not decide either: after the watermark has moved, Spark runs a batch without input
(``spark.sql.streaming.noDataMicroBatches.enabled``), which emits the closed windows. Its ranges are empty, so only its id shows
whether it was written, and only as long as the checkpoint is the same.

The same holds for every batch of a stateful query: which windows it closes depends on the batches before it. Another checkpoint
means other batches, and state that was rebuilt. Such a query is refused, unless the user knows that no row comes from a watermark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .checkpoint_files import files_of
from .errors import CheckpointUnreadable, OffsetGap

Vector = dict[str, dict[str, int]]
"""Topic -> partition -> offset, as Spark's Kafka source writes it: ``{"flights": {"0": 17}}``."""

Decision = Literal["write", "skip"]


@dataclass(frozen=True)
class Ranges:
    """The input of batch ``batch``: from ``start`` up to, but not including, ``end``."""

    batch: int
    start: Vector
    end: Vector
    stateful: bool = False
    """Whether the query keeps state, so that the rows of the batch may come from the input of earlier ones."""

    def of(self, topic: str, partition: str) -> Ranges:
        """Only one partition of the input."""
        starts = (
            {topic: {partition: offset}} if (offset := self.start.get(topic, {}).get(partition)) is not None else {}
        )
        return Ranges(self.batch, starts, {topic: {partition: self.end[topic][partition]}}, self.stateful)

    def by_partition(self) -> dict[str, dict[str, list[int]]]:
        """Topic -> partition -> the first offset of the batch, and the one after the last."""
        return {
            topic: {partition: [_start(self, topic, partition), end] for partition, end in ends.items()}
            for topic, ends in self.end.items()
        }


@dataclass(frozen=True)
class Progress:
    """A pipeline's last recorded progress: the batch, Spark's query id, and the offsets up to which everything is written."""

    query_id: str
    batch_id: int
    offsets: Vector
    rows: str | None = None
    """Where tasks write, each its own source partition: which rows of the batch were written. See `onceproof.sinks.tasks.lanes`."""

    def value(self) -> bytes:
        """The value of its record in a progress topic: JSON."""
        known = {"query_id": self.query_id, "batch_id": self.batch_id, "offsets": self.offsets}
        return json.dumps(known if self.rows is None else {**known, "rows": self.rows}, sort_keys=True).encode()


class Checkpoint:
    """The checkpoint of one query, as its driver can read it; for ``location`` see `onceproof.sinks.checkpoint_files`."""

    def __init__(self, location: str | Path) -> None:
        self._files = files_of(location)

    def query_id(self) -> str:
        """The id that Spark gave the query. It stays the same as long as the checkpoint exists."""
        return str(json.loads(self._files.text("metadata"))["id"])

    def ranges(self, batch: int) -> Ranges:
        """The offset ranges of ``batch``. Raises `CheckpointUnreadable`.

        Call it after the batch has run: the first batch of a stateful query makes the folder that shows that it is stateful.
        """
        end = self._planned(batch)
        start = self._planned(batch - 1) if batch > 0 else [None] * len(end)
        starts: list[Vector] = []
        for source, offsets in enumerate(start):
            # A source without an offset yet ("-") begins where it was first resolved, before batch 0. A stream that the query
            # reads twice (a self-join) is one source with two lines; its start is stored under the number of the first line.
            if offsets is None and end[source] in end[:source] and not self._files.exists(f"sources/{source}/0"):
                continue
            starts.append(offsets if offsets is not None else self._initial(source))
        ends = [offsets for offsets in end if offsets is not None]
        return Ranges(
            batch,
            self._merged(starts, f"batch {batch} begins"),
            self._merged(ends, f"batch {batch} ends"),
            self._files.exists("state"),
        )

    def _merged(self, sources: Iterable[Vector], what: str) -> Vector:
        """The offsets of all sources. Several may read one topic; a partition that two of them read has one offset."""
        merged: Vector = {}
        for source in sources:
            for topic, offsets in source.items():
                known = merged.setdefault(topic, {})
                for partition, offset in offsets.items():
                    if known.setdefault(partition, offset) != offset:
                        raise CheckpointUnreadable(
                            f"two sources of the query read {topic}/{partition}, and {what} at offset {known[partition]} "
                            f"of it for one and {offset} for the other ({self._files.path('offsets')})",
                            hint="read the topic with one readStream and use its DataFrame twice, with a new checkpoint",
                        )
        return merged

    def _planned(self, batch: int) -> list[Vector | None]:
        version, _metadata, *sources = self._files.text(f"offsets/{batch}").splitlines()
        self._demand_v1(version, f"offsets/{batch}")
        return [None if line == "-" else self._vector(line, f"offsets/{batch}") for line in sources]

    def _initial(self, source: int) -> Vector:
        # SPARK-19517: the Kafka source starts this file with a zero byte, so that Spark 2.1.0 can read it.
        version, _, offsets = self._files.text(f"sources/{source}/0").lstrip("\0").partition("\n")
        self._demand_v1(version, f"sources/{source}/0")
        return self._vector(offsets, f"sources/{source}/0")

    def _vector(self, text: str, name: str) -> Vector:
        try:
            found = json.loads(text)
            return {topic: {str(p): int(o) for p, o in ends.items()} for topic, ends in found.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise CheckpointUnreadable(
                f"{self._files.path(name)} holds {text!r}, which is not the offsets of a Kafka source",
                hint="all sources of the query must be Kafka",
            ) from error

    def _demand_v1(self, version: str, name: str) -> None:
        if version != "v1":
            raise CheckpointUnreadable(
                f"{self._files.path(name)} has format {version!r}, but this sink reads only 'v1'",
                hint="set spark.sql.streaming.offsetLog.formatVersion to 1 for a new checkpoint",
            )


def decide(recorded: Progress | None, ranges: Ranges, query_id: str, *, rebuilds_state: bool = False) -> Decision:
    """Whether to write or skip the batch: it must begin exactly where ``recorded`` progress ends.

    ``recorded`` is None for a pipeline without recorded progress: only batch 0 may be written then, so that a lost progress
    record is not taken for a new pipeline. ``query_id`` is that of the checkpoint. A stateful query must have the checkpoint of
    the progress, unless ``rebuilds_state``: then its rows depend on nothing but the input up to their batch, and a batch
    without input has none. Raises `OffsetGap`.
    """
    if recorded is None:
        if ranges.batch == 0:
            return "write"
        raise OffsetGap(
            f"batch {ranges.batch} follows earlier batches, but no progress of this pipeline is recorded",
            hint="restore the pipeline's former name or its progress record; if that is impossible, start with a new checkpoint",
        )
    by_state = ranges.stateful and not rebuilds_state
    if by_state and recorded.query_id != query_id:
        raise OffsetGap(
            f"batch {ranges.batch} comes from state, and this checkpoint (query {query_id}) is not that of recorded progress "
            f"(query {recorded.query_id}, batch {recorded.batch_id}): it is unknown which rows from state were written",
            hint=_STATE_IS_LOST,
        )
    partitions = [(topic, partition) for topic, ends in ranges.end.items() for partition in ends]
    done = {tp: _done(recorded.offsets, ranges, *tp) for tp in partitions}
    is_replay = ranges.batch == recorded.batch_id and all(done[t, p] == ranges.end[t][p] for t, p in partitions)
    if by_state and not is_replay and ranges.batch != recorded.batch_id + 1:
        raise OffsetGap(
            f"batch {ranges.batch} comes from state, and neither repeats recorded batch {recorded.batch_id} nor follows it: the "
            "batches after it may have been other ones, and it is unknown which rows from state were written",
            hint=_STATE_IS_LOST,
        )
    if all(_start(ranges, t, p) == ranges.end[t][p] == done[t, p] for t, p in partitions):
        return "skip" if rebuilds_state else _decide_without_data(recorded, ranges, query_id)
    if all(done[t, p] >= ranges.end[t][p] for t, p in partitions):
        if by_state and ranges.batch > recorded.batch_id:
            raise OffsetGap(
                f"batch {ranges.batch} comes from state, and its input was written by batch {recorded.batch_id} or earlier: "
                "the batches were other ones then, and it is unknown which rows from state were written",
                hint=_STATE_IS_LOST,
            )
        return "skip"
    wrong = [(t, p) for t, p in partitions if done[t, p] != _start(ranges, t, p)]
    if not wrong:
        return "write"
    places = "; ".join(
        f"{t}/{p}: batch [{_start(ranges, t, p)}, {ranges.end[t][p]}), recorded up to {done[t, p]}" for t, p in wrong
    )
    raise OffsetGap(
        f"batch {ranges.batch} does not begin where recorded progress ends ({places})",
        hint="the checkpoint and the recorded progress do not belong together; restore the one that was changed",
    )


_STATE_IS_LOST = (
    "restore the checkpoint that belongs to the progress, or start with a new pipeline name and output; if no row depends "
    "on a watermark or a timeout, the sink's rebuilds_state=True accepts state that is rebuilt from the input"
)


def _decide_without_data(recorded: Progress, ranges: Ranges, query_id: str) -> Decision:
    """Whether to write a batch without input at the end of recorded progress: its rows come only from state."""
    if ranges.batch == 0:
        return "skip"  # a fresh checkpoint has no state, so there are no rows
    if recorded.query_id != query_id:
        raise OffsetGap(
            f"batch {ranges.batch} has no input, but recorded progress (batch {recorded.batch_id}) is of another "
            "checkpoint: it is unknown whether the rows from its state were written",
            hint="restore the checkpoint that belongs to the progress, or start with a new pipeline name and output",
        )
    if ranges.batch <= recorded.batch_id:
        return "skip"
    if ranges.batch == recorded.batch_id + 1:
        return "write"
    raise OffsetGap(
        f"batch {ranges.batch} has no input and follows recorded batch {recorded.batch_id}: the batches between are missing",
        hint="the checkpoint and the recorded progress do not belong together; restore the one that was changed",
    )


def advanced(recorded: Progress | None, ranges: Ranges) -> Vector:
    """Progress after the batch: its end offsets, and the recorded offsets of partitions that it does not read."""
    merged = {topic: dict(ends) for topic, ends in (recorded.offsets if recorded else {}).items()}
    for topic, ends in ranges.end.items():
        merged.setdefault(topic, {}).update(ends)
    return merged


def _start(ranges: Ranges, topic: str, partition: str) -> int:
    # A partition added while the query ran is read from its beginning (Spark resolves it as earliest).
    return ranges.start.get(topic, {}).get(partition, 0)


def _done(recorded: Vector, ranges: Ranges, topic: str, partition: str) -> int:
    known: Mapping[str, Any] = recorded.get(topic, {})
    return int(known.get(partition, _start(ranges, topic, partition)))
