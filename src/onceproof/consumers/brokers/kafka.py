"""Kafka as the broker of consumers: an input topic with a partition for each queue, a topic for each output, a consumer group.

The log keeps what was sent, so input and output are read back like those of a Spark job. What a group has done is what it has
committed: a member that dies holds nothing, and its partition continues at the committed offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, not all re-exported
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.consumers.brokers.contract import Queues, Recreated
from onceproof.consumers.brokers.numbered_on import NumberedOn
from onceproof.consumers.brokers.tables import Tables
from onceproof.consumers.layout import Layout, Message, assign_ranges
from onceproof.data import Record
from onceproof.history.writer import HistoryWriter
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import FrameRules, Kafka, Replica
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config, producer_config, send_and_locate
from onceproof.stack.kafka.groups import describe_group, has_coordinator
from onceproof.stack.kafka.topics import change_settings
from onceproof.stores.kafka.read_back import collect_topics, read_before
from onceproof.stores.kafka.retention import delete_before

_ANSWER_S = 30.0
#: For one request that may come too early: a lookup of a coordinator that is still being created may never be answered.
_ASK_S = 2.0
#: Each consumer has to load its client, and each that joins makes all others join again.
_JOIN_DEADLINE_S = 60.0
#: max.poll.interval.ms of a member that a fault makes slower than that: its client checks every half second, with heartbeats
#: every 100 ms. A member that is removed while it has no message joins again and is assigned the same partitions.
_SHORT_MS = 1_000
_LONG_MS = 600_000
#: session.timeout.ms of a member that a fault kills, if the group has to notice: 20 heartbeats.
_SESSION_MS = 2_000
#: A member's name in the group. A static member exists until its last execution ends.
_MEMBER = "{index:03d}-{consumer}"


class GroupType(Protocol):
    """A class of queues below: for consumer groups, or for share groups."""

    def __call__(self, stack: EmbeddedStack, layout: Layout) -> Queues: ...

    def warm_up(self, stack: EmbeddedStack) -> None: ...


class KafkaBroker:
    """Implements `onceproof.consumers.brokers.contract.Broker` on a Spark job's stack, whose Kafka serves consumers too."""

    def __init__(self, stack: EmbeddedStack, queues: GroupType) -> None:
        self.stack = stack
        self._queues = queues

    def versions(self) -> Mapping[str, Any]:
        return self.stack.versions()

    def check(self) -> None:
        self.stack.check_health()

    def lay_out(self, layout: Layout) -> Queues:
        return self._queues(self.stack, layout)

    def warm_up(self) -> None:
        self._queues.warm_up(self.stack)


