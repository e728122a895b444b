"""Topics as an administrator sees them: create them, change their settings, find their leaders. For any cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Leadership, Replicas
from onceproof.stack.kafka.settings import min_insync

#: A start takes two to five seconds on two cores, and a multiple on a machine under heavy load.
START_DEADLINE_S = 90.0
TOPIC_DEADLINE_S = 30.0
#: A restarted broker took 1.4 to 8.3 s until it was in every ISR again.
REJOIN_DEADLINE_S = 90.0
#: For one request. Short, because it may go to a broker that has just died; it is repeated until the deadline.
ASK_TIMEOUT_S = 1.0


class Topics(ABC):
    """The part of `onceproof.stack.api.Kafka` that needs nothing but an administrator's client."""

    brokers: tuple[int, ...]

    @abstractmethod
    def admin(self, *, asking_not: int | None = None) -> AdminClient:
        """A new client past every proxy; with ``asking_not``, one that gets its first metadata from the other brokers."""

    @abstractmethod
    def await_markers(self) -> None:
        """Wait until the partitions have the markers of all transactions that have ended. Raises `WaitTimeout`."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise `ServiceFailed` if a broker died although no fault killed it."""

    def new_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> NewTopic:
        """The topic that `create_topic` creates."""
        settings = {"min.insync.replicas": str(min_insync(len(self.brokers))), **(config or {})}
        replication = min(3, len(self.brokers))
        return NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create it with replication 3 and min ISR 2 (one node: 1 and 1), and return when every replica is in sync.

        Raises `EnvironmentProblem` if Kafka refuses (the topic exists, an unknown setting).
        """
        topic = self.new_topic(name, partitions, config)
        replication = topic.replication_factor
        admin = self.admin()
        try:
            admin.create_topics([topic], request_timeout=TOPIC_DEADLINE_S)[name].result()
        except KafkaException as refused:
            raise EnvironmentProblem(
                f"Kafka refused to create the topic {name!r}: {refused.args[0].str()}"
            ) from refused

        def in_sync() -> bool:
            found = _partitions(admin, name)
            return len(found) == partitions and all(len(isr) == replication for _replicas, isr in found)

        wait_until(
            f"topic {name} to have {partitions} partitions with {replication} replicas in sync",
            in_sync,
            deadline_s=TOPIC_DEADLINE_S,
            abandon=self.check_health,
            explain=lambda: f"replicas and ISR: {_partitions(admin, name)}",
        )

    def alter_topic(self, name: str, config: Mapping[str, str]) -> dict[str, str | None]:
        """Set these topic settings; return the topic's own values before, once Kafka reports the new ones.

        A change that fails half-way is undone.
        """
        admin = self.admin()
        settings = _topic_settings(admin, name)
        before = {key: settings.get(key) for key in config}
        try:
            change_settings(admin, ResourceType.TOPIC, name, config)
            wait_until(
                f"topic {name} to have {', '.join(f'{k}={v}' for k, v in config.items())}",
                lambda: config.items() <= _topic_settings(admin, name).items(),
                deadline_s=TOPIC_DEADLINE_S,
            )
        except BaseException:  # the caller does not get the values to restore, and Kafka may have applied the change
            self.restore_topic(name, before)
            raise
        return before

    def restore_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Put back what `alter_topic` returned. Idempotent."""
        change_settings(self.admin(), ResourceType.TOPIC, name, config)

    def leader(self, topic: str, partition: int, *, asking_not: int | None = None) -> Leadership:
        """The current leader and its epoch (KIP-320); with ``asking_not``, as seen by the other brokers.

        Raises `WaitTimeout` if there is none for longer than a failover takes.
        """
        where = TopicPartition(topic, partition)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]

        def ask() -> Leadership | None:
            admin = self.admin(asking_not=asking_not)
            before = meet_brokers(admin, topic, timeout_s=ASK_TIMEOUT_S).topics[topic].partitions[partition].leader
            offsets = admin.list_offsets({where: latest}, request_timeout=ASK_TIMEOUT_S)
            epoch = offsets[where].result().leader_epoch
            after = admin.list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic].partitions[partition].leader
            # The leader is from the metadata and the epoch from the leader: they belong together only if it did not change.
            return Leadership(before, epoch) if before == after and before >= 0 and epoch is not None else None

        return wait_until(
            f"a leader of {topic}-{partition}",
            ask,
            deadline_s=START_DEADLINE_S,
            ignoring=(KafkaException, KeyError),
            abandon=self.check_health,
        )

    def replicas(self, topic: str, partition: int, *, asking_not: int | None = None) -> Replicas | None:
        try:
            topics = self.admin(asking_not=asking_not).list_topics(topic, timeout=ASK_TIMEOUT_S).topics
            metadata = topics[topic].partitions[partition]
        except (KafkaException, KeyError):
            return None
        return Replicas(metadata.leader, frozenset(metadata.isrs))

    def wait_for_isr(self, broker: int, name: str, what: str) -> None:
        """Return when the broker is in sync for every replica that it has. ``what``: after what it has to be."""
        others = self.admin(asking_not=broker if len(self.brokers) > 1 else None)
        wait_until(
            f"{name} to be back in every ISR after {what}",
            lambda: not _out_of_sync(others, broker),
            deadline_s=REJOIN_DEADLINE_S,
            abandon=self.check_health,
            explain=lambda: f"partitions where it is not in sync: {_out_of_sync(others, broker)}",
        )


def known_brokers(admin: AdminClient) -> set[int]:
    """Ids of the brokers that are in the cluster; empty without an answer."""
    try:
        return set(admin.list_topics(timeout=ASK_TIMEOUT_S).brokers)
    except KafkaException:
        return set()


def _out_of_sync(admin: AdminClient, broker: int) -> list[str]:
    """Partitions (Kafka's internal ones too) of which the broker has a replica that is not in sync; ``?`` without an answer."""
    try:
        topics = admin.list_topics(timeout=ASK_TIMEOUT_S).topics
    except KafkaException:
        return ["?"]
    return [
        f"{name}-{id}"
        for name, topic in topics.items()
        for id, partition in topic.partitions.items()
        if broker in partition.replicas and broker not in partition.isrs
    ]


def change_settings(admin: AdminClient, kind: ResourceType, name: str, config: Mapping[str, str | None]) -> None:
    """Set these of a topic or a group; None restores the default. Raises `EnvironmentProblem` if Kafka refuses.

    When this returns, Kafka has accepted them; a broker reports and applies them a moment later.
    """
    unset, set_ = AlterConfigOpType.DELETE, AlterConfigOpType.SET
    changes = [
        ConfigEntry(key, value, incremental_operation=unset if value is None else set_) for key, value in config.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=changes)
    try:
        admin.incremental_alter_configs([resource], request_timeout=TOPIC_DEADLINE_S)[resource].result()
    except KafkaException as refused:
        what = f"{kind.name.lower()} {name!r}"
        raise EnvironmentProblem(f"Kafka refused to change {what}: {refused.args[0].str()}") from refused


def _topic_settings(admin: AdminClient, name: str) -> dict[str, str]:
    """The settings of the topic itself, without defaults."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource], request_timeout=TOPIC_DEADLINE_S)[resource].result()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: entry.value for key, entry in entries.items() if entry.source == own}


def _partitions(admin: AdminClient, topic: str) -> list[tuple[list[int], list[int]]]:
    """Replicas and ISR of each partition; empty while Kafka does not answer or does not know the topic."""
    try:
        found = admin.list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic]
    except (KafkaException, KeyError):
        return []
    return [(part.replicas, part.isrs) for part in found.partitions.values()]
