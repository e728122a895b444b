"""Progress kept as records of a real topic, written in the same transaction as the data, and read back without doubt.

A record, and not ``send_offsets_to_transaction``: that call can hang past its own time-out when the group coordinator
dies, and a group's offsets complete asynchronously after the commit.
"""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__

from onceproof.sinks.errors import SinkError
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.sinks.offsets import Progress

PARTITION = 0
"""All progress of a topic is kept in this one partition, so that one end offset bounds it."""

_FIRST_WINDOW = 64
# Near the deadline a question must still have time for its answer: a client that is new has to find the leader first.
_SHORTEST_REQUEST_S = 3.0

# Made here once: the class has no annotations.
_EARLIEST: Any = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]


class ProgressUnreadable(SinkError):
    """The progress topic could not be read to its end. Never mistaken for "no progress yet"."""


class ProgressReader:
    """Reads one pipeline's last committed progress record. Keeps its connections from one batch to the next."""

    def __init__(self, settings: dict[str, Any], topic: str, pipeline: str, *, timeout_s: float) -> None:
        self._topic = topic
        self._key = pipeline.encode()
        self._timeout_s = timeout_s
        self._partition = TopicPartition(topic, PARTITION)
        self._admin = AdminClient(settings)
        self._consumer = Consumer(
            {
                **settings,
                "group.id": f"onceproof-{pipeline}",  # librdkafka demands one; nothing is ever committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                # The end is known only from a fetch that finds nothing, and the broker would hold that one for 500 ms.
                "fetch.wait.max.ms": 10,
            }
        )

    def last(self) -> Progress | None:
        """The last committed record of this pipeline, None if there was never one. Raises `ProgressUnreadable`.

        To be called after ``init_transactions`` of the pipeline's own transactional.id: its earlier transactions are
        then decided and their markers written, so all of them lie below the end that is asked for here.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            meet_brokers(self._admin, self._topic, timeout_s=self._left(deadline))
        except KafkaException as error:
            raise self._unreadable(error) from error
        end = self._stable_end(deadline)
        start = self._offset(_EARLIEST, IsolationLevel.READ_UNCOMMITTED, deadline)
        # Walk back from the end in growing windows: a batch normally pays for one small read, whatever the topic's age.
        window, high = _FIRST_WINDOW, end
        while high > start:
            low = max(start, high - window)
            found = self._last_between(low, high, deadline)
            if found is not None:
                return found
            window, high = window * 4, low
        return None

    def close(self) -> None:
        self._consumer.close()

    def _stable_end(self, deadline: float) -> int:
        """The end of the log, once nothing below it is undecided.

        A transaction of *another* pipeline that shares the topic holds the last stable offset back, and with it hides
        our own committed records from a read_committed reader; so its end is waited for.
        """
        end = self._offset(_LATEST, IsolationLevel.READ_UNCOMMITTED, deadline)
        while self._offset(_LATEST, IsolationLevel.READ_COMMITTED, deadline) < end:
            self._demand_time(deadline, f"an open transaction of another pipeline on {self._topic}/{PARTITION} to end")
            time.sleep(0.02)  # between two questions to the broker; bounded by the deadline
        return end

    def _offset(self, spec: Any, isolation: IsolationLevel, deadline: float) -> int:
        left = self._left(deadline)
        futures = self._admin.list_offsets({self._partition: spec}, isolation_level=isolation, request_timeout=left)
        try:
            return int(futures[self._partition].result().offset)
        except KafkaException as error:
            raise self._unreadable(error) from error

    @staticmethod
    def _left(deadline: float) -> float:
        return max(_SHORTEST_REQUEST_S, deadline - time.monotonic())

    def _unreadable(self, error: KafkaException) -> ProgressUnreadable:
        return ProgressUnreadable(
            f"cannot read the end of progress topic {self._topic}/{PARTITION}: {error.args[0].str()}",
            hint="the topic must exist, and its leader must answer",
        )

    def _last_between(self, low: int, high: int, deadline: float) -> Progress | None:
        self._consumer.assign([TopicPartition(self._topic, PARTITION, low)])
        found: Progress | None = None
        try:
            while True:
                message = self._consumer.poll(0.1)
                if message is None:
                    self._demand_time(deadline, f"records [{low}, {high}) of {self._topic}/{PARTITION}")
                    continue
                error, offset = message.error(), message.offset() or 0
                if error is not None:
                    # The end of the partition may lie beyond control markers, which are never handed out.
                    if error.code() == KafkaError._PARTITION_EOF and offset >= high:
                        return found
                    if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                        raise ProgressUnreadable(f"cannot read {self._topic}/{PARTITION}: {error.str()}")
                    continue
                if offset >= high:
                    return found
                if message.key() == self._key:
                    found = Progress(**json.loads(message.value() or b""))
                if offset == high - 1:
                    return found
        finally:
            self._consumer.unassign()

    def _demand_time(self, deadline: float, wanted: str) -> None:
        if time.monotonic() > deadline:
            raise ProgressUnreadable(
                f"gave up after {self._timeout_s:g} s waiting for {wanted}",
                hint="is the partition's leader reachable? the next attempt reads again",
            )
