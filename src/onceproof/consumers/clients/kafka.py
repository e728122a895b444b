"""Opens the client of a Kafka consumer group that the environment asks for: by output and by ``ONCEPROOF_ACKNOWLEDGE``."""

from __future__ import annotations

import os

from onceproof.consumers.clients import kafka_transaction
from onceproof.consumers.clients.contract import Client
from onceproof.consumers.clients.kafka_group import KafkaGroup, client_of


def open_client(acknowledge: str) -> Client:
    if "ONCEPROOF_TABLE" in os.environ:
        from onceproof.consumers.clients import postgres as postgres_client  # needs a driver that Kafka alone does not

        return postgres_client.open_client(acknowledge)
    if acknowledge == "with-effect":
        return kafka_transaction.open_client()
    return client_of(KafkaGroup())
