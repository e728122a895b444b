"""A foreign consumer in a Kafka consumer group, which uses only the gate of onceproof and polls Kafka while the gate holds it.

If it is not a static member, it polls only before it takes a message, so that it is slow if it is held during its work.
"""

import json
import os
import select
import socket

from confluent_kafka import Consumer, KafkaException, Producer

gate = socket.socket(socket.AF_UNIX)
gate.connect(os.environ["ONCEPROOF_GATE"])
lines = gate.makefile("r")
waiting = []


def ask(before, did):
    request = {"consumer": os.environ["ONCEPROOF_CONSUMER"], "before": before, "did": did}
    gate.sendall(json.dumps(request).encode() + b"\n")
    while not select.select([gate], [], [], 0.01)[0]:
        if before == "take" or "ONCEPROOF_MEMBER" in os.environ:
            poll()
    return lines.readline() == "go\n"


def poll():
    record = consumer.poll(0.0 if waiting else 0.05)
    if record is not None and record.error() is None:
        waiting.append(record)


if "ONCEPROOF_MEMBER" in os.environ:
    member = {"group.instance.id": os.environ["ONCEPROOF_MEMBER"]}
else:
    patience = int(os.environ["ONCEPROOF_POLL_INTERVAL_MS"])
    member = {"max.poll.interval.ms": patience, "session.timeout.ms": min(patience, 45_000)}
consumer = Consumer(
    {
        **member,
        "client.id": os.environ["ONCEPROOF_MARK"],
        "bootstrap.servers": os.environ["ONCEPROOF_KAFKA"],
        "group.id": os.environ["ONCEPROOF_GROUP"],
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 100,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe(os.environ["ONCEPROOF_TOPICS"].split(","), on_revoke=lambda _consumer, _places: waiting.clear())
producer = Producer({"bootstrap.servers": os.environ["ONCEPROOF_KAFKA"]})

did = None
while ask("take", did):
    while not waiting:
        poll()
    record = waiting.pop(0)
    message = dict(record.headers())["message"].decode()
    did = {"step": "take", "message": message}
    if ask("effect", did):
        producer.produce(os.environ["ONCEPROOF_OUTPUT"], record.value(), record.key(), partition=0)
        producer.flush()
        did = {"step": "effect", "message": message}
    if ask("acknowledge", did):
        did = {"step": "acknowledge", "message": message}
        try:
            consumer.commit(record, asynchronous=False)
        except KafkaException:
            did = {**did, "lost": True, "fenced": True}
