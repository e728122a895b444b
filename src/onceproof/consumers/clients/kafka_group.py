"""The client of a Kafka consumer group: records one at a time from its own partitions, effects into a topic.

A static member (KIP-345) has a name that the group's coordinator knows. So a member that is killed and restarted gets its
partitions back at once, at the offsets that it had committed, and no other member's are touched. The partitions of a member
without such a name go to others as soon as it is removed from the group: it takes from whatever it is assigned at the moment,
and polls only while it has no message, like a consumer with one thread (KIP-62).
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from onceproof.consumers.clients.contract import (
    AcknowledgementRefused,
    Client,
    EffectRefused,
    Lost,
    MessageSource,
    Taken,
)
from onceproof.stack.kafka.clients import client_config, producer_config, send

#: To become a member, or to get a record that is known to exist: a first rebalance takes a second. Shorter than the harness
#: waits for a step, so that the consumer's own error is reported.
_DEADLINE_S = 50.0
_POLL_S = 0.05
#: librdkafka's default. A client refuses a max.poll.interval.ms below its session time-out.
_SESSION_MS = 45_000
_ANSWER_S = 10.0
_HEADER = "message"
#: The broker's answers to a commit by a client that is not a member, or that was one only before the last rebalance.
_NOT_A_MEMBER = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID}


class KafkaGroup:
    """Takes from the partitions that ``ONCEPROOF_QUEUES`` names, in this order: those that the group will assign to it.

    A member that is not static takes from those that it is assigned at the moment.
    """

    def __init__(self) -> None:
        self.is_static = "ONCEPROOF_MEMBER" in os.environ
        wanted = [queue for queue in os.environ["ONCEPROOF_QUEUES"].split(",") if queue]
        self._places = [_place(queue) for queue in wanted]
        self.consumer = Consumer(
            {
                **client_config(os.environ["ONCEPROOF_KAFKA"]),
                "group.id": os.environ["ONCEPROOF_GROUP"],
                **_membership(),
                "client.id": os.environ["ONCEPROOF_MARK"],
                "partition.assignment.strategy": "range",
                # A member learns of a rebalance from the answer to a heartbeat.
                "heartbeat.interval.ms": 100,
                "auto.offset.reset": os.environ.get("ONCEPROOF_OFFSET_RESET", "earliest"),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5,
                "fetch.queue.backoff.ms": 5,
            }
        )
        topics = sorted({topic for topic in os.environ["ONCEPROOF_TOPICS"].split(",") if topic})
        if self.is_static:
            self.consumer.subscribe(topics)
        else:
            self.consumer.subscribe(topics, on_revoke=self._forget_partitions)
        self._busy = False
        self._revocations = 0
        """How often its partitions were revoked: a record awaited under one assignment may never come under the next."""
        self._next: dict[tuple[str, int], int] = {}
        self._fetched: dict[tuple[str, int], deque[Message]] = {place: deque() for place in self._places}
        self._held: Message | None = None

    def idle(self) -> None:
        """Take part in rebalances, and keep what was fetched ahead."""
        if self.is_static or not self._busy:
            self._poll(0.0)

    def take(self) -> Taken | None:
        if self.is_static:
            self._await("its partitions", self._assigned)
            return self._take_from(self._places)
        found: list[Taken] = []
        # The harness grants a take only if a message is ready, but the consumer may have to join the group again first.
        self._await("a message", lambda: bool(found) or self._poll_for_message(found))
        return found[0]

    def _poll_for_message(self, found: list[Taken]) -> bool:
        revocations = self._revocations
        self._poll(_POLL_S)
        if self._revocations != revocations:
            return False
        taken = self._take_from(sorted((place.topic, place.partition) for place in self.consumer.assignment()))
        if taken is not None:
            found.append(taken)
        return taken is not None

    def _take_from(self, places: list[tuple[str, int]]) -> Taken | None:
        for place in places:
            position = self._position(place)
            _low, high = self.consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
            # A record below the end of the partition will come. Waiting for it, and not for the first record of any partition,
            # makes each execution the same.
            if high > position:
                revocations = self._revocations
                self._await(
                    f"the record of {place} at offset {position}", partial(self._has_or_revoked, place, revocations)
                )
                if self._revocations != revocations:
                    return None
                self._held = message = self._fetched[place].popleft()
                self._next[place] = _number(message.offset()) + 1
                self._busy = True
                return as_taken(message, redelivered=False)
        return None

    def _assigned(self) -> bool:
        if {(place.topic, place.partition) for place in self.consumer.assignment()} == set(self._places):
            return True
        self._poll(_POLL_S)
        return False

    def _position(self, place: tuple[str, int]) -> int:
        """The offset at which the member continues: after its last record, or where the group was when this process started."""
        if place not in self._next:
            (found,) = self.consumer.committed([TopicPartition(*place)], timeout=_ANSWER_S)
            if found.error is not None:
                raise KafkaException(found.error)
            self._next[place] = max(found.offset, 0)
        return self._next[place]

    def _has_or_revoked(self, place: tuple[str, int], revocations: int) -> bool:
        return self._revocations != revocations or self._has(place)

    def _has(self, place: tuple[str, int]) -> bool:
        """Whether the next record of the partition was fetched. Drops what a rebalance made it fetch again."""
        fetched = self._fetched.setdefault(place, deque())
        while fetched and _number(fetched[0].offset()) < self._next[place]:
            fetched.popleft()
        if not fetched:
            self._poll(_POLL_S)
        return bool(fetched) and _number(fetched[0].offset()) >= self._next[place]

    def _poll(self, timeout_s: float) -> None:
        message = self.consumer.poll(timeout_s)
        if message is None:
            return
        if (error := message.error()) is not None:
            if error.code() == KafkaError._MAX_POLL_EXCEEDED and not self.is_static:
                self._forget_partitions(self.consumer, [])
                return  # the client has left the group by then, and joins again in this poll
            raise KafkaException(error)
        fetched = self._fetched.setdefault((str(message.topic()), _number(message.partition())), deque())
        if not fetched or _number(message.offset()) > _number(fetched[-1].offset()):
            fetched.append(message)

    def acknowledge(self, taken: Taken) -> None:
        try:
            for found in self.consumer.commit(offsets=[self.after(taken)], asynchronous=False):
                if found.error is not None:
                    raise KafkaException(found.error)
        except KafkaException as error:
            self.go_back(taken)
            raise as_lost(error) from error
        self._busy = False

    def _forget_partitions(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        """Forget all partitions when a rebalance begins: they are revoked before they are assigned again."""
        self._revocations += 1
        self._next.clear()
        self._fetched.clear()

    def go_back(self, taken: Taken) -> None:
        """Continue from what the group has committed: this message again, unless its acknowledgement arrived after all."""
        topic, partition, offset = taken.tag
        del self._next[topic, partition]
        self._busy = False
        if self._position((topic, partition)) <= offset:
            self.release(taken)

    def release(self, taken: Taken) -> None:
        topic, partition, offset = taken.tag
        self._next[topic, partition] = offset
        self._busy = False
        assert self._held is not None, "it was taken"
        self._fetched[topic, partition].appendleft(self._held)

    @staticmethod
    def after(taken: Taken) -> TopicPartition:
        """The offset to commit when the message is done: that of the next one."""
        topic, partition, offset = taken.tag
        return TopicPartition(topic, partition, offset + 1)

    def _await(self, what: str, probe: Any) -> None:
        # Not `onceproof.base.waiting`: that loads libraries that a consumer does not need, and a replay starts many consumers.
        until = time.monotonic() + _DEADLINE_S
        while not probe():
            if time.monotonic() > until:
                raise TimeoutError(f"{os.environ['ONCEPROOF_CONSUMER']} waited {_DEADLINE_S:.0f} s for {what}")


def _membership() -> dict[str, Any]:
    """The settings of its membership: a name that stays, or how long it may go without a poll before the group removes it."""
    session_ms = int(os.environ.get("ONCEPROOF_SESSION_MS", _SESSION_MS))
    if "ONCEPROOF_MEMBER" in os.environ:
        return {"group.instance.id": os.environ["ONCEPROOF_MEMBER"], "session.timeout.ms": session_ms}
    waits_ms = int(os.environ["ONCEPROOF_POLL_INTERVAL_MS"])
    return {"max.poll.interval.ms": waits_ms, "session.timeout.ms": min(waits_ms, session_ms)}


def as_lost(error: KafkaException) -> Lost:
    """The exception for an acknowledgement that failed."""
    return (AcknowledgementRefused if error.args[0].code() in _NOT_A_MEMBER else Lost)(str(error))


def send_effect(
    producer: Producer, topic: str, taken: Taken, timeout_s: float, more: Mapping[str, bytes] | None = None
) -> list[Any]:
    """Send the effect of a message, with ``more`` headers, and return the broker's answers (`send`)."""
    headers = {_HEADER: taken.message.encode(), **(more or {})}
    return send(producer, topic, taken.body, taken.key, timeout_s, partition=0, headers=headers)


