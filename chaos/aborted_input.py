"""Aborted input: another producer writes records to an input topic in a transaction, and aborts it.

The records remain in the log, and only a read_committed reader skips them. Spark's Kafka source reads uncommitted records by
default (``kafka.isolation.level``). Even for a read_committed reader the offsets then have gaps, so counting offsets does not
count records (KIP-98).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from confluent_kafka import KafkaError, Message, Producer
from pydantic import Field, PositiveInt

from onceproof.base.errors import ServiceFailed
from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.data import open_dataset
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, proven
from onceproof.faults.placement import RESTART_S, WATCHED, AtItsPoint, placement_at, point_problems
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import FaultSpec, InputSpec, Scenario
from onceproof.stores.kafka.state import stable_ends

_ANSWER_S = 20.0
"""No fault affects the harness's own listeners; the first transaction of a new cluster takes a second or two."""


class AbortedInputSpec(FaultSpec):
    fault: Literal["aborted-input"]
    target: Literal["input"]
    topic: str | None = Field(None, description="the input topic (needed only where there are several)")
    records: PositiveInt = Field(100, description="how many records, taken from the data set after those that are fed")


@faults.register("aborted-input")
class AbortedInput(AtItsPoint[AbortedInputSpec]):
    """Writes aborted records to the log between two chunks of the feed; the pipeline must not process them."""

    Spec: ClassVar[type[FaultSpec]] = AbortedInputSpec
    about: ClassVar[str] = "another producer writes records to an input topic in a transaction, and aborts it"

    def __init__(self, spec: AbortedInputSpec) -> None:
        self._spec = spec
        self._written: dict[int, list[int]] = {}

    @classmethod
    def problems(cls, spec: AbortedInputSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, WATCHED)
        topics = [i.topic for i in scenario.input]
        if spec.topic is None and len(topics) > 1:
            message = f"topic is missing: the input topics are {', '.join(topics)}"
            problems.append(SpecProblem((), message, f"for example topic: {topics[0]}"))
        if spec.topic is not None and spec.topic not in topics:
            message = f"there is no input topic {spec.topic!r}"
            return [*problems, SpecProblem(("topic",), message, suggest(spec.topic, topics))]
        source = _source(spec, scenario)
        has = open_dataset(source.dataset, source.options, seed=scenario.seed).rows()
        if (source.rows or has) + spec.records > has:
            message = f"data set {source.dataset!r} has {has} records, and {source.rows or 'all'} of them are fed"
            hint = f"feed fewer: rows: {max(has - spec.records, 1)} or less"
            problems.append(SpecProblem(("records",), message, hint))
        return problems

    @classmethod
    def placement(cls, spec: AbortedInputSpec, scenario: Scenario) -> Placement:
        proof = (
            "the records are below the last stable offset, and a batch whose offset range includes them is committed"
        )
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        assert context.scenario is not None, "every run sets it"
        source = _source(self._spec, context.scenario)
        data = open_dataset(source.dataset, source.options, seed=context.scenario.seed)
        start = source.rows or data.rows()
        own = {"transactional.id": f"onceproof-aborted-{source.topic}", "partitioner": "murmur2_random"}
        producer = Producer({**context.stack.kafka.harness_client(), **own})
        producer.init_transactions(_ANSWER_S)
        producer.begin_transaction()
        try:
            for number, record in enumerate(data.records(start, start + self._spec.records)):
                # Distributed as by the feed; -1: the partitioner chooses the partition by the key.
                partition = -1 if record.key is not None else number % source.partitions
                producer.produce(
                    source.topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp=record.timestamp_ms,
                    on_delivery=self._delivered,
                )
                producer.poll(0)
            unsent = producer.flush(_ANSWER_S)
        finally:  # an open transaction would block every read_committed reader until its time-out
            producer.abort_transaction(_ANSWER_S)
        written = sum(map(len, self._written.values()))
        if unsent or written != self._spec.records:
            raise ServiceFailed(
                f"only {written} of the {self._spec.records} records to be aborted were written to {source.topic}"
            )
        # Kafka decides the abort before it writes the markers. Wait for these, so that no reader finds the transaction open.
        wait_until(
            "the last stable offsets to pass the aborted records",
            lambda: self._decided(context, source.topic),
            deadline_s=_ANSWER_S,
        )

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert context.scenario is not None
        topic = _source(self._spec, context.scenario).topic
        ends = {partition: max(offsets) + 1 for partition, offsets in self._written.items()}
        ranges = ", ".join(f"{topic}/{p}@{min(o)} to {max(o)}" for p, o in sorted(self._written.items()))
        evidence = [
            f"{self._spec.records} records were written at {seen.point} of batch {seen.batch} and aborted: {ranges}",
            "the last stable offsets have passed them: the transaction has ended",
        ]

        def taken() -> list[int]:
            done = [b for b in context.checkpoint.batches() if b.query == seen.query and b.committed_at is not None]
            past = [b for b in done if all(b.ends.get(topic, {}).get(p, 0) >= end for p, end in ends.items())]
            took = [b.batch for b in done if any(_takes(b, topic, p, o) for p, o in self._written.items())]
            return took if past else []

        batches = wait_until("a batch whose offset range includes them to be committed", taken, deadline_s=RESTART_S)
        numbers = ", ".join(map(str, batches))
        return proven(*evidence, f"batch {numbers}, whose offset range includes them, was committed")

    def _decided(self, context: FaultContext, topic: str) -> bool:
        stable = stable_ends(context.stack.kafka)[topic]
        return all(stable[partition] > max(offsets) for partition, offsets in self._written.items())

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self._written.setdefault(partition, []).append(offset)


def _source(spec: AbortedInputSpec, scenario: Scenario) -> InputSpec:
    return next((i for i in scenario.input if i.topic == spec.topic), scenario.input[0])


def _takes(batch: Batch, topic: str, partition: int, offsets: list[int]) -> bool:
    """Whether the batch's offset range in the partition includes one of the offsets."""
    low, high = (ends.get(topic, {}).get(partition, 0) for ends in (batch.starts, batch.ends))
    return any(low <= offset < high for offset in offsets)
