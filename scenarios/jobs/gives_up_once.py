"""Flights to Kafka, one transaction per batch; the job gives up an attempt and tries again, with a new producer or the same.

A job gives up when a lookup fails or a deadline passes in the middle of a batch: it aborts, and tries again. With
``--reuse-producer`` it does so as many programs do, with the same producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import Producer

from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.kafka_records import Addressed
from onceproof.sinks.offsets import Progress

parser = job_parser(__doc__, topic="flights", planes=None, output="departures", progress="departures-progress")
parser.add_argument("--give-up-in", type=int, nargs="+", required=True, help="batches whose first attempt is given up")
parser.add_argument("--reuse-producer", action="store_true", help="one producer for all transactions")
args = parser.parse_args()


class GivenUp(Exception):
    """The attempt was aborted; no reader may see any of it."""


class GivesUpOnce(KafkaTransactional):
    """Writes the data, then the progress, and aborts the first attempt at some batches."""

    def __init__(self, *args: Any, give_up_in: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._give_up_in = set(give_up_in)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        try:
            return super().write(rows, batch_id)
        except GivenUp:
            return super().write(rows, batch_id)

    def _stage(self, producer: Producer, records: Iterable[Addressed], progress: Progress) -> None:
        super()._stage(producer, records, progress)
        if progress.batch_id in self._give_up_in:
            self._give_up_in.remove(progress.batch_id)
            producer.abort_transaction(self._timeout_s)
            raise GivenUp

    def _produce(self, producer: Producer, topic: str, key: bytes | None, value: bytes, delivered: Any) -> None:
        if topic == self._progress_topic:
            producer.flush(self._timeout_s)  # all data acknowledged before progress is claimed
        super()._produce(producer, topic, key, value, delivered)


class KeptProducer(Producer):
    """A producer that may be initialised again, without effect."""

    _ready = False

    def init_transactions(self, *args: Any, **kwargs: Any) -> None:
        if not self._ready:
            super().init_transactions(*args, **kwargs)
            self._ready = True


class ReusesItsProducer(GivesUpOnce):
    """All transactions in one producer epoch: no call of the client shows what a late EndTxn of one does to the next."""

    _kept: KeptProducer | None = None

    def _producer(self) -> Producer:
        if self._kept is None:
            self._kept = KeptProducer({**self._settings, "transactional.id": self._transactional_id, "linger.ms": 5})
        return self._kept


spark = spark_session("gives-up-once")
sink = (ReusesItsProducer if args.reuse_producer else GivesUpOnce)(
    args.kafka,
    args.output,
    pipeline="gives-up-once",
    progress_topic=args.progress,
    checkpoint=args.checkpoint,
    key="tailnum",
    config=kafka_security("LIBRDKAFKA_PROPERTIES"),
    give_up_in=args.give_up_in,
)
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, sink, args.checkpoint)
