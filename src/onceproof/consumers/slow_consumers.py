"""Consumers that outlast their broker's timeout: the broker gives the message to another consumer, and the slow one finishes later.

A share group gives out the one record whose lock has ended. A consumer group rebalances: it assigns all its partitions among
the remaining members, and among all of them once the slow one is back. During a rebalance no member takes, because which member
would be given what is chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceproof.consumers.brokers.contract import Queues, Rebalances
from onceproof.consumers.layout import Message
from onceproof.consumers.state import ConsumerState


class SlowConsumers:
    """The slow consumers of one execution. ``consumers`` are the executor's own, in the order of the schedule."""

    def __init__(self, consumers: Sequence[ConsumerState], queues: Queues) -> None:
        self._consumers = consumers
        self._queues = queues
        self._rebalancing: set[str] = set()

    def hold(self, consumer: ConsumerState) -> None:
        """Hold the consumer at its work for longer than its broker waits."""
        consumer.held_back = consumer.lapsed = True
        self._membership_changes(consumer)

    def left(self, consumer: ConsumerState) -> None:
        """The consumer is dead: if it was not a static member, its group assigns its partitions to the others."""
        self._membership_changes(consumer)

    def finished(self, consumer: ConsumerState) -> None:
        """The consumer is done with a message that had been given to another. A consumer group takes it in as a new member."""
        consumer.lapsed = False
        self._membership_changes(consumer)

    def _membership_changes(self, consumer: ConsumerState) -> None:
        if isinstance(self._queues, Rebalances):
            self._rebalancing.add(consumer.group)

    @property
    def any_held(self) -> bool:
        """Whether a consumer is held: then nothing is published, so that others take its message and not a later one."""
        return any(consumer.held_back for consumer in self._consumers)

    @property
    def rebalance_due(self) -> bool:
        """Whether a group has to rebalance and has members that can."""
        return any(self._present(group) for group in self._rebalancing)

    def may_take(self, consumer: ConsumerState) -> bool:
        return consumer.alive and consumer.holds is None and consumer.group not in self._rebalancing

    def slow_holder(self, group: str, message: Message) -> ConsumerState | None:
        """The held consumer of the group that has this message."""
        return next((c for c in self._consumers if c.held_back and c.group == group and c.holds == message), None)

    def rebalance(self) -> None:
        """Wait for each pending rebalance and apply its assignment.

        Do not call this while a member holds a message: that member does not poll.
        """
        for group in sorted(self._rebalancing):
            present = self._present(group)
            if not present or any(consumer.holds for consumer in present):
                continue
            assert isinstance(self._queues, Rebalances), "no other group rebalances"
            assigned = self._queues.await_rebalance([consumer.name for consumer in present])
            for consumer in self._consumers:
                if consumer.group == group:
                    consumer.queues = assigned.get(consumer.name, ())
            self._rebalancing.discard(group)

    def _present(self, group: str) -> list[ConsumerState]:
        """The members of the group, except consumers that still work on a message that was given to another."""
        return [c for c in self._consumers if c.group == group and c.alive and not c.lapsed]
