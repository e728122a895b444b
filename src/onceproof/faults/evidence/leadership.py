"""A change of a partition's leader: the proof that a broker that was struck no longer leads it."""

from __future__ import annotations

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.placement import split_leader_of
from onceproof.stack.api import Kafka, Leadership

ELECTION_S = 30.0
"""The fast preset elects a leader within 6 s; after this time the election counts as failed."""


def wait_for_new_leader(kafka: Kafka, leader_of: str, before: Leadership) -> Leadership:
    """Wait until another broker leads TOPIC/PARTITION in a later epoch (KIP-101), as the other brokers see it.

    Raises `WaitTimeout` if no other broker is elected.
    """
    topic, partition = split_leader_of(leader_of)

    def moved() -> Leadership | None:
        now = kafka.leader(topic, partition, asking_not=before.broker)
        return now if now.broker not in (before.broker, -1) and now.epoch > before.epoch else None  # -1: no leader

    return wait_until(f"another broker to lead {leader_of}", moved, deadline_s=ELECTION_S)


def why_not_needed(kafka: Kafka, leader_of: str, before: Leadership) -> str:
    """Why a batch may have been committed without this leader, as a clause: the leader changed meanwhile, or nobody needed it.

    A broker that pauses for longer than its session (``broker.session.timeout.ms``) is fenced (KIP-631), whatever the fault does.
    """
    try:
        now = kafka.leader(*split_leader_of(leader_of))
    except WaitTimeout:
        return f"afterwards no leader of {leader_of} could be found"
    if now == before:
        return "it did not need the leader"
    return (
        f"meanwhile {describe_move(leader_of, before, now)}, which this fault does not cause; perhaps broker {before.broker} "
        "paused for longer than broker.session.timeout.ms: run again on a less busy machine"
    )


def describe_move(leader_of: str, before: Leadership, after: Leadership) -> str:
    """The change as a sentence of evidence."""
    if after.broker == before.broker:
        return (
            f"broker {before.broker} lost the leadership of {leader_of} and was elected again "
            f"(epoch {before.epoch}, then {after.epoch})"
        )
    return (
        f"leadership of {leader_of} moved from broker {before.broker} (epoch {before.epoch}) "
        f"to broker {after.broker} (epoch {after.epoch})"
    )
