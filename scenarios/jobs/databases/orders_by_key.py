"""Copies orders to a topic in which all orders of a customer are in one partition: that of the hash of the customer's name.

``--partitions=of-topic`` the hash modulo the number of partitions that the topic has at the moment, as producers do by default
``--partitions=fixed``    the remedy: modulo a number of its own, which changes only together with the topic's name
"""

from __future__ import annotations

import sys
import zlib

from member import Member
from topic import Topic

FIXED = 2

by_customer, member = Topic("processed"), Member()
for order in member.messages():
    member.next_effect("processed")
    count = FIXED if "--partitions=fixed" in sys.argv else by_customer.partitions()
    by_customer.send(order, order["key"], partition=zlib.crc32(order["key"].encode()) % count)
