"""Reads topics of a cluster that is in use: no consumer group, nothing committed, no topic created, only committed records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.errors import HistoryError, UsageError
from onceproof.base.registry import suggest
from onceproof.stack.kafka.clients import client_config
from onceproof.stores.kafka.rows import offset_of

#: Records that one call reads at most.
_BATCH = 10_000
_REQUEST_S = 10.0


class Topics:
    """The partitions of some topics, read from given offsets onwards. Use it with ``with``."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        """Raises `UsageError` for a topic that does not exist, and `HistoryError` if the brokers cannot be reached."""
        self._bootstrap = bootstrap
        self.topics = topics
        self.positions: dict[tuple[str, int], int] = {}
        """(topic, partition) -> the next offset to read, past markers of transactions."""
        self._admin = AdminClient(client_config(bootstrap))
        self._consumer = Consumer(
            {
                # librdkafka requires a group id even for a consumer that never joins a group.
                "group.id": "onceproof-watch",
                **client_config(bootstrap),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                # The last record does not show the end of a partition: markers and aborted records may follow it.
                "enable.partition.eof": True,
                # Records wait here while a window is judged. By default they may take 64 MiB per partition.
                "queued.max.messages.kbytes": 16_384,
                "fetch.message.max.bytes": 1 << 20,
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            self._check_topics()
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def ends(self) -> dict[tuple[str, int], int]:
        """The last stable offset of each partition: committed records below it can be read now. New partitions are read from 0 on.

        Raises `HistoryError` if the brokers do not answer, or if a topic was deleted.
        """
        places = [place for topic in self.topics for place in self._partitions(topic)]
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
        try:
            answers = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_S
            )
            ends = {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
        except KafkaException as error:
            raise self._unreachable(error) from error
        for place, end in ends.items():
            if place in self.positions and end < self.positions[place]:
                raise HistoryError(
                    f"{place[0]}/{place[1]} ends at offset {end}, and was read up to {self.positions[place]}: "
                    "it was deleted and created again, or its leader has lost records"
                )
            if self.positions and place not in self.positions:
                self._consumer.incremental_assign([TopicPartition(*place, 0)])
                self.positions[place] = 0
        return ends

    def at_time(self, seconds: float, ends: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """The first offset of each partition whose timestamp is at or after this one, seconds since 1970; at most its end."""
        asked = [TopicPartition(*place, int(seconds * 1000)) for place in ends]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=_REQUEST_S)
        except KafkaException as error:
            raise self._unreachable(error) from error
        return {
            (place.topic, place.partition): min(place.offset, ends[place.topic, place.partition])
            if place.offset >= 0
            else ends[place.topic, place.partition]
            for place in found
        }

    def start(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Read each partition from these offsets on."""
        self.positions = dict(starts)
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def read(self, timeout_s: float) -> Iterator[tuple[str, int, list[Message]]]:
        """The next records, by topic and partition, in offset order. Returns at the latest after ``timeout_s`` if there are none.

        Raises `HistoryError` if records cannot be read: retention has removed them, or the topic was deleted.
        """
        found: dict[tuple[str, int], list[Message]] = {}
        for message in self._consumer.consume(_BATCH, timeout=timeout_s):
            error = message.error()
            topic, partition = message.topic(), message.partition()
            if error is None:
                assert topic is not None and partition is not None
                found.setdefault((topic, partition), []).append(message)
                self.positions[topic, partition] = offset_of(message) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                assert topic is not None and partition is not None
                self.positions[topic, partition] = max(self.positions[topic, partition], offset_of(message))
            elif not (error.retriable() or error.code() in _PASSING):
                where = self.positions.get((topic or "", partition or 0))
                raise HistoryError(
                    f"{topic}/{partition} cannot be read at offset {where}: {error.str()}",
                    hint="if retention removes records within seconds, it cannot be watched",
                )
        for (topic, partition), messages in found.items():
            yield topic, partition, messages

    def _check_topics(self) -> None:
        try:
            known = self._consumer.list_topics(timeout=_REQUEST_S).topics
        except KafkaException as error:
            raise self._unreachable(error) from error
        for topic in self.topics:
            if topic not in known:
                names = [name for name in known if not name.startswith("__")]
                raise UsageError(f"Kafka at {self._bootstrap} has no topic {topic!r}", hint=suggest(topic, names))

    def _partitions(self, topic: str) -> list[tuple[str, int]]:
        try:
            found = self._consumer.list_topics(topic, timeout=_REQUEST_S).topics[topic]
        except KafkaException as error:
            raise self._unreachable(error) from error
        if found.error is not None and not found.partitions:
            raise HistoryError(f"topic {topic!r} cannot be read: {found.error.str()}")
        return [(topic, partition) for partition in sorted(found.partitions)]

    def _unreachable(self, error: KafkaException) -> HistoryError:
        why = error.args[0].str() if error.args else str(error)
        return Unreachable(f"Kafka at {self._bootstrap} does not answer: {why}")


class Unreachable(HistoryError):
    """The brokers do not answer now. They may later."""


#: Errors that a client reports while it tries again.
_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
