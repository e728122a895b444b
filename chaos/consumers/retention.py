"""Retention: a consumer is stopped until the log has deleted records that it has not read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.base.waiting import wait_until
from onceproof.chaos.consumers.stall import at_its_work, no_such_message
from onceproof.consumers.brokers.contract import Truncates
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of

#: A fetch that the consumer had sent waits at the broker for a new record, by default for half a second. Its answer would give the
#: consumer a record that is deleted later.
OPEN_FETCH_S = 0.75


class RetentionSpec(ConsumerFaultSpec):
    numbers: ClassVar[tuple[str, ...]] = ("oldest",)

    fault: Literal["retention"]
    oldest: PositiveInt = Field(
        description="number of the oldest message that the log still has when the consumer continues, once it is published"
    )


@consumer_faults.register("retention")
class Retention(AtItsStep):
    """The consumer is stopped (SIGSTOP). When ``oldest`` is published, all records before it are deleted (KIP-107).

    For the consumer this is what ``retention.ms`` and ``retention.bytes`` do: the log begins after its position. The records are
    deleted by an administrator's request, because Kafka's own cleaner deletes whole segments at times that nobody can place.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = RetentionSpec
    about: ClassVar[str] = "SIGSTOP of a consumer until the log has deleted messages that it has not read"

    def __init__(self, spec: RetentionSpec) -> None:
        self._spec = spec
        self._begins_at: int | None = None

    @classmethod
    def problems(cls, spec: RetentionSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers, partitions = consumers_of(scenario), scenario.input[0].partitions
        found = []
        if consumers.broker != "kafka-group" or not consumers.static:
            message = "only a log deletes what was not read, and only static members of a consumer group keep their position in it"
            found.append(SpecProblem(("fault",), message, "use broker: kafka-group, without static: false"))
        if partitions > 1:
            message = f"the input has {partitions} partitions, and the numbers of messages say nothing about the order of two of them"
            found.append(SpecProblem(("fault",), message, "input: partitions: 1"))
        if len(consumers.groups) > 1:
            message = "the log would also delete what other groups have not read"
            found.append(SpecProblem(("fault",), message, "use one group"))
        if spec.oldest <= spec.at.message + 1:
            message = f"if message {spec.oldest} is the oldest one left, no message after {spec.at.message} is deleted"
            found.append(SpecProblem(("oldest",), message, f"use {spec.at.message + 2} or more"))
        return [*found, *at_its_work(spec), *no_such_message("oldest", spec.oldest, scenario)]

    @classmethod
    def placement(cls, spec: RetentionSpec, scenario: Scenario) -> Placement:
        proof = f"that the log began after the next record of {spec.target} when it continued"
        return Placement(
            "exact", "gate of the consumers", "the consumer is stopped while it waits at its next step", proof
        )

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        context.processes.stop_one(self._spec.target)
        answered = time.monotonic() + OPEN_FETCH_S
        wait_until("an open fetch of the consumer to end", lambda: time.monotonic() > answered, deadline_s=30.0)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        return any(e.kind == "publish" and e.message == self._spec.oldest for e in since)

    def before_resume(self, context: ConsumerFaultContext) -> Sequence[int]:
        assert isinstance(context.queues, Truncates), "validated: a consumer group"
        # With one partition, message n is the record at offset n - 1.
        self._begins_at = context.queues.delete_before(context.layout.inputs[0], self._spec.oldest - 1)
        return range(1, self._spec.oldest)

    def heal(self, context: ConsumerFaultContext) -> None:
        context.processes.resume(self._spec.target)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, position = self._spec.target, self._spec.at.message
        evidence = [f"{target} was stopped with message {position}: its next record was at offset {position}"]
        if self._begins_at is None:
            return missed(*evidence, f"message {self._spec.oldest} was never published, so nothing was deleted")
        evidence.append(f"the broker reported offset {self._begins_at} as the oldest one when {target} continued")
        if self._begins_at <= position:
            return missed(*evidence, "nothing was deleted that it had not read")
        since = [e for e in seen.after if e.consumer == target]
        gone = sorted(e.message for e in since if e.kind == "delete")
        taken = [e for e in since if e.kind == "take"]
        if any(e.message in gone for e in taken):
            return missed(*evidence, f"{target} had already fetched a message that was deleted")
        evidence.append(f"of what it had not read, {', '.join(f'message {number}' for number in gone)} was gone")
        if taken:
            evidence.append(f"{target} took message {taken[0].message} next, at tick {taken[0].tick}")
        elif any(e.kind == "end" for e in since):
            evidence.append(f"{target} ended by itself at its next take")
        return proven(*evidence)
