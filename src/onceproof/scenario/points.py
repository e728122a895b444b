"""The named places in Spark's micro-batch commit protocol.

All but the last are in the order of ``MicroBatchExecution``: write ``offsets/N``, run the tasks, commit the sink, write
``commits/N``. The last, ``state-partly-committed``, lies in the tasks: they write the state, as version N+1.
"""

from __future__ import annotations

from enum import StrEnum


class Point(StrEnum):
    """A place in the life of micro-batch N at which a fault can strike."""

    BEFORE_OFFSET_LOG = "before-offset-log"
    AFTER_OFFSET_LOG = "after-offset-log"
    IN_TASKS = "in-tasks"
    BEFORE_SINK_COMMIT = "before-sink-commit"
    COMMIT_LOST = "commit-lost"
    COMMIT_UNACKNOWLEDGED = "commit-unacknowledged"
    BETWEEN_SINKS = "between-sinks"
    AFTER_SINK_COMMIT = "after-sink-commit"
    AFTER_COMMIT_LOG = "after-commit-log"
    STATE_PARTLY_COMMITTED = "state-partly-committed"


#: What is true of batch N at the point, and so what a crash there leaves behind, in the words of the report.
LEFT_BEHIND: dict[Point, str] = {
    Point.BEFORE_OFFSET_LOG: "nothing of N is durable; another end offset may be picked next time",
    Point.AFTER_OFFSET_LOG: "N is planned, the sink has seen nothing",
    Point.IN_TASKS: "some tasks ran; partial side effects",
    Point.BEFORE_SINK_COMMIT: "everything is staged, COMMIT or EndTxn was not sent",
    Point.COMMIT_LOST: "COMMIT or EndTxn was sent and never applied",
    Point.COMMIT_UNACKNOWLEDGED: "the commit was applied and its answer lost",
    Point.BETWEEN_SINKS: "the first of two sinks has committed, the second has not",
    Point.AFTER_SINK_COMMIT: "the sink has committed, commits/N is missing: N will be replayed",
    Point.AFTER_COMMIT_LOG: "commits/N is durable, offsets/N+1 is missing",
    Point.STATE_PARTLY_COMMITTED: "some state partitions of N are written (as version N+1), the others are not",
}
