"""Leader crash: the leader of the input's partition dies with messages that only it has, before a consumer has read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.base.waiting import wait_until
from onceproof.chaos.consumers.retention import OPEN_FETCH_S
from onceproof.chaos.consumers.stall import at_its_work, no_such_message
from onceproof.chaos.crash.leader import led_from
from onceproof.consumers.brokers.contract import Replicated
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.evidence import leadership
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of
from onceproof.stack.api import Kafka, Leadership, Replicas

_SHRINK_S = 30.0
"""Followers are removed from the in-sync replicas when they have lagged for 1.5 s (replica.lag.time.max.ms of the preset)."""
_NOTED_S = 10.0
"""A new leader records its epoch when it begins to lead."""


class LeaderCrashSpec(ConsumerFaultSpec):
    numbers: ClassVar[tuple[str, ...]] = ("last",)

    fault: Literal["leader-crash"]
    last: PositiveInt = Field(description="number of the last message that only the leader has when it dies")


@consumer_faults.register("leader-crash")
class LeaderCrash(AtItsStep):
    """The leader's followers are cut off. Once it is the only replica in sync it acknowledges messages up to ``last``, and is killed.

    The consumer is stopped (SIGSTOP) meanwhile, so that it reads none of them. If another broker may be elected uncleanly, it leads
    without them, and they are lost. If not, the partition has no leader until the dead one is back, and nothing is lost. (Kafka
    documentation, Replication; KIP-966; Jepsen's Kafka report of 2013.)
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = LeaderCrashSpec
    about: ClassVar[str] = "SIGKILL of the input's leader with messages that only it has, and that no consumer has read"

    def __init__(self, spec: LeaderCrashSpec) -> None:
        self._spec = spec
        self._kafka: Kafka | None = None
        self._topic = ""
        self._before: Leadership | None = None
        self._after: Leadership | None = None
        self._first: int | None = None
        """Offset from which the next leader leads without the records of the dead one; None: there is none."""

    @classmethod
    def problems(cls, spec: LeaderCrashSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers, source = consumers_of(scenario), scenario.input[0]
        found = []
        if consumers.broker != "kafka-group" or not consumers.static or len(consumers.groups) > 1:
            message = "only static members of one consumer group keep their position in a log while they are stopped"
            hint = "use broker: kafka-group, one group, without static: false"
            found.append(SpecProblem(("fault",), message, hint))
        if scenario.stack.kafka.brokers < 3:
            message = "a single broker has no followers that could lack a message"
            found.append(SpecProblem(("fault",), message, "set stack.kafka.brokers to 3"))
        if source.partitions > 1:
            message = f"the input has {source.partitions} partitions, and their leaders differ"
            found.append(SpecProblem(("fault",), message, "input: partitions: 1"))
        if source.config.get("min.insync.replicas") != "1":
            message = (
                "a leader that is alone in sync must not acknowledge while the topic requires two replicas in sync"
            )
            found.append(SpecProblem(("fault",), message, 'input: config: {min.insync.replicas: "1"}'))
        if spec.last <= spec.at.message:
            message = f"message {spec.last} is published before the fault strikes"
            found.append(SpecProblem(("last",), message, f"use {spec.at.message + 1} or more"))
        return [*found, *at_its_work(spec), *no_such_message("last", spec.last, scenario)]

    @classmethod
    def placement(cls, spec: LeaderCrashSpec, scenario: Scenario) -> Placement:
        proof = (
            "the leader was alone in sync when it acknowledged the messages; the next leader does not have them, or none was elected "
            "until it came back"
        )
        why = "all consumers wait at their next step until its followers are cut off, and later until it is dead and the topic has a leader"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Replicated), "validated: a topic"
        kafka, topic = context.queues.cluster, context.queues.topic
        self._kafka, self._topic = kafka, topic
        context.processes.stop_one(self._spec.target)
        answered = time.monotonic() + OPEN_FETCH_S
        wait_until("an open fetch of the consumer to end", lambda: time.monotonic() > answered, deadline_s=30.0)
        self._before = kafka.leader(topic, 0)
        proxy = kafka.replication_proxy(self._before.broker)
        proxy.add_toxic("timeout", "upstream", timeout=0)
        proxy.add_toxic("timeout", "downstream", timeout=0)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        return any(e.kind == "publish" and e.message == self._spec.last for e in since)

    def before_resume(self, context: ConsumerFaultContext) -> Sequence[int]:
        """Kill the leader, and return when the topic has one again. Implements `onceproof.consumers.routes.Pauses`."""
        kafka, before, topic = self._kafka, self._before, self._topic
        assert kafka is not None and before is not None, "it struck"
        # Followers lag as soon as they lack a message, and it was acknowledged once they were not counted any more.
        wait_until(
            f"broker {before.broker} to be alone in sync",
            lambda: (now := kafka.replicas(topic, 0)) is not None and now.in_sync == {before.broker},
            deadline_s=_SHRINK_S,
            explain=lambda: f"{kafka.replicas(topic, 0)}",
        )
        kafka.kill_broker(before.broker)
        kafka.replication_proxy(before.broker).heal()  # not earlier: its followers would catch up

        def decided() -> Replicas | None:
            now = kafka.replicas(topic, 0, asking_not=before.broker)
            return now if now is not None and now.leader != before.broker else None

        found = wait_until("the end of its leadership", decided, deadline_s=leadership.ELECTION_S)
        if found.leader == -1:
            kafka.restart_broker(before.broker)
            self._after = kafka.leader(topic, 0)
            return ()
        self._after = leadership.wait_for_new_leader(kafka, f"{topic}/0", before)
        follower: Path = kafka.log_folders(topic)[0]
        (self._first,) = wait_until(
            f"broker {self._after.broker} to record the offset at which it began to lead",
            lambda: led_from(follower, before.epoch),
            deadline_s=_NOTED_S,
        )
        kafka.restart_broker(before.broker)
        # With one partition, message n is the record at offset n - 1.
        return range(self._first + 1, self._spec.last + 1)

    def heal(self, context: ConsumerFaultContext) -> None:
        if self._kafka is not None and self._before is not None:
            self._kafka.replication_proxy(self._before.broker).heal()
            if not self._kafka.is_running(self._before.broker):
                self._kafka.restart_broker(self._before.broker)
        context.processes.resume(self._spec.target)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        before, after, last = self._before, self._after, self._spec.last
        assert before is not None, "it struck"
        evidence = [f"the followers of broker {before.broker} lagged until it was the only replica in sync"]
        if after is None:
            return missed(*evidence, f"message {last} was never published, so it was not killed")
        numbers = [e.message for e in seen.after if e.kind == "publish" and e.message <= last]
        alone = f"message {', '.join(map(str, numbers))}"
        evidence.append(f"it acknowledged {alone} alone, and was killed before {self._spec.target} could read on")
        if self._first is None:
            evidence.append("no other broker was elected until it was back")
            if after.broker != before.broker:
                return missed(*evidence, f"then broker {after.broker} led")
            return proven(*evidence, f"it leads again (epoch {after.epoch}), with all that it had acknowledged")
        evidence.append(leadership.describe_move(f"{self._topic}/0", before, after))
        if self._first >= last:
            return missed(*evidence, f"the new leader had all messages up to {last}")
        # `OPEN_FETCH_S` is long enough only if the broker answered an open fetch in time. Message n is the record at offset n - 1.
        taken = {e.message for e in seen.after if e.kind == "take" and e.consumer == self._spec.target}
        if fetched := sorted(taken.intersection(range(self._first + 1, last + 1))):
            return missed(*evidence, f"{self._spec.target} had already fetched message {fetched[0]}")
        return proven(*evidence, f"the new leader began at offset {self._first}, without those from there on")
