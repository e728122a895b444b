"""Batches without input: whether Spark is still going to plan one, and how long to wait for it.

A stateful query writes the results that its watermark has closed in the next batch. If there is no input, Spark plans a batch
without input for this (`MicroBatchExecution.constructNextBatch`), provided that all of the following is true:

- the watermark moved: ``nextBatchWatermarkMs`` of ``commits/N`` is above ``batchWatermarkMs`` of ``offsets/N``;
- a stateful operator wants the batch (`shouldRunAnotherBatch`), which nothing in the checkpoint shows;
- ``spark.sql.streaming.noDataMicroBatches.enabled`` is true, which nothing in the checkpoint shows either;
- this driver ran batch N itself: after a restart Spark has no plan of the last batch to ask, and waits for input.

So the run waits for the batch, for as long as the query's trigger interval at most. The batches themselves bound that interval:
two batches in a row are never closer than it, except for the first after a driver start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from onceproof.instruments.checkpoint_watcher import Batch

SLACK_S = 1.5
"""Added to the trigger's interval: the time from the commit of a batch to the plan of the next on a busy machine."""

BETWEEN_CHUNKS_S = 2.0
"""The longest wait before the next chunk. A query with a slow trigger takes the chunk in its next batch in any case."""

Reason = Literal["open", "unread", "due", "restarted", "none"]


@dataclass(frozen=True)
class Pending:
    """A query's batch that is not finished, or whose watermark no later batch has acted on."""

    batch: Batch
    reason: Reason
    """``open``: the batch is planned and not committed. ``unread``: a later plan is written, and the checkpoint watcher has not read
    it yet. For the other reasons, the watermark moved in ``batch``, and the batch
    that acts on it is not planned. ``due``: it may come soon. ``restarted``: it comes only with more input, since the driver
    was restarted. ``none``: it did not come although there was time for it."""
    waited: str = ""
    """For ``none``, how long there was time for it: ``within 3.5 s``."""

    @property
    def waiting_helps(self) -> bool:
        return self.reason in ("open", "unread", "due")

    def describe(self) -> str:
        b = self.batch
        where = f"batch {b.batch} of query {b.query}"
        if self.reason == "open":
            return f"{where} is planned and not committed"
        if self.reason == "unread":
            return f"a batch after {where} is planned, and its plan is not read yet"
        moved = f"{where} moved the watermark to {_time(b.next_watermark_ms)}"
        match self.reason:
            case "due":
                return f"{moved}, and Spark has not yet planned the batch without input that acts on it"
            case "restarted":
                return (
                    f"{moved}, and the driver was restarted before Spark planned a batch without input for it: Spark plans "
                    "one only in the driver that ran the previous batch, so results that the watermark closed stay in the "
                    "state until there is more input"
                )
            case _:
                return (
                    f"{moved}, and Spark planned no batch without input for it {self.waited} (none of the query's operators "
                    "wants one, or spark.sql.streaming.noDataMicroBatches.enabled is false): results that the watermark "
                    "closed, if any, stay in the state until there is more input"
                )


def pending(
    batches: Sequence[Batch], *, stateful: bool, start: int, now: float, longest_s: float, ended: Collection[int] = ()
) -> Pending | None:
    """What the query with these batches (all of its checkpoint, in order) has left to do at ``now``; None if nothing.

    ``stateful``: whether it has a ``state/`` folder. ``start``: the current driver start. ``longest_s``: how long to wait for a
    batch if the trigger is not known. ``ended``: the driver starts that ended by themselves, without a failure.
    """
    if not batches:
        return None
    last = batches[-1]
    if last.committed_at is None:
        # Operators with processing-time timers want a batch at every trigger, without end: do not wait for these.
        timer = len(batches) > 1 and last.records() == 0 and last.watermark_ms == batches[-2].watermark_ms
        return None if timer else Pending(last, "open")
    if not stateful or not moved_watermark(last):
        return None
    waits_s = _interval_s(batches, longest_s) + SLACK_S
    seen = ran_without_input(batches)
    if not seen and _idle_s(batches, start, now) >= waits_s:
        return Pending(last, "none", f"within {waits_s:.1f} s")
    if last.committed_by in ended:  # Trigger.Once, or AvailableNow: the job ends when its query has no more to do
        return Pending(last, "none", "before the job ended by itself")
    if last.committed_by != start:
        return Pending(last, "restarted")
    waits_s = longest_s if seen else waits_s
    if now - last.committed_at < waits_s:
        return Pending(last, "due")
    return Pending(last, "none", f"within {waits_s:.1f} s")


def moved_watermark(batch: Batch) -> bool:
    """Whether the batch is committed and gives the next batch a higher watermark."""
    return (
        batch.watermark_ms is not None
        and batch.next_watermark_ms is not None
        and batch.next_watermark_ms > batch.watermark_ms
    )


def ran_without_input(batches: Sequence[Batch]) -> bool:
    """Whether one of these batches was planned only because the watermark had moved."""
    return any(moved_watermark(before) and after.records() == 0 for before, after in pairwise(batches))


def _interval_s(batches: Sequence[Batch], longest_s: float) -> float:
    """An upper bound of the trigger's interval: the shortest time between the plans of two batches in a row.

    The first batch of a driver does not wait for a trigger, so the second may be closer to it and is not counted.
    """
    gaps = [
        after.planned_at - one.planned_at
        for before, one, after in zip(batches, batches[1:], batches[2:], strict=False)
        if before.planned_by == one.planned_by == after.planned_by
    ]
    return min([*gaps, longest_s])


def _idle_s(batches: Sequence[Batch], start: int, now: float) -> float:
    """The longest time that the query was idle after a batch that moved the watermark, within one driver start."""
    idle = [
        after.planned_at - before.committed_at
        for before, after in pairwise(batches)
        if moved_watermark(before) and before.committed_at is not None and before.committed_by == after.planned_by
    ]
    last = batches[-1]
    if last.committed_at is not None and last.committed_by == start:
        idle.append(now - last.committed_at)
    return max(idle, default=0.0)


def _time(ms: int | None) -> str:
    return "?" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
