"""Observes a transaction that a parked sink keeps open on a topic, and whether it was committed.

All reads go past every proxy: the last stable offset shows that it ended, a read_committed read that it was committed.
"""

from __future__ import annotations

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Kafka
from onceproof.stores.kafka.state import ASK_S, LATEST


class OpenTransaction:
    """The open offsets of a topic's partitions while a parked sink keeps a transaction open, to compare with later."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._config = kafka.harness_client()
        self._admin = AdminClient(self._config)
        metadata = meet_brokers(self._admin, topic, timeout_s=ASK_S).topics[topic]
        self._partitions = [TopicPartition(topic, p) for p in metadata.partitions]
        high = self._ends(IsolationLevel.READ_UNCOMMITTED)
        stable = self._ends(IsolationLevel.READ_COMMITTED)
        self._open = {p: (stable[p], high[p]) for p in high if stable[p] < high[p]}
        """Partition -> (last stable offset, high watermark), for partitions with open records."""

    @property
    def has_open_records(self) -> bool:
        return bool(self._open)

    def ended(self) -> bool:
        """Whether the last stable offset has passed all open records: the transaction was committed or aborted."""
        stable = self._ends(IsolationLevel.READ_COMMITTED)
        return all(stable[p] >= high for p, (_, high) in self._open.items())

    def visible(self) -> bool:
        """Whether a read_committed reader now gets one of the records that were open: the transaction was committed."""
        consumer = Consumer(
            {
                "group.id": "onceproof-harness",
                **self._config,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            topic = self._partitions[0].topic
            consumer.assign([TopicPartition(topic, p, stable) for p, (stable, _) in self._open.items()])
            waiting = set(self._open)
            while waiting:
                message = consumer.poll(ASK_S)
                if message is None:
                    return False
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None, "a message and an end of partition have both"
                if message.error() is None and offset < self._open[partition][1]:
                    return True
                waiting.discard(partition)
            return False
        finally:
            consumer.close()

    def describe(self) -> str:
        """The open ranges of offsets, for evidence."""
        topic = self._partitions[0].topic
        return ", ".join(f"{topic}/{p} offsets {low} to {high - 1}" for p, (low, high) in sorted(self._open.items()))

    def _ends(self, isolation: IsolationLevel) -> dict[int, int]:
        futures = self._admin.list_offsets(
            dict.fromkeys(self._partitions, LATEST), isolation_level=isolation, request_timeout=ASK_S
        )
        return {p.partition: future.result(ASK_S).offset for p, future in futures.items()}
