"""A consumer of somebody's own in a Kafka consumer group: it knows nothing of onceproof but its gate, and polls while it is held there."""

import json
import os
import select
import socket

from confluent_kafka import Consumer, Producer

gate = socket.socket(socket.AF_UNIX)
gate.connect(os.environ["ONCEPROOF_GATE"])
lines = gate.makefile("r")
waiting = []


def ask(before, did):
    said = {"consumer": os.environ["ONCEPROOF_CONSUMER"], "before": before, "did": did}
    gate.sendall(json.dumps(said).encode() + b"\n")
    while not select.select([gate], [], [], 0)[0]:
        poll()
    return lines.readline() == "go\n"


def poll():
    record = consumer.poll(0.05)
    if record is not None and record.error() is None:
        waiting.append(record)


consumer = Consumer(
    {
        "bootstrap.servers": os.environ["ONCEPROOF_KAFKA"],
        "group.id": os.environ["ONCEPROOF_GROUP"],
        "group.instance.id": os.environ["ONCEPROOF_MEMBER"],
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 100,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe(os.environ["ONCEPROOF_TOPICS"].split(","))
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
        consumer.commit(record, asynchronous=False)
        did = {"step": "acknowledge", "message": message}
