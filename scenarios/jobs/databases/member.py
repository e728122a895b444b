"""A member of a Kafka consumer group that takes one message at a time, and asks onceproof before each step (docs/consumers.md)."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition


class Member:
    def __init__(
        self, on_assign: Callable[[Consumer, list[TopicPartition]], None] | None = None, patience_s: float | None = None
    ) -> None:
        """``on_assign`` must assign the partitions itself. With ``patience_s``, a take that waits that long finds nothing."""
        self.record: Message | None = None
        """The message of the moment."""
        self._patience_s = patience_s
        self._gate = socket.socket(socket.AF_UNIX)
        self._gate.connect(os.environ["ONCEPROOF_GATE"])
        self._answers = self._gate.makefile("r")
        self._did: dict[str, str | None] | None = None
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
                # How soon it learns that its topic has more partitions.
                "topic.metadata.refresh.interval.ms": 100,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        topics = os.environ["ONCEPROOF_TOPICS"].split(",")
        callbacks: dict[str, Any] = {"on_revoke": lambda *_: self._waiting.clear()}
        self._consumer.subscribe(topics, **callbacks, **({"on_assign": on_assign} if on_assign else {}))

    def messages(self) -> Iterator[dict[str, Any]]:
        """The value of each message. Its offset is committed when the next one is asked for."""
        while self._ask("take"):
            began = time.monotonic()
            while not self._waiting and (self._patience_s is None or time.monotonic() < began + self._patience_s):
                self._poll(0.05)
            if not self._waiting:
                self._did = {"step": "take", "message": None}
                continue
            record: Any = self._waiting.pop(0)
            self.record = record
            self._message = dict(record.headers() or [])["message"].decode()
            self._did = {"step": "take", "message": self._message}
            yield json.loads(record.value() or b"null")
            if not self._ask("acknowledge"):
                return
            self._consumer.commit(message=record, asynchronous=False)
            self._did = {"step": "acknowledge", "message": self._message}

    def read_ahead(self) -> int:
        """Read on to the end of the partition; return how many messages wait in memory after the one of the moment."""
        (place,) = self._consumer.assignment()
        end = self._consumer.get_watermark_offsets(place, timeout=10)[1]
        record: Any = self.record
        while record.offset() + 1 + len(self._waiting) < end:
            self._poll(0.05)
        return len(self._waiting)

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
