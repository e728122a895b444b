"""A Kafka topic that a program writes to, mostly with one partition. A record can carry its position in the log that it comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, not all re-exported
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)


class Topic:
    def __init__(self, output: str) -> None:
        """``output``: an output of the scenario, or else a topic of the program's own, which is created if it does not exist."""
        outputs = json.loads(os.environ["ONCEPROOF_OUTPUTS"])
        self._name = outputs.get(output, f"{os.environ['ONCEPROOF_GROUP']}-{output}")
        self._servers: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["ONCEPROOF_KAFKA"]}
        self._producer = Producer({**self._servers, "enable.idempotence": True, "acks": "all"})
        if output not in outputs:
            self._create()

    def _create(self) -> None:
        admin = AdminClient(self._servers)
        try:
            admin.create_topics([NewTopic(self._name, 1)])[self._name].result()
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def compact(self) -> None:
        """Let Kafka keep only the last record of each key, and of a deleted key none."""
        policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        of = ConfigResource(ResourceType.TOPIC, self._name, incremental_configs=[policy])
        admin = AdminClient(self._servers)  # closed when nothing names it any more, so not before it has answered
        admin.incremental_alter_configs([of])[of].result()

    def partitions(self) -> int:
        """How many it has now."""
        return len(self._producer.list_topics(self._name, timeout=10).topics[self._name].partitions)

    def send(
        self, value: dict[str, Any] | None, key: str | None = None, position: str = "", partition: int = 0
    ) -> None:
        """Return when the broker has the record. Without a value it is a tombstone: it deletes its key."""
        answers: list[Any] = []
        self._producer.produce(
            self._name,
            None if value is None else json.dumps(value).encode(),
            key,
            partition=partition,
            headers={"position": position.encode()},
            on_delivery=lambda error, _: answers.append(error),
        )
        self._producer.flush()
        if answers != [None]:
            raise KafkaException(*answers)

    def newest_position(self) -> str:
        """The position that the last record carries; empty if there is no record."""
        last = [dict(record.headers() or [])["position"].decode() for record in self._read(last=1)]
        return last[0] if last else ""

    def records(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Key and value of all records, in order."""
        return [
            (record.key().decode(), json.loads(record.value()) if record.value() is not None else None)
            for record in self._read()
        ]

    def since(self, begin: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Offset and value of each committed record from offset ``begin`` to the end of the log."""
        settings = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
        with closing(Consumer({**self._servers, **settings})) as reader:
            reader.assign([TopicPartition(self._name, 0, begin)])
            while True:
                record: Any = reader.poll(10)
                if record is None:
                    continue
                if record.error() is None:
                    yield record.offset(), json.loads(record.value())
                elif record.error().code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(record.error())

    def _read(self, last: int | None = None) -> Iterator[Any]:
        with closing(Consumer({**self._servers, "group.id": "none", "enable.auto.commit": False})) as reader:
            begin, end = reader.get_watermark_offsets(TopicPartition(self._name, 0), timeout=10)
            if last is not None:
                begin = max(begin, end - last)
            reader.assign([TopicPartition(self._name, 0, begin)])
            while begin < end:
                record: Any = reader.poll(10)
                if record is not None and record.error() is None:
                    begin = record.offset() + 1
                    yield record
