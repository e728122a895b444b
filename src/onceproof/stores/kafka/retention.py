"""Deletes the oldest records of a topic, as retention does (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__

# A constant, because the class has no type annotations.
_EARLIEST: Any = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
ANSWER_S = 20.0
"""Faults never affect the harness's own listeners; if an answer takes longer, the service is gone."""


def delete_before(admin: AdminClient, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Delete the records of each partition before its offset; return the oldest offsets that the broker then reports.

    Kafka's own cleaner would delete whole segments, at times that nobody can place. Raises `KafkaException` if the broker refuses,
    as for a topic that is only compacted.
    """
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for asked in admin.delete_records(places, request_timeout=ANSWER_S).values():
        asked.result()
    found = admin.list_offsets(dict.fromkeys(places, _EARLIEST), request_timeout=ANSWER_S)
    return {place.partition: int(oldest.result().offset) for place, oldest in found.items()}
