"""Runs as a program (`python -m`): the consumer that a scenario gets by default. A user's own command can take its place.

It takes a message with ``basic.get``, writes it to the output queue, and acknowledges, in the order that ``ONCEPROOF_ACKNOWLEDGE`` names;
before each step it asks the harness (`onceproof.consumers.gate` says how, and which variables it is given).
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pika

STEPS = {
    "after-effect": ("effect", "acknowledge"),
    "before-effect": ("acknowledge", "effect"),
    "with-effect": ("effect", "acknowledge", "commit"),
}


class Gate:
    """The harness's permission for each step."""

    def __init__(self, path: str, consumer: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._consumer = consumer

    def ask(self, before: str, did: dict[str, Any] | None) -> bool:
        """Tell what was done, and wait until ``before`` may be. False: there is nothing more to do."""
        said = {"consumer": self._consumer, "did": did, "before": before}
        self._socket.sendall(json.dumps(said).encode() + b"\n")
        return self._lines.readline() == "go\n"


class Worker:
    def __init__(self, steps: tuple[str, ...]) -> None:
        self.steps = steps
        self._queues = os.environ["ONCEPROOF_QUEUES"].split(",")
        self._output = os.environ["ONCEPROOF_OUTPUT"]
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["ONCEPROOF_AMQP_URL"]))
        self._takes = connection.channel()
        self._writes = self._takes if "commit" in self.steps else connection.channel()
        self._writes.tx_select()
        # Last: the broker closes channels in their order, and this one tells the harness that all are closed.
        mark = connection.channel()
        mark.queue_declare(os.environ["ONCEPROOF_MARK"], auto_delete=True)
        mark.basic_consume(os.environ["ONCEPROOF_MARK"], lambda *_: None)

    def take(self) -> dict[str, Any]:
        for queue in self._queues:
            frame, properties, body = self._takes.basic_get(queue)
            if frame is not None:
                self._tag, self._properties, self._body = frame.delivery_tag, properties, body
                return {
                    "step": "take",
                    "message": properties.message_id,
                    "queue": queue,
                    "redelivered": frame.redelivered,
                }
        return {"step": "take", "message": None}

    def do(self, step: str) -> dict[str, Any]:
        if step == "effect":
            self._writes.basic_publish("", self._output, self._body, self._properties)
            if self._writes is not self._takes:
                self._writes.tx_commit()  # the broker offers no publisher confirms
        elif step == "acknowledge":
            self._takes.basic_ack(self._tag)
            if self._writes is not self._takes:
                self._takes.basic_qos(prefetch_count=1)  # an acknowledgement has no answer; what follows it has one
        else:
            self._takes.tx_commit()
        return {"step": step, "message": self._properties.message_id}


def main() -> None:
    worker = Worker(STEPS[os.environ["ONCEPROOF_ACKNOWLEDGE"]])
    gate = Gate(os.environ["ONCEPROOF_GATE"], os.environ["ONCEPROOF_CONSUMER"])
    did: dict[str, Any] | None = None
    while gate.ask("take", did):
        did = worker.take()
        if did["message"] is not None:
            for step in worker.steps:
                if not gate.ask(step, did):
                    return
                did = worker.do(step)


if __name__ == "__main__":
    main()
