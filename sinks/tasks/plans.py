"""Whether a batch has one task per source partition: read from the plan that Spark has already made for it, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def one_task_each(batch: DataFrame, partitions: int) -> bool:
    """Whether no two tasks of the batch have rows of one source partition. ``partitions`` is how many have records in the batch.

    False also if that cannot be known: without the driver's JVM (Spark Connect).
    """
    frame: Any = getattr(batch, "_jdf", None)
    if frame is None:
        return False
    splits, left = 0, [frame.queryExecution().toRdd()]
    while left:
        rdd = left.pop()
        parents = rdd.dependencies()
        if parents.isEmpty():
            # A source partition that is read in several splits (minPartitions) makes more of them than there are partitions.
            splits += rdd.getNumPartitions()
        for number in range(parents.size()):
            parent = parents.apply(number)
            if parent.getClass().getSimpleName() not in _WHOLE:
                return False
            left.append(parent.rdd())
    return splits == partitions


#: Dependencies through which the rows of one partition stay in one partition: of maps, and of unions.
_WHOLE = ("OneToOneDependency", "RangeDependency")