class KafkaQueues:
    """What consumer groups and share groups have in common: the topics and their contents."""

    def __init__(self, stack: EmbeddedStack, layout: Layout) -> None:
        self._stack = stack
        self._layout = layout
        self.admin = stack.kafka.admin()
        self._meet_broker()
        self._producer = self._new_producer()
        self._partitions = len(layout.at_start)
        """How many the input's topic has."""
        stack.kafka.create_topic(self.topic, self._partitions, layout.config)
        for topic in self._others():
            stack.kafka.create_topic(self._name(topic), layout.partitions_of.get(topic, 1))
        self.offsets: dict[int, int] = {}
        self._deleted: list[pa.RecordBatch] = []
        self._past = 0
        """How many records the input's topic had before it was deleted and created again."""
        self._tables = Tables(stack.postgres, layout) if stack.postgres is not None else None

    @staticmethod
    def warm_up(stack: EmbeddedStack) -> None:
        """Have Kafka create its topics for offsets and transactions before the first member and transaction need them."""
        transactions = stack.kafka.warm_up_transactions()
        wait_until(
            "a coordinator of groups",
            lambda: has_coordinator(stack.kafka, "onceproof-warm-up"),
            deadline_s=_JOIN_DEADLINE_S,
            abandon=stack.check_health,
        )
        transactions.join(_JOIN_DEADLINE_S)

    def _meet_broker(self) -> None:
        try:
            meet_brokers(self.admin, timeout_s=_ANSWER_S)
        except KafkaException as silent:
            self._stack.check_health()
            raise EnvironmentProblem(f"Kafka does not answer: {silent.args[0].str()}") from silent

    @property
    def frames(self) -> FrameRules | None:
        return self._stack.frames

    def environment(self, consumer: str, mark: str) -> Mapping[str, str]:
        layout = self._layout
        retry = layout.retry is not None and layout.queues_of[consumer] == (layout.retry,)
        return {
            "ONCEPROOF_KAFKA": self._stack.kafka.client_bootstrap,
            "ONCEPROOF_GROUP": self.group(layout.group_of[consumer]),
            "ONCEPROOF_TOPICS": self._name(layout.retry if retry and layout.retry else layout.topic),
            "ONCEPROOF_QUEUES": ",".join(self._place(queue) for queue in layout.queues_of[consumer]),
            **self._output_environment(consumer),
            "ONCEPROOF_MARK": mark,
            **({"ONCEPROOF_RETRY": self._name(layout.retry)} if layout.retry is not None else {}),
            **({"ONCEPROOF_DEAD_LETTER": self._name(layout.dead_letter)} if layout.dead_letter is not None else {}),
        }

    def _output_environment(self, consumer: str) -> Mapping[str, str]:
        layout = self._layout
        topics = {name: self._name(topic) for name, topic in layout.outputs.items()}
        places = {name: topics.get(name) or layout.tables[name] for name in layout.outputs_of[consumer]}
        first = layout.output_of[consumer]
        return {
            "ONCEPROOF_OUTPUTS": json.dumps(places),
            **({"ONCEPROOF_OUTPUT": topics[first]} if first in topics else {}),
            **(self._tables.environment(consumer) if self._tables is not None else {}),
        }

    @property
    def cluster(self) -> Kafka:
        return self._stack.kafka

    @property
    def topic(self) -> str:
        return self._name(self._layout.topic)

    def publish(self, message: Message, record: Record) -> None:
        headers = [*record.headers, ("message", f"m{message.number}".encode())]
        place = {"partition": self._layout.inputs.index(message.queue), "headers": headers}
        answers = send_and_locate(self._producer, self.topic, record.value, record.key, _ANSWER_S, **place)
        error, offset = answers[0] if answers else ("no answer", None)
        if error is not None or offset is None:
            self._stack.check_health()
            raise EnvironmentProblem(f"Kafka did not take message {message.number}: {error}")
        self.offsets[message.number] = offset + self._past

    def refuse(self, output: str, refusing: bool) -> None:
        topic = self._name(self._layout.outputs[output])
        self._change(ResourceType.TOPIC, topic, "max.message.bytes", "1" if refusing else "1048588")
        # A broker shows a new setting a moment before its logs apply it, and applies changes one after the other: when it shows
        # the second, the first is in force.
        self._change(ResourceType.TOPIC, topic, "file.delete.delay.ms", "60001" if refusing else "60000")

    def _change(self, kind: ResourceType, of: str, name: str, value: str) -> None:
        """Change the setting, and wait until the broker shows the new value."""
        change_settings(self.admin, kind, of, {name: value})
        asked = ConfigResource(kind, of)
        wait_until(
            f"{kind.name.lower()} {of} to have {name}={value}",
            lambda: (
                self.admin.describe_configs([asked], request_timeout=_ANSWER_S)[asked].result()[name].value == value
            ),
            deadline_s=_ANSWER_S,
            every_s=0.005,
            abandon=self._stack.check_health,
        )

    def collect(self, writer: HistoryWriter, timeline: Timeline) -> Mapping[str, Any]:
        outputs = {name: self._name(topic) for name, topic in self._layout.outputs.items()}
        topic = self._name(self._layout.topic)
        for records in self._deleted:
            writer.append("input", records)
        names = {topic: self._layout.topic}
        # The records of a topic that was created again are numbered on in the history, after those of the old one.
        to = NumberedOn(writer, self._layout.topic, self._past) if self._past else writer
        collect_topics(self._stack.kafka, [topic], outputs, to, timeline, names=names)
        return self._tables.collect(writer) if self._tables is not None else {}

    def delete_before(self, queue: str, offset: int) -> int:
        """Delete records as retention does (KIP-107), after reading them: the history must have what the broker acknowledged."""
        topic, partition = self._name(self._layout.topic), self._layout.inputs.index(queue)
        self._deleted += read_before(self._stack.kafka, topic, partition, offset, self._layout.topic)
        return delete_before(self.admin, topic, {partition: offset})[partition]

    def recreate(self) -> Recreated:
        topic = self._name(self._layout.topic)
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        (found,) = self.admin.list_offsets({TopicPartition(topic, 0): newest}, request_timeout=_ANSWER_S).values()
        self._past, old = int(found.result().offset), self._id_of(topic)
        self._deleted += read_before(self._stack.kafka, topic, 0, self._past, self._layout.topic)
        self.admin.delete_topics([topic], request_timeout=_ANSWER_S)[topic].result()
        wait_until(
            f"topic {topic} to be gone",
            lambda: topic not in self.admin.list_topics(timeout=_ANSWER_S).topics,
            deadline_s=_ANSWER_S,
            abandon=self._stack.check_health,
        )
        self._stack.kafka.create_topic(topic, self._partitions, self._layout.config)
        self._producer = self._new_producer()  # the old one knows the old topic
        return Recreated(old, self._id_of(topic), self._past)

    def grow(self, topic: str, partitions: int) -> tuple[int, int]:
        name = self._name(topic)
        before = len(self.admin.list_topics(name, timeout=_ANSWER_S).topics[name].partitions)
        self.admin.create_partitions([NewPartitions(name, partitions)], request_timeout=_ANSWER_S)[name].result()

        def led() -> int | None:
            found = self.admin.list_topics(name, timeout=_ANSWER_S).topics[name].partitions
            return len(found) if len(found) >= partitions and all(p.leader >= 0 for p in found.values()) else None

        reason = f"topic {name} to have {partitions} partitions"
        after = wait_until(reason, led, deadline_s=_ANSWER_S, abandon=self._stack.check_health)
        if topic == self._layout.topic:
            self._partitions = after
            self._producer = self._new_producer()  # the old one knows the old number
        return before, after

    @property
    def replica(self) -> Replica | None:
        return self._tables.replica if self._tables is not None else None

    def delay(self, by_ms: int) -> None:
        assert self._stack.postgres is not None, "validated: the stack has Postgres"
        proxy = self._stack.postgres.proxy
        proxy.add_toxic("latency", "downstream", latency=by_ms, jitter=0) if by_ms else proxy.heal()

    def round_trip_ms(self) -> float:
        assert self._tables is not None, "validated: the stack has Postgres"
        return self._tables.round_trip_ms()

    def limit(self, kb_per_s: int) -> None:
        assert self._stack.postgres is not None, "validated: the stack has Postgres"
        proxy = self._stack.postgres.proxy
        proxy.add_toxic("bandwidth", "upstream", rate=kb_per_s) if kb_per_s else proxy.heal()

    def sending_ms(self, kb: int) -> float:
        assert self._tables is not None, "validated: the stack has Postgres"
        return self._tables.round_trip_ms(kb)

    def _new_producer(self) -> Producer:
        # A leader that must first remove its followers from the replicas in sync acknowledges seconds later. A retry before that
        # would write the message twice.
        patient = {"request.timeout.ms": int(_ANSWER_S * 500), "message.timeout.ms": int(_ANSWER_S * 900)}
        return Producer({**producer_config(self._stack.kafka.harness_bootstrap), **patient, "acks": "all"})

    def _id_of(self, topic: str) -> str:
        asked = TopicCollection([topic])
        return str(self.admin.describe_topics(asked, request_timeout=_ANSWER_S)[topic].result().topic_id)

    def remove(self) -> None:
        """Does not wait for the deletion: the next execution uses other names."""
        topics = [self._name(topic) for topic in (self._layout.topic, *self._others())]
        self.admin.delete_topics(topics, request_timeout=_ANSWER_S)
        if self._tables is not None:
            self._tables.drop_slots()

    def group(self, name: str) -> str:
        return f"{self._layout.prefix}{name}"

    def _others(self) -> list[str]:
        """The topics besides the input's. The one for dead letters is among the outputs."""
        return [*self._layout.outputs.values(), *([self._layout.retry] if self._layout.retry is not None else [])]

    def _name(self, topic: str) -> str:
        return f"{self._layout.prefix}{topic}"

    def _place(self, queue: str) -> str:
        """The queue as ``topic-partition``."""
        layout = self._layout
        if queue == layout.retry:
            return f"{self._name(queue)}-0"
        return f"{self._name(layout.topic)}-{layout.inputs.index(queue)}"