class KafkaTopic:
    """Effects as records, all in partition 0, so that there is one order to look at."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {**producer_config(os.environ["ONCEPROOF_KAFKA"]), "enable.idempotence": True, "acks": "all"}
        )

    def write(self, taken: Taken, headers: Mapping[str, bytes] | None = None) -> None:
        answers = send_effect(self._producer, self._topic, taken, _DEADLINE_S, headers)
        if not answers:
            raise TimeoutError(f"{self._topic} did not answer within {_DEADLINE_S:.0f} s")
        (error,) = answers
        if error is not None:
            if error.name() == "MSG_SIZE_TOO_LARGE":
                raise EffectRefused(error.str())
            raise KafkaException(error)


class DeadLetterTopic:
    """A record for each dead letter: the message as text, its place in the input, and why the output refused it.

    The topic of the input is in the header ``topic``.
    """

    def __init__(self, topic: str) -> None:
        self._topic = KafkaTopic(topic)

    def write(self, taken: Taken, reason: str) -> None:
        topic, partition, offset = taken.tag
        letter = {
            "partition": partition,
            "offset": offset,
            "message": taken.body.decode(errors="replace"),
            "reason": reason,
        }
        body = json.dumps(letter, ensure_ascii=False).encode()
        self._topic.write(replace(taken, body=body), {"topic": topic.encode()})


def dead_letters() -> DeadLetterTopic | None:
    """The topic for dead letters, if the scenario has one."""
    topic = os.environ.get("ONCEPROOF_DEAD_LETTER")
    return DeadLetterTopic(topic) if topic else None


def client_of(source: MessageSource) -> Client:
    """The client with that source, whose effects and retries go to topics, each written at once."""
    retry, output = os.environ.get("ONCEPROOF_RETRY"), KafkaTopic(os.environ["ONCEPROOF_OUTPUT"])
    return Client(source, output, None, KafkaTopic(retry) if retry else None, dead_letters())


def as_taken(message: Message, *, redelivered: bool, tag: Any = None) -> Taken:
    """The record as a message: its name is in its header ``message``."""
    place = (str(message.topic()), _number(message.partition()), _number(message.offset()))
    headers: Any = dict(message.headers() or [])
    name, key, value = headers.get(_HEADER, b""), message.key(), message.value()
    queue = f"{place[0]}-{place[1]}"
    return Taken(name.decode(), queue, _raw(key), _raw(value) or b"", redelivered, place if tag is None else tag)


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _number(value: int | None) -> int:
    assert value is not None, "a record without an error has a position"
    return value


def _place(queue: str) -> tuple[str, int]:
    topic, _, partition = queue.rpartition("-")
    return topic, int(partition)
