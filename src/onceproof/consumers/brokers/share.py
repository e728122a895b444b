"""Kafka's share groups behind a crew (KIP-932): members compete for the records of all partitions, as those of a queue."""

from __future__ import annotations

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.waiting import wait_until
from onceproof.consumers.brokers.kafka import KafkaQueues
from onceproof.consumers.layout import Layout
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.kafka.cluster import change_settings

#: A consumer may be held long, and one whose lock has ended is refused its acknowledgement only while another has the record.
_GROUP = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "600000"}


_WARM_UP_S = 60.0
_LOCK = "share.record.lock.duration.ms"
#: The broker's own minimum (``group.share.min.record.lock.duration.ms``), which Kafka lets nobody set lower.
_BRIEFLY_MS = "1000"


class ShareQueues(KafkaQueues):
    """Implements `onceproof.consumers.brokers.contract.Queues` for share groups."""

    def __init__(self, stack: EmbeddedStack, layout: Layout) -> None:
        super().__init__(stack, layout)
        for group in layout.groups():
            change_settings(self.admin, ResourceType.GROUP, self.group(group), _GROUP)

    @staticmethod
    def warm_up(stack: EmbeddedStack) -> None:
        """Have ``__share_group_state`` made too: by a group that takes something, for nothing else does it."""
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

    def is_there(self, consumer: str, mark: str) -> bool:
        """Not to be asked with this client: one that is no member yet is waited for in its first take."""
        return True

    def await_gone(self, consumer: str, mark: str) -> None:
        """Not to be asked either: the broker takes back what a closed connection held within milliseconds.

        Whoever takes next waits for what there is, so a schedule is sure where nothing else is there to be taken by then.
        """

    def lock_briefly(self, group: str, briefly: bool) -> None:
        """A lock lasts as long as the group's setting said when the record was given out."""
        self._set_group(self.group(group), _LOCK, _BRIEFLY_MS if briefly else _GROUP[_LOCK])
        # As with a topic (`refuse`): when the broker shows the second change, the first is in force.
        self._set_group(self.group(group), "share.session.timeout.ms", "45001" if briefly else "45000")

    def committed(self, group: str) -> None:
        """Not to be asked with this client: which records are done is known from the answers to acknowledgements."""
