"""Kafka's share groups as the broker of consumers (KIP-932): members compete for all records, as on a queue."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.waiting import wait_until
from onceproof.consumers.brokers.kafka import KafkaQueues
from onceproof.consumers.layout import Layout
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.kafka.topics import change_settings

#: The lock is long, because a consumer may be held long.
#: After its end an acknowledgement is refused only while another consumer has the record.
_GROUP = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "600000"}


_WARM_UP_S = 60.0
_LOCK = "share.record.lock.duration.ms"
#: The broker's minimum (``group.share.min.record.lock.duration.ms``); Kafka allows no lower one.
_BRIEFLY_MS = "1000"


class ShareQueues(KafkaQueues):
    """Implements `onceproof.consumers.brokers.contract.Queues` for share groups."""

    def __init__(self, stack: EmbeddedStack, layout: Layout) -> None:
        super().__init__(stack, layout)
        for group in layout.groups():
            change_settings(self.admin, ResourceType.GROUP, self.group(group), _GROUP)

    @staticmethod
    def warm_up(stack: EmbeddedStack) -> None:
        """Have Kafka create ``__share_group_state`` too, by taking a record: nothing else makes Kafka create it."""
        KafkaQueues.warm_up(stack)
        bootstrap, name = stack.kafka.harness_bootstrap, "onceproof-warm-up"
        stack.kafka.create_topic(name, 1)
        change_settings(stack.kafka.admin(), ResourceType.GROUP, name, _GROUP)
        producer = Producer(producer_config(bootstrap))
        producer.produce(name, b"warm up")
        producer.flush()
        consumer = ShareConsumer({**client_config(bootstrap), "group.id": name})
        consumer.subscribe([name])
        wait_until(
            "a share group's first record",
            lambda: list(consumer.poll(timeout=0.5)),
            deadline_s=_WARM_UP_S,
            abandon=stack.check_health,
        )
        consumer.close()

    def is_connected(self, consumer: str, mark: str, check: Callable[[], None]) -> bool:
        """This client cannot ask. The first take of a consumer waits until it is a member."""
        return True

    def await_gone(self, consumer: str, mark: str) -> None:
        """This client cannot ask: the broker takes back what a closed connection held within milliseconds.

        The next take waits until there is a record, so a schedule is exact as long as no other record can be taken by then.
        """

    def lock_briefly(self, group: str, briefly: bool) -> None:
        """The duration of a lock is the group's setting at the moment when the record is given out."""
        self._change(ResourceType.GROUP, self.group(group), _LOCK, _BRIEFLY_MS if briefly else _GROUP[_LOCK])
        # As with a topic's settings (`refuse`): when the broker shows the second change, the first is in force.
        self._change(ResourceType.GROUP, self.group(group), "share.session.timeout.ms", "45001" if briefly else "45000")

    def committed(self, group: str) -> None:
        """This client cannot ask: which records are done is known from the answers to acknowledgements."""
