"""Looking at a sink's commit directly, past every proxy: was it applied? The client of a broken connection cannot know.

Both services answer with authority: Postgres by ``pg_xact_status`` of the transaction id that the parked sink named, Kafka
by the last stable offset and a read_committed read of what lies below it.
"""

from __future__ import annotations

from typing import Any, Literal

import psycopg
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__

from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Kafka, Postgres
from onceproof.stack.kafka.clients import client_config

# Made here once: the class has no annotations.
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]

Status = Literal["committed", "aborted", "in progress"]

_ASK_S = 10.0
"""The harness's own listeners are never faulted; an answer that takes longer means that the service is gone."""


def postgres_status(postgres: Postgres, xid: str) -> Status:
    """What became of transaction ``xid`` (a 64-bit id, as ``pg_current_xact_id()`` prints it)."""
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(_ASK_S), autocommit=True) as connection:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", (xid,)).fetchone()
    status = row[0] if row else None
    if status not in ("committed", "aborted", "in progress"):
        raise ValueError(f"Postgres no longer knows what became of transaction {xid}")
    return status  # type: ignore[no-any-return]  # narrowed above; psycopg's row is untyped


def postgres_xid(postgres: Postgres, backend_pid: int) -> str | None:
    """The 64-bit id of the transaction that a backend is in; None if it has written nothing."""
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(_ASK_S), autocommit=True) as connection:
        row = connection.execute(_XID_SQL, (backend_pid,)).fetchone()
    return None if row is None or row[0] is None else str(row[0])


#: pg_stat_activity shows the lower half; the upper one is that of the newest transaction.
_XID_SQL = """
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 32 << 32) | backend_xid::text::bigint
FROM pg_stat_activity WHERE pid = %s
"""


class OpenTransaction:
    """The end of a topic's partitions while a parked sink holds a transaction open on them, to be compared with later."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._config = client_config(kafka.harness_bootstrap)
        self._admin = AdminClient(self._config)
        metadata = meet_brokers(self._admin, topic, timeout_s=_ASK_S).topics[topic]
        self._partitions = [TopicPartition(topic, p) for p in metadata.partitions]
        high = self._ends(IsolationLevel.READ_UNCOMMITTED)
        stable = self._ends(IsolationLevel.READ_COMMITTED)
        self._open = {p: (stable[p], high[p]) for p in high if stable[p] < high[p]}
        """partition -> (last stable offset, high watermark), where something is open"""

    @property
    def anything_open(self) -> bool:
        return bool(self._open)

    def ended(self) -> bool:
        """Whether the last stable offset has passed everything that was open: it was committed or aborted."""
        stable = self._ends(IsolationLevel.READ_COMMITTED)
        return all(stable[p] >= high for p, (_, high) in self._open.items())

    def visible(self) -> bool:
        """Whether a read_committed reader now gets a record of what was open: it was committed."""
        consumer = Consumer(
            {
                **self._config,
                "group.id": "onceproof-harness",
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
                message = consumer.poll(_ASK_S)
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
        """The open ranges, for evidence."""
        topic = self._partitions[0].topic
        return ", ".join(f"{topic}/{p} offsets {low} to {high - 1}" for p, (low, high) in sorted(self._open.items()))

    def _ends(self, isolation: IsolationLevel) -> dict[int, int]:
        futures = self._admin.list_offsets(
            dict.fromkeys(self._partitions, _LATEST), isolation_level=isolation, request_timeout=_ASK_S
        )
        return {p.partition: future.result(_ASK_S).offset for p, future in futures.items()}
