"""Copies orders from all partitions of a topic to another topic.

``--partitions=at-start`` the partitions that the topic had when it started: it reads them until it ends
``--partitions=all``      the remedy: those that its group assigns to it at the moment
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, TopicPartition
from member import Member
from topic import Topic

at_start: list[tuple[str, int]] = []


def assign(consumer: Consumer, places: list[TopicPartition]) -> None:
    if not at_start or "--partitions=all" in sys.argv:
        at_start[:] = [(place.topic, place.partition) for place in places]
    consumer.assign([TopicPartition(*place) for place in at_start])


processed, member = Topic("processed"), Member(on_assign=assign, patience_s=0.25)
for order in member.messages():
    member.next_effect("processed")
    processed.send(order, order["key"])
