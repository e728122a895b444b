"""Retention: while the driver is down, the log deletes records of its batch that it has not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from confluent_kafka.admin import AdminClient

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import wait_for_restart
from onceproof.faults.placement import RESTART_S, AtItsPoint, committed, is_open, placement_at, point_problems
from onceproof.instruments.checkpoint_watcher import TopicOffsets, parse_offset_log
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.kafka.read_back import read_before
from onceproof.stores.kafka.retention import delete_before

LOST = "KafkaIllegalStateException: Some data may have been lost"
"""Spark's error for input that is gone, if ``failOnDataLoss`` is true. If it is false, Spark logs the second half as a warning."""


class DriverRetentionSpec(FaultSpec):
    fault: Literal["retention"]
    target: Literal["driver"]


@faults.register("retention", "driver")
class DriverRetention(AtItsPoint[DriverRetentionSpec]):
    """SIGKILL of the driver with its batch planned; the older half of that batch's records is deleted before the next one starts.

    For the job this is what ``retention.ms`` and ``retention.bytes`` do during a long outage: the log begins after the offset at
    which its checkpoint continues. The records are copied for the history first, because the broker had acknowledged them.
    """

    Spec: ClassVar[type[FaultSpec]] = DriverRetentionSpec
    about: ClassVar[str] = "SIGKILL of the driver, and the log deletes half of its batch before the next one starts"

    def __init__(self, spec: DriverRetentionSpec) -> None:
        self._spec = spec
        self._start = 0
        self._struck_at = 0.0
        self._was_open = False
        self._starts: dict[tuple[str, int], int] = {}
        """Topic and partition -> the batch's first offset there."""
        self._oldest: dict[tuple[str, int], int] = {}
        """Topic and partition -> the log's first offset after the deletion."""
        self._refused = False

    @classmethod
    def problems(cls, spec: DriverRetentionSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.AFTER_OFFSET_LOG,))
        if not problems and not spec.at.batch:
            message = "no log entry before batch 0 records where that batch begins"
            problems.append(SpecProblem(("at", "batch"), message, "choose batch 1 or a later one"))
        compacted = [i.topic for i in scenario.input if i.config.get("cleanup.policy") == "compact"]
        if compacted:
            message = f"Kafka deletes no records by their age or number from a topic that is only compacted: {', '.join(compacted)}"
            problems.append(SpecProblem(("fault",), message, "set cleanup.policy to compact,delete"))
        return problems

    @classmethod
    def placement(cls, spec: DriverRetentionSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = (
            f"commits/{n} was missing, the log began after the first offset of batch {n}, and the next driver committed that "
            "batch, or failed with Spark's error for lost data"
        )
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        query, n = seen.query, seen.batch
        with context.job.frozen():
            self._was_open = is_open(context, query, n)
            if self._was_open:
                self._delete(context, _ends(context, query, n - 1), _ends(context, query, n))
            self._struck_at = context.timeline.now()
            self._start = context.job.kill_driver()  # frozen until now, so it has read nothing since

    def _delete(self, context: FaultContext, before: TopicOffsets, after: TopicOffsets) -> None:
        """Delete the older half of the batch's records from each partition of the input."""
        assert context.scenario is not None, "every run sets it"
        kafka = context.stack.kafka
        admin = AdminClient(kafka.harness_client())
        for topic in dict.fromkeys(spec.topic for spec in context.scenario.input):
            starts = before.get(topic, {})
            keep = middles(starts, after.get(topic, {}))
            for partition, offset in keep.items():
                context.deleted_input.extend(read_before(kafka, topic, partition, offset, topic))
            self._starts |= {(topic, partition): starts.get(partition, 0) for partition in keep}
            if keep:
                oldest = delete_before(admin, topic, keep)
                self._oldest |= {(topic, partition): offset for partition, offset in oldest.items()}

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n = seen.batch
        if not self._was_open:
            return missed(f"batch {n} was no longer open when the driver was killed")
        gone = {place: oldest for place, oldest in self._oldest.items() if oldest > self._starts[place]}
        if not gone:
            return missed(f"the log deleted no record of batch {n}")
        places = ", ".join(
            f"{topic}/{partition} began at offset {oldest}, and batch {n} there at {self._starts[topic, partition]}"
            for (topic, partition), oldest in sorted(gone.items())
        )
        evidence = [f"driver start {self._start} was killed with commits/{n} missing; then {places}"]
        evidence.append(wait_for_restart(context, self._start))
        evidence.append(
            wait_until("the next driver to go on", lambda: self._went_on(context, seen), deadline_s=RESTART_S)
        )
        return proven(*evidence)

    def _went_on(self, context: FaultContext, seen: Occurrence) -> str | None:
        """What became of the batch, once it is committed or Spark has refused to continue without the records."""
        if committed(context, seen.query, seen.batch):
            return f"batch {seen.batch} was committed all the same"
        # Remembered, because the log of the next start is empty again.
        self._refused = self._refused or context.job.log_contains(LOST)
        if self._refused and context.job.failed_since(self._struck_at) is not None:
            return f"the next driver failed, and logged {LOST!r}"
        return None


def _ends(context: FaultContext, query: str, batch: int) -> TopicOffsets:
    """Where a batch ends, from its own log entry: the checkpoint watcher reads that entry only after the fault has struck."""
    return parse_offset_log((context.checkpoint.folder(query) / "offsets" / str(batch)).read_text()).ends


def middles(starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Partition -> the offset in the middle of the batch's range, for the partitions in which it has records."""
    ranges = {p: (starts.get(p, 0), end) for p, end in ends.items()}
    return {p: start + (end - start + 1) // 2 for p, (start, end) in ranges.items() if end > start}
