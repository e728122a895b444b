"""Records that their topic does not take, kept in another topic with their source and the reason, in the transaction of the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._lazy import confluent_kafka, kafka_admin
from .errors import RecordRefused, SinkError
from .kafka_clients import meet_brokers
from .kafka_records import Addressed, Record, RecordLimits, readable
from .offsets import Ranges

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Default of librdkafka's ``batch.size``.
_BATCH_BYTES = 1_000_000


class DeadLetterTopic:
    """The topic ``letters``, for the records that ``topic`` does not take. Pipelines may share it.

    A user without the right to read the settings of the topics (DescribeConfigs) has only the limit of the producer.
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, letters: str, pipeline: str, *, timeout_s: float
    ) -> None:
        """``settings`` are those of librdkafka."""
        self._settings = settings
        self._topic = topic
        self._letters = letters
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._admin: AdminClient | None = None
        self._of_records = RecordLimits.of_producer(topic, settings)
        self._of_letters = RecordLimits.of_producer(letters, settings)

    def read_limits(self) -> None:
        """Read what the two topics take now, before the records of a batch are sent.

        Raises `KafkaException`, and `SinkError` if the topic of dead letters does not exist or would not keep them.
        """
        if self._admin is None:
            admin = kafka_admin.AdminClient(dict(self._settings))
            meet_brokers(admin, self._letters, timeout_s=self._timeout_s)
            self._admin = admin
        resource_of: Any = kafka_admin.ConfigResource  # type: ignore[attr-defined]  # exported, not in __all__
        resources = [resource_of("topic", name) for name in (self._topic, self._letters)]
        found = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
        self._of_records, self._of_letters = (self._limits(resource.name, found[resource]) for resource in resources)
        if self._of_letters.needs_key:
            raise SinkError(
                f"topic {self._letters!r} of dead letters is compacted (cleanup.policy): it would lose all but the last of them",
                hint="set its cleanup.policy to delete",
            )

    def batch_bytes(self) -> int:
        """librdkafka's ``batch.size``: the topics must also take several records in one batch."""
        known = [
            limits.topic_bytes for limits in (self._of_records, self._of_letters) if limits.topic_bytes is not None
        ]
        return max(1, min([int(self._settings.get("batch.size", _BATCH_BYTES)), *known]))

    def fitting(self, record: Record) -> Record:
        """``record``, if its topic takes it. Raises `RecordRefused`."""
        return self._of_records.fitting(record)

    def letter(
        self, query_id: str, ranges: Ranges, number: int, row: Mapping[str, Any], refused: RecordRefused
    ) -> Addressed:
        """The dead letter of row ``number`` of a batch. Raises `SinkError` if not even its beginning fits into a record."""
        letter = {
            "pipeline": self._pipeline,
            "query_id": query_id,
            "batch_id": ranges.batch,
            "source": ranges.by_partition(),
            "row_number": number,
            "row_value": readable(row),
            "truncated": False,
            "reason": str(refused),
        }
        # One key, and so one partition: the letters of a pipeline keep their order.
        key, value = self._pipeline.encode(), json.dumps(letter).encode()
        if self._of_letters.room((key, value)) < 0:
            text = json.dumps(letter["row_value"])
            letter |= {"row_value": "", "truncated": True}
            room = self._of_letters.room((key, json.dumps(letter).encode()))
            if room < 0:
                raise SinkError(
                    f"a dead letter for topic {self._letters!r} is too large even without its row: {-room:,} bytes more than fit",
                    hint="raise max.message.bytes of the topic and message.max.bytes in the sink's config",
                ) from refused
            # JSON within JSON: each quote and each backslash becomes two characters.
            letter["row_value"] = text[: room // 2]
            value = json.dumps(letter).encode()
        return self._letters, key, value

    def _limits(self, topic: str, described: Any) -> RecordLimits:
        limits = RecordLimits.of_producer(topic, self._settings)
        try:
            settings = {name: entry.value for name, entry in described.result().items()}
        except confluent_kafka.KafkaException as error:
            codes = confluent_kafka.KafkaError
            if error.args[0].code() in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
                return limits
            if error.args[0].code() == codes.UNKNOWN_TOPIC_OR_PART:
                raise SinkError(
                    f"topic {topic!r} does not exist", hint="create it, with a retention that is long enough"
                ) from error
            raise
        compacted = "compact" in settings["cleanup.policy"].split(",")
        return RecordLimits(topic, limits.producer_bytes, int(settings["max.message.bytes"]), compacted)
