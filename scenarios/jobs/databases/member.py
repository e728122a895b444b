"""A member of a Kafka consumer group that takes one message at a time, and asks onceproof before each step (docs/consumers.md)."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Message


class Member:
    def __init__(self) -> None:
        self._gate = socket.socket(socket.AF_UNIX)
        self._gate.connect(os.environ["ONCEPROOF_GATE"])
        self._answers = self._gate.makefile("r")
        self._did: dict[str, str] | None = None
        self._message = ""
        self._waiting: list[Message] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": os.environ["ONCEPROOF_KAFKA"],
                "group.id": os.environ["ONCEPROOF_GROUP"],
                "group.instance.id": os.environ["ONCEPROOF_MEMBER"],
                "client.id": os.environ["ONCEPROOF_MARK"],
                "partition.assignment.strategy": "range",
                "heartbeat.interval.ms": 100,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(os.environ["ONCEPROOF_TOPICS"].split(","), on_revoke=lambda *_: self._waiting.clear())

    def messages(self) -> Iterator[dict[str, Any]]:
        """The value of each message. Its offset is committed when the next one is asked for."""
        while self._ask("take"):
            while not self._waiting:
                self._poll(0.05)
            record: Any = self._waiting.pop(0)
            self._message = dict(record.headers() or [])["message"].decode()
            self._did = {"step": "take", "message": self._message}
            yield json.loads(record.value() or b"null")
            if not self._ask("acknowledge"):
                return
            self._consumer.commit(message=record, asynchronous=False)
            self._did = {"step": "acknowledge", "message": self._message}

    def next_effect(self, into: str) -> None:
        """Call it before each effect, with its table or topic: the fault of a scenario strikes after an effect."""
        if not self._ask("effect"):
            raise SystemExit
        self._did = {"step": "effect", "message": self._message, "output": into}

    def _ask(self, step: str) -> bool:
        request = {"consumer": os.environ["ONCEPROOF_CONSUMER"], "before": step, "did": self._did}
        self._gate.sendall(json.dumps(request).encode() + b"\n")
        while not select.select([self._gate], [], [], 0.01)[0]:
            self._poll(0.0)
        return self._answers.readline() == "go\n"

    def _poll(self, timeout_s: float) -> None:
        record = self._consumer.poll(timeout_s)
        if record is not None and record.error() is None:
            self._waiting.append(record)
