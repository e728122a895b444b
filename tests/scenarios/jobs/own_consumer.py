"""A foreign consumer, which uses only the gate of onceproof: it acknowledges first, then writes its effect."""

import json
import os
import socket

import pika

gate = socket.socket(socket.AF_UNIX)
gate.connect(os.environ["ONCEPROOF_GATE"])
lines = gate.makefile("r")


def ask(before, did):
    request = {"consumer": os.environ["ONCEPROOF_CONSUMER"], "before": before, "did": did}
    gate.sendall(json.dumps(request).encode() + b"\n")
    return lines.readline() == "go\n"


connection = pika.BlockingConnection(pika.URLParameters(os.environ["ONCEPROOF_AMQP_URL"]))
channel, mark = connection.channel(), connection.channel()
mark.queue_declare(os.environ["ONCEPROOF_MARK"], auto_delete=True)
mark.basic_consume(os.environ["ONCEPROOF_MARK"], lambda *_: None)

did = None
while ask("take", did):
    frame, properties, body = channel.basic_get(os.environ["ONCEPROOF_QUEUES"])
    did = {"step": "take", "message": properties and properties.message_id}
    if frame is None or not ask("acknowledge", did):
        continue
    channel.basic_ack(frame.delivery_tag)
    channel.basic_qos(prefetch_count=1)
    did = {"step": "acknowledge", "message": properties.message_id}
    if ask("effect", did):
        channel.basic_publish("", os.environ["ONCEPROOF_OUTPUT"], body)
        channel.basic_qos(prefetch_count=1)
        did = {"step": "effect", "message": properties.message_id}