class GroupQueues(KafkaQueues):
    """Implements `onceproof.consumers.brokers.contract.Queues` for consumer groups, of static members (KIP-345) or others.

    Members that are not static are identified by their client.id, with which the member ids that the group gives them begin.
    """

    def __init__(self, stack: EmbeddedStack, layout: Layout) -> None:
        super().__init__(stack, layout)
        self._queues_of = dict(layout.queues_of)
        if layout.offset_reset == "error":  # without any committed offset its members would end at once
            for group in layout.groups():
                self._commit(group, 0)

    def reposition(self, group: str, offset: int) -> int:
        wait_until(
            f"group {self.group(group)} to have no member",
            lambda: not self._assigned(group),
            deadline_s=_JOIN_DEADLINE_S,
            abandon=self._stack.check_health,
        )
        self._commit(group, offset)
        return self.committed(group)[0]

    def _commit(self, group: str, offset: int) -> None:
        """Commit this offset of each partition for a group without members."""
        topic = self._name(self._layout.topic)
        places = [TopicPartition(topic, place, offset) for place in range(len(self._layout.inputs))]
        settings = client_config(self._stack.kafka.harness_bootstrap)

        def committed() -> bool:
            try:
                return all(place.error is None for place in committing.commit(offsets=places, asynchronous=False))
            except KafkaException:  # its coordinator is still being created
                return False

        with closing(Consumer({**settings, "group.id": self.group(group)})) as committing:
            reason = f"group {group} to have offset {offset}"
            wait_until(reason, committed, deadline_s=_ANSWER_S, abandon=self._stack.check_health)

    def environment(self, consumer: str, mark: str) -> Mapping[str, str]:
        given = {**super().environment(consumer, mark), "ONCEPROOF_OFFSET_RESET": self._layout.offset_reset}
        if consumer in self._layout.killed:
            given |= {"ONCEPROOF_SESSION_MS": str(_SESSION_MS)}
        if self._layout.static:
            return {**given, "ONCEPROOF_MEMBER": self._member(consumer)}
        waits_ms = _SHORT_MS if consumer in self._layout.outlasted else _LONG_MS
        return {**given, "ONCEPROOF_MARK": self._member(consumer), "ONCEPROOF_POLL_INTERVAL_MS": str(waits_ms)}

    def is_connected(self, consumer: str, mark: str, check: Callable[[], None]) -> bool:
        """Wait until the group has assigned it exactly the partitions that the schedule expects: members join one by one."""
        wanted = set(self._queues_of[consumer])

        def abandon() -> None:
            self._stack.check_health()
            check()

        group = self._layout.group_of[consumer]
        return wait_until(
            f"group {self.group(group)} to assign {', '.join(sorted(wanted)) or 'nothing'} to {consumer}",
            lambda: self._assigned(group).get(self._member(consumer)) == wanted,
            deadline_s=_JOIN_DEADLINE_S,
            abandon=abandon,
            explain=lambda: str(self._assigned(group)),
            hint="it must be a static member, group.instance.id being ONCEPROOF_MEMBER, with the range assignor, and poll while "
            "it waits at its gate (docs/consumers.md)"
            if self._layout.static
            else "its client.id must be ONCEPROOF_MARK, its assignor range, and it must poll while it waits at its gate to take "
            "(docs/consumers.md)",
        )

    def await_rebalance(self, members: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        group = self._layout.group_of[members[0]]
        assigned = assign_ranges(self._layout.inputs, members)
        wanted = {self._member(consumer): set(queues) for consumer, queues in assigned.items()}
        wait_until(
            f"group {self.group(group)} to assign all its partitions to {', '.join(members)} alone",
            lambda: self._assigned(group) == wanted,
            deadline_s=_JOIN_DEADLINE_S,
            abandon=self._stack.check_health,
            explain=lambda: str(self._assigned(group)),
            hint="a consumer must poll while it waits at its gate to take, and not while it has a message (docs/consumers.md)",
        )
        self._queues_of = {**self._queues_of, **assigned}
        return assigned

    def _assigned(self, group: str) -> dict[str, set[str]]:
        """Member -> queues, as the group's coordinator reports. Empty as long as there is no such group."""
        found = describe_group(self._stack.kafka, self.group(group), within_s=_ANSWER_S)
        queues = {self._place(queue): queue for queue in self._layout.inputs}
        if self._layout.retry is not None:
            queues[self._place(self._layout.retry)] = self._layout.retry
        named = [m.instance_id if self._layout.static else m.client_id for m in found]
        places = [[f"{topic}-{partition}" for topic, partition in m.partitions] for m in found]
        return {str(name): {queues.get(place, place) for place in its} for name, its in zip(named, places, strict=True)}

    def await_gone(self, consumer: str, mark: str) -> None:
        """Does nothing: a group continues after the committed offset, and a dead member commits no more."""

    def committed(self, group: str) -> Mapping[int, int]:
        if self._tables is not None and self._layout.keeps_positions:
            return self._tables.positions(self.group(group), self._name(self._layout.topic))
        places = [TopicPartition(self._name(self._layout.topic), number) for number in range(self._partitions)]
        why = ["nothing"]
        # A consumer that never joins asks. An admin client crashes the process if the group's coordinator is still loading
        # (librdkafka issue 5040).
        settings = client_config(self._stack.kafka.harness_bootstrap)
        asking = Consumer({**settings, "group.id": self.group(group), "isolation.level": "read_committed"})

        def answer() -> dict[int, int] | None:
            try:
                found = asking.committed(places, timeout=min(_ASK_S, _ANSWER_S))
            except KafkaException as refused:
                why[:] = [refused.args[0].str()]
                return None
            # While a transaction with an offset is open there is an error or no answer (KIP-447). -1001: nothing was committed.
            why[:] = [f"{p.topic}-{p.partition}: {p.error}" for p in found if p.error]
            return None if why else {p.partition: max(p.offset, 0) + self._past for p in found}

        with closing(asking):
            return wait_until(
                f"the committed offsets of group {group}",
                answer,
                deadline_s=_ANSWER_S,
                abandon=self._stack.check_health,
                explain=lambda: "; ".join(why),
            )

    def _member(self, consumer: str) -> str:
        """The consumer's name in the group. The range assignor assigns partitions in the order of these names."""
        return _MEMBER.format(index=list(self._layout.group_of).index(consumer), consumer=consumer)
