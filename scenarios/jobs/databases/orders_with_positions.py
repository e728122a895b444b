"""Takes orders and inserts a row for each. Its position in the topic is committed with the row, and it continues from there.

``--position=offset``                the offset alone
``--position=offset-and-topic-id``  the remedy: the offset counts only in the topic with that id (KIP-516)
"""

from __future__ import annotations

import os
import sys

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from member import Member

READ = "SELECT topic_id, next_offset FROM positions WHERE topic = %s AND partition = %s"
MOVE = """
    INSERT INTO positions VALUES (%s, %s, %s, %s)
    ON CONFLICT (topic, partition) DO UPDATE SET topic_id = EXCLUDED.topic_id, next_offset = EXCLUDED.next_offset
"""


admin = AdminClient({"bootstrap.servers": os.environ["ONCEPROOF_KAFKA"]})


def id_of(topic: str) -> str:
    return str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id)


def position_in(topic: str, partition: int) -> int:
    found = database.execute(READ, [topic, partition]).fetchone()
    if found is None or ("--position=offset-and-topic-id" in sys.argv and found[0] != id_of(topic)):
        return OFFSET_BEGINNING
    return int(found[1])


def seek(consumer: Consumer, places: list[TopicPartition]) -> None:
    consumer.assign([TopicPartition(p.topic, p.partition, position_in(p.topic, p.partition)) for p in places])


with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    member = Member(on_assign=seek, patience_s=1.0)
    for order in member.messages():
        assert member.record is not None
        topic, offset = str(member.record.topic()), int(member.record.offset() or 0)
        topic_id = id_of(topic)
        member.next_effect("processed")
        with database.transaction():
            database.execute("INSERT INTO processed (id, key) VALUES (%(id)s, %(key)s)", order)
            database.execute(MOVE, [topic, member.record.partition(), topic_id, offset + 1])
