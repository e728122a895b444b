"""The client of a Kafka share group (KIP-932): records one at a time, each acknowledged by itself, effects into a topic."""

from __future__ import annotations

import os

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message, ShareConsumer

from onceproof.consumers.clients.contract import AcknowledgementRefused, Client, Taken
from onceproof.consumers.clients.kafka_group import as_taken, client_of
from onceproof.stack.kafka.clients import client_config

#: For a record that is known to exist: a new member has to be assigned its partitions first. Shorter than the harness waits for
#: a step. A take that finds nothing is reported as empty, and the schedule then differs.
_TAKE_S = 50.0
#: A consumer may be held at a step for as long as the start of another one takes.
_HELD_MS = 600_000


class ShareGroup:
    def __init__(self) -> None:
        self._consumer = ShareConsumer(
            {
                **client_config(os.environ["ONCEPROOF_KAFKA"]),
                "group.id": os.environ["ONCEPROOF_GROUP"],
                "client.id": os.environ["ONCEPROOF_MARK"],
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": 1,
                "max.poll.interval.ms": _HELD_MS,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.subscribe(os.environ["ONCEPROOF_TOPICS"].split(","))

    def take(self) -> Taken | None:
        messages = list(self._consumer.poll(timeout=_TAKE_S))
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
        if not messages:
            return None
        first, *more = messages
        if more:  # max.poll.records is best effort, and no other consumer is given the surplus records
            for message in more:
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
            self._settle()
        return as_taken(first, redelivered=_count(first) > 1, tag=first)

    def acknowledge(self, taken: Taken) -> None:
        self._consumer.acknowledge(taken.tag, AcknowledgeType.ACCEPT)
        try:
            self._settle()
        except KafkaException as refused:
            # Its lock has ended and another consumer has the record. Once that is done, the broker answers without an error.
            if refused.args[0].code() == KafkaError.INVALID_RECORD_STATE:
                raise AcknowledgementRefused(str(refused)) from refused
            raise

    def release(self, taken: Taken) -> None:
        self._consumer.acknowledge(taken.tag, AcknowledgeType.RELEASE)
        self._settle()

    def idle(self) -> None:
        """Does nothing: heartbeats need no call, and a poll would take a record."""

    def _settle(self) -> None:
        for problem in self._consumer.commit_sync(timeout=_TAKE_S).values():
            if problem is not None:
                raise problem


def _count(message: Message) -> int:
    """How often the record was given out, this time included."""
    return message.delivery_count() or 1


def open_client(acknowledge: str) -> Client:
    assert acknowledge != "with-effect", "validated: a share group takes part in no transaction"
    if "ONCEPROOF_TABLE" in os.environ:
        from onceproof.consumers.clients import postgres as postgres_client

        return Client(ShareGroup(), postgres_client.open_rows())
    return client_of(ShareGroup())
