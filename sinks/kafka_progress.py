"""Progress as records of a topic, written in the same transaction as the data and read back reliably.

A record is used instead of ``send_offsets_to_transaction``, because that call can hang past its timeout when the group
coordinator dies, and the group's offsets are completed asynchronously after the commit.
"""

from __future__ import annotations

import json
import reprlib
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from ._lazy import confluent_kafka, kafka_admin
from .errors import SinkError
from .kafka_clients import meet_brokers
from .offsets import Progress

if TYPE_CHECKING:
    from confluent_kafka import IsolationLevel, KafkaException, Message

PARTITION = 0
"""All progress of a pipeline is in one partition of the topic, so that one end offset bounds it: in this one by default."""

_FIRST_WINDOW = 64
# Even near the deadline a request must have time for its answer: a new client has to find the leader first.
_SHORTEST_REQUEST_S = 3.0


class ProgressUnreadable(SinkError):
    """The progress topic could not be read to its end. This never counts as "no progress yet"."""


class ProgressReader:
    """Reads one pipeline's last committed progress record. Keeps its connections between batches."""

    def __init__(
        self, settings: dict[str, Any], topic: str, pipeline: str, *, timeout_s: float, partition: int = PARTITION
    ) -> None:
        self._topic = topic
        self._key = pipeline.encode()
        self.turn_to(partition)
        self._timeout_s = timeout_s
        self._admin = kafka_admin.AdminClient(settings)
        self._consumer = confluent_kafka.Consumer(
            {
                **settings,
                "group.id": f"onceproof-{pipeline}",  # librdkafka requires a group id; nothing is ever committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                # An empty fetch shows the end of the partition, and by default the broker would delay it by 500 ms.
                "fetch.wait.max.ms": 10,
            }
        )

    def turn_to(self, partition: int, pipeline: str | None = None) -> None:
        """From now on, read this partition of the topic; and the progress of ``pipeline``, if it is given."""
        self._key = self._key if pipeline is None else pipeline.encode()
        self._partition = confluent_kafka.TopicPartition(self._topic, partition)
        self._place = f"{self._topic}/{partition}"

    def partitions(self) -> list[int]:
        """The topic's partitions, or the one that is read if the topic does not exist. Raises `ProgressUnreadable`."""
        return sorted(self._meet(time.monotonic() + self._timeout_s)) or [self._partition.partition]

    def last(self) -> Progress | None:
        """The last committed record of this pipeline, or None if there never was one. Raises `ProgressUnreadable`.

        Call it after ``init_transactions`` of the pipeline's transactional.id: then its earlier transactions have ended
        and their markers are written, so all of them are below the end offset that is read here.
        """
        deadline = time.monotonic() + self._timeout_s
        self._meet(deadline)
        end = self._stable_end(deadline)
        start = self._offset("earliest", confluent_kafka.IsolationLevel.READ_UNCOMMITTED, deadline)
        # Read backwards from the end in growing windows: normally a batch needs one small read, however long the topic is.
        window, high = _FIRST_WINDOW, end
        while high > start:
            low = max(start, high - window)
            found = self._last_between(low, high, deadline)
            if found is not None:
                return found
            window, high = window * 4, low
        return None

    def all(self) -> dict[str, Progress]:
        """Pipeline -> its last committed record, of all pipelines in the partition. Reads all of it. Raises `ProgressUnreadable`."""
        deadline = time.monotonic() + self._timeout_s
        self._meet(deadline)
        end = self._stable_end(deadline)
        start = self._offset("earliest", confluent_kafka.IsolationLevel.READ_UNCOMMITTED, deadline)
        if start == end:
            return {}
        with closing(self._between(start, end, deadline)) as records:
            return {(message.key() or b"").decode(errors="replace"): self._progress(message) for message in records}

    def close(self) -> None:
        self._consumer.close()

    def _meet(self, deadline: float) -> Iterable[int]:
        """The topic's partitions."""
        try:
            found = meet_brokers(self._admin, self._topic, timeout_s=self._left(deadline)).topics[self._topic]
        except confluent_kafka.KafkaException as error:
            raise self._unreadable(error) from error
        if found.error is None and self._partition.partition not in found.partitions:
            raise ProgressUnreadable(
                f"progress topic {self._topic!r} has {len(found.partitions)} partitions, and no {self._place}",
                hint="add partitions: a sink that writes from tasks needs as many as the source topic has",
            )
        return found.partitions

    def _stable_end(self, deadline: float) -> int:
        """The end of the log, as soon as no transaction below it is open.

        An open transaction of *another* pipeline in the same topic holds back the last stable offset, which hides our
        own committed records from a read_committed reader. So this method waits until it has ended.
        """
        end = self._offset("latest", confluent_kafka.IsolationLevel.READ_UNCOMMITTED, deadline)
        while self._offset("latest", confluent_kafka.IsolationLevel.READ_COMMITTED, deadline) < end:
            self._demand_time(deadline, f"an open transaction of another pipeline on {self._place} to end")
            time.sleep(0.02)  # between two requests to the broker; bounded by the deadline
        return end

    def _offset(self, end: Literal["earliest", "latest"], isolation: IsolationLevel, deadline: float) -> int:
        left = self._left(deadline)
        # The class has no type annotations, and is exported, but not in __all__.
        spec: Any = getattr(kafka_admin.OffsetSpec, end)()  # type: ignore[attr-defined]
        futures = self._admin.list_offsets({self._partition: spec}, isolation_level=isolation, request_timeout=left)
        try:
            return int(futures[self._partition].result().offset)
        except confluent_kafka.KafkaException as error:
            raise self._unreadable(error) from error

    @staticmethod
    def _left(deadline: float) -> float:
        return max(_SHORTEST_REQUEST_S, deadline - time.monotonic())

    def _unreadable(self, error: KafkaException) -> ProgressUnreadable:
        return ProgressUnreadable(
            f"cannot read the end of progress topic {self._place}: {error.args[0].str()}",
            hint="the topic must exist, and its leader must answer",
        )

    def _last_between(self, low: int, high: int, deadline: float) -> Progress | None:
        found: Message | None = None
        for message in self._between(low, high, deadline):
            if message.key() == self._key:
                found = message
        return None if found is None else self._progress(found)

    def _progress(self, message: Message) -> Progress:
        try:
            return Progress(**json.loads(message.value() or b""))
        except (ValueError, TypeError):
            raise ProgressUnreadable(
                f"{self._place}, offset {message.offset()}: the record of {message.key()!r} is not progress: "
                f"{reprlib.repr(message.value())}",
                hint="is it the progress topic of the pipeline? Nothing but sinks may write to it",
            ) from None

    def _between(self, low: int, high: int, deadline: float) -> Generator[Message]:
        """The committed records from ``low`` up to, but not including, ``high``."""
        self._consumer.assign([confluent_kafka.TopicPartition(self._topic, self._partition.partition, low)])
        try:
            while True:
                message = self._consumer.poll(0.1)
                if message is None:
                    self._demand_time(deadline, f"records [{low}, {high}) of {self._place}")
                    continue
                error, offset = message.error(), message.offset() or 0
                if error is not None:
                    # The end of the partition may be after control markers, which consumers never get.
                    if error.code() == confluent_kafka.KafkaError._PARTITION_EOF and offset >= high:
                        return
                    if error.code() != confluent_kafka.KafkaError._PARTITION_EOF and not error.retriable():
                        raise ProgressUnreadable(f"cannot read {self._place}: {error.str()}")
                    continue
                if offset >= high:
                    return
                yield message
                if offset == high - 1:
                    return
        finally:
            self._consumer.unassign()

    def _demand_time(self, deadline: float, wanted: str) -> None:
        if time.monotonic() > deadline:
            raise ProgressUnreadable(
                f"gave up after {self._timeout_s:g} s waiting for {wanted}",
                hint="check that the partition's leader is reachable; the next attempt reads again",
            )
