"""Leadership of a partition that moves: what proves that a leader who was struck is one no longer."""

from __future__ import annotations

from onceproof.base.waiting import wait_until
from onceproof.faults.placement import split_leader_of
from onceproof.stack.api import Kafka, Leadership

ELECTION_S = 30.0
"""The fast preset elects within 4 s; this is the bound for declaring that it will not."""


def wait_for_another(kafka: Kafka, leader_of: str, before: Leadership) -> Leadership:
    """Who leads TOPIC/PARTITION in a later epoch (KIP-101), as the other brokers see it.

    Raises `WaitTimeout` if nobody comes to.
    """
    topic, partition = split_leader_of(leader_of)

    def moved() -> Leadership | None:
        now = kafka.leader(topic, partition, asking_not=before.broker)
        return now if now.broker not in (before.broker, -1) and now.epoch > before.epoch else None  # -1: nobody

    return wait_until(f"another broker to lead {leader_of}", moved, deadline_s=ELECTION_S)


def said(leader_of: str, before: Leadership, after: Leadership) -> str:
    """As a sentence of evidence."""
    return (
        f"leadership of {leader_of} moved from broker {before.broker} (epoch {before.epoch}) "
        f"to broker {after.broker} (epoch {after.epoch})"
    )
