"""Another producer's transaction on an input topic: what the faults that abort it, or commit it late, have in common."""

from __future__ import annotations

from typing import ClassVar, Literal

from confluent_kafka import KafkaError, Message, Producer
from pydantic import Field, PositiveInt

from onceproof.base.errors import ServiceFailed
from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.data import open_dataset
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, SpecProblem
from onceproof.faults.placement import WATCHED, point_problems
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import FaultSpec, InputSpec, Scenario
from onceproof.stores.kafka.state import stable_ends

ANSWER_S = 20.0
"""No fault affects the harness's own listeners; the first transaction of a new cluster takes a second or two."""


class ForeignSpec(FaultSpec):
    target: Literal["input"]
    topic: str | None = Field(None, description="the input topic (needed only where there are several)")
    records: PositiveInt = Field(100, description="how many records, taken from the data set after those that are fed")

    #: What becomes of the records, for messages.
    become: ClassVar[str]


def foreign_problems(spec: ForeignSpec, scenario: Scenario) -> list[SpecProblem]:
    """Problems of the point, of the topic, and of the number of records."""
    problems = point_problems(spec, WATCHED)
    topics = [i.topic for i in scenario.input]
    if spec.topic is None and len(topics) > 1:
        message = f"topic is missing: the input topics are {', '.join(topics)}"
        problems.append(SpecProblem((), message, f"for example topic: {topics[0]}"))
    if spec.topic is not None and spec.topic not in topics:
        message = f"there is no input topic {spec.topic!r}"
        return [*problems, SpecProblem(("topic",), message, suggest(spec.topic, topics))]
    source = source_of(spec, scenario)
    has = open_dataset(source.dataset, source.options, seed=scenario.seed).rows()
    if (source.rows or has) + spec.records > has:
        message = f"data set {source.dataset!r} has {has} records, and {source.rows or 'all'} of them are fed"
        hint = f"feed fewer: rows: {max(has - spec.records, 1)} or less"
        problems.append(SpecProblem(("records",), message, hint))
    return problems


class ForeignTransaction:
    """Writes records to the input in a transaction, and leaves it open. Call `abort` or `commit`."""

    def __init__(self, spec: ForeignSpec, context: FaultContext) -> None:
        """Write the records. Aborts the transaction if that fails; raises `ServiceFailed`."""
        assert context.scenario is not None, "every run sets it"
        self._context = context
        self._spec = spec
        self._written: dict[int, list[int]] = {}
        self.topic = source_of(spec, context.scenario).topic
        own = {"transactional.id": f"onceproof-{spec.become}-{self.topic}", "partitioner": "murmur2_random"}
        self._producer = Producer({**context.stack.kafka.harness_client(), **own})
        self._producer.init_transactions(ANSWER_S)
        self._producer.begin_transaction()
        try:
            self._write(context.scenario)
        except BaseException:  # an open transaction would block every read_committed reader until its time-out
            self._producer.abort_transaction(ANSWER_S)
            raise

    def _write(self, scenario: Scenario) -> None:
        source = source_of(self._spec, scenario)
        data = open_dataset(source.dataset, source.options, seed=scenario.seed)
        start = source.rows or data.rows()
        for number, record in enumerate(data.records(start, start + self._spec.records)):
            # Distributed as by the feed; -1: the partitioner chooses the partition by the key.
            partition = -1 if record.key is not None else number % source.partitions
            self._producer.produce(
                source.topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp=record.timestamp_ms,
                on_delivery=self._delivered,
            )
            self._producer.poll(0)
        unsent = self._producer.flush(ANSWER_S)
        written = sum(map(len, self._written.values()))
        if unsent or written != self._spec.records:
            raise ServiceFailed(
                f"only {written} of the {self._spec.records} records to be {self._spec.become} were written to {source.topic}"
            )

    def abort(self) -> None:
        """Return when the last stable offsets have passed the records."""
        self._producer.abort_transaction(ANSWER_S)
        self._wait_for_markers()

    def commit(self) -> None:
        """Return when the last stable offsets have passed the records."""
        self._producer.commit_transaction(ANSWER_S)
        self._wait_for_markers()

    def _wait_for_markers(self) -> None:
        """Kafka decides the end of a transaction before it writes the markers: without them readers would find it open."""
        wait_until(f"the last stable offsets to pass the {self._spec.become} records", self._ended, deadline_s=ANSWER_S)

    def _ended(self) -> bool:
        stable = stable_ends(self._context.stack.kafka)[self.topic]
        return all(stable[partition] > max(offsets) for partition, offsets in self._written.items())

    def places(self) -> str:
        """The first and the last record of each partition."""
        return ", ".join(f"{self.topic}/{p}@{min(o)} to {max(o)}" for p, o in sorted(self._written.items()))

    def batches(self, seen: Occurrence) -> list[int]:
        """The committed batches of the query whose offset ranges include records, once all are included. Empty until then."""
        ends = {partition: max(offsets) + 1 for partition, offsets in self._written.items()}
        batches = self._context.checkpoint.batches()
        done = [b for b in batches if b.query == seen.query and b.committed_at is not None]
        past = any(all(b.ends.get(self.topic, {}).get(p, 0) >= end for p, end in ends.items()) for b in done)
        took = [b.batch for b in done if any(takes(b, self.topic, p, o) for p, o in self._written.items())]
        return took if past else []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self._written.setdefault(partition, []).append(offset)


def source_of(spec: ForeignSpec, scenario: Scenario) -> InputSpec:
    """The input that the records are written to."""
    return next((i for i in scenario.input if i.topic == spec.topic), scenario.input[0])


def takes(batch: Batch, topic: str, partition: int, offsets: list[int]) -> bool:
    """Whether the batch's offset range in the partition includes one of the offsets."""
    low, high = (ends.get(topic, {}).get(partition, 0) for ends in (batch.starts, batch.ends))
    return any(low <= offset < high for offset in offsets)
