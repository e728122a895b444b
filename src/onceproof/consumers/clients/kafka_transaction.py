"""A consumer whose effect and offset are one Kafka transaction (KIP-98, KIP-447): both are committed, or neither is.

The offset goes into the transaction with `send_offsets_to_transaction`. So the group's committed offset is neither ahead of
the records that a read_committed reader sees, nor does it lag behind them.
"""

from __future__ import annotations

import os

from confluent_kafka import KafkaException, Producer

from onceproof.consumers.clients.contract import AcknowledgementRefused, Client, Taken
from onceproof.consumers.clients.kafka_group import KafkaGroup, as_lost, send_effect
from onceproof.stack.kafka.clients import producer_config

#: Shorter than the transaction's time-out at the broker (10 s), so that the client times out first.
_ANSWER_S = 5.0
_OFFSETS_S = 2.0


class Transaction:
    """One transaction per message. Its id is the member's, so that a dead member's successor aborts what that had left open."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        """Make a new producer. A producer that failed is not used again: a late answer to it could end the next transaction."""
        group = os.environ["ONCEPROOF_GROUP"]
        member = os.environ.get("ONCEPROOF_MEMBER", os.environ["ONCEPROOF_CONSUMER"])
        self.producer = Producer(
            {**producer_config(os.environ["ONCEPROOF_KAFKA"]), "transactional.id": f"{group}.{member}"}
        )
        self.producer.init_transactions(30.0)

    def abandon(self) -> None:
        """Discard the open transaction: the new producer's `init_transactions` aborts what the old one had begun."""
        self._open()


class TransactionalGroup(KafkaGroup):
    """Takes like any member of the group; its acknowledgements count once the transaction is committed."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__()
        self._transaction = transaction
        self._member: object = None

    def take(self) -> Taken | None:
        taken = super().take()
        # The membership at the take (KIP-447): when it acknowledges, the client may no longer be a member, or may be another one.
        self._member = self.consumer.consumer_group_metadata()
        return taken

    def acknowledge(self, taken: Taken) -> None:
        # A static member keeps its name, and takes part in rebalances while it has a message.
        member = self.consumer.consumer_group_metadata() if self.is_static else self._member
        try:
            self._transaction.producer.send_offsets_to_transaction([self.after(taken)], member, _OFFSETS_S)
        except KafkaException as error:
            failed = as_lost(error)
            # End the transaction first: while it is open, its offset is neither committed nor discarded.
            if isinstance(failed, AcknowledgementRefused):
                # The broker has answered: nothing of the transaction can arrive later.
                self._transaction.producer.abort_transaction(_ANSWER_S)
            else:
                self._transaction.abandon()
            self.go_back(taken)
            raise failed from error
        self._busy = False


class TransactionalTopic:
    """Effects as records of the open transaction, all in partition 0."""

    def __init__(self, topic: str, transaction: Transaction) -> None:
        self._topic = topic
        self._transaction = transaction

    def write(self, taken: Taken) -> None:
        producer = self._transaction.producer
        producer.begin_transaction()
        answers = send_effect(producer, self._topic, taken, _ANSWER_S)
        if answers != [None]:
            raise KafkaException(answers[0] if answers else f"{self._topic} did not answer within {_ANSWER_S:.0f} s")


def open_client() -> Client:
    transaction = Transaction()
    source = TransactionalGroup(transaction)

    def commit() -> None:
        transaction.producer.commit_transaction(_ANSWER_S)

    return Client(source, TransactionalTopic(os.environ["ONCEPROOF_OUTPUT"], transaction), commit)
