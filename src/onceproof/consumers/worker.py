"""The default consumer of a scenario, run as a program (`python -m`). A user's own command can take its place.

It takes a message, writes its effect and acknowledges, in the order that ``ONCEPROOF_ACKNOWLEDGE`` names. Before each step it
asks the harness for permission (`onceproof.consumers.gate` describes the protocol and the variables). The code for each broker
is in a module of its own (`onceproof.consumers.clients.contract`).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from onceproof.consumers.clients.contract import AcknowledgementRefused, Client, EffectRefused, Lost, Returned, Taken

STEPS = {
    "after-effect": ("effect", "acknowledge"),
    "before-effect": ("acknowledge", "effect"),
    "with-effect": ("effect", "acknowledge", "commit"),
}

#: ``ONCEPROOF_BROKER`` -> the module with its `open_client`: a consumer loads the client of its own broker only.
CLIENTS = {
    "amqp": "onceproof.consumers.clients.amqp",
    "kafka-group": "onceproof.consumers.clients.kafka",
    "share-group": "onceproof.consumers.clients.share",
}

#: How often a waiting consumer lets its client answer the broker.
_IDLE_S = 0.01


class GateClient:
    """The consumer's end of the gate: asks the harness for permission before each step."""

    def __init__(self, path: str, consumer: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._consumer = consumer
        self.idle: Callable[[], None] = lambda: None
        """What the broker's client has to do while the consumer waits."""

    def ask(self, before: str, did: dict[str, Any] | None) -> bool:
        """Report the step just done, and wait for permission to do ``before``. Returns False if there is nothing more to do."""
        request = {"consumer": self._consumer, "did": did, "before": before}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while not select.select([self._socket], [], [], _IDLE_S)[0]:
            self.idle()
        return self._lines.readline() == "go\n"


class Worker:
    """Processes messages. ``on_refusal``: what it does, by the scenario, with a message whose effect the output refused."""

    def __init__(self, client: Client, acknowledge: str, on_refusal: str) -> None:
        self._client = client
        self._acknowledge = acknowledge
        self._on_refusal = on_refusal
        self._reason = ""

    def take(self) -> tuple[dict[str, Any], Taken | None]:
        taken = self._client.source.take()
        if taken is None:
            return {"step": "take", "message": None}, None
        did = {"step": "take", "message": taken.message, "queue": taken.queue, "redelivered": taken.redelivered}
        return did, taken

    def do(self, step: str, taken: Taken) -> dict[str, Any]:
        did = {"step": step, "message": taken.message}
        try:
            self._do(step, taken)
        except EffectRefused as refused:
            self._reason = str(refused)
            return {**did, "refused": True}
        except Returned:
            return {**did, "returned": True}
        except Lost as lost:
            return {**did, "lost": True, **({"fenced": True} if isinstance(lost, AcknowledgementRefused) else {})}
        return did

    def _do(self, step: str, taken: Taken) -> None:
        if step == "effect":
            self._client.effect.write(taken)
        elif step == "acknowledge":
            self._client.source.acknowledge(taken)
        elif step == "release":
            self._client.source.release(taken)
        elif step == "retry":
            assert self._client.retry is not None, "validated: a retry topic has a name"
            self._client.retry.write(taken)
        elif step == "dead-letter":
            assert self._client.dead_letters is not None, "validated: there is a topic for dead letters"
            self._client.dead_letters.write(taken, self._reason)
        else:
            self._client.commit()

    def steps_after_refusal(self, left: tuple[str, ...]) -> tuple[str, ...]:
        """The next steps after a refused effect; ``left`` are the steps that would have followed it."""
        if self._on_refusal == "again":
            return ("effect", *left)
        if self._on_refusal == "skip":
            return left
        if self._on_refusal == "dead-letter":
            return ("dead-letter", *left)
        return ("release",) if self._on_refusal == "release" else ("retry", *left)

    def process(self, taken: Taken, gate: GateClient, did: dict[str, Any]) -> dict[str, Any] | None:
        """Do all steps of one message. Returns the report on the last one, or None when there is nothing more to do."""
        left = STEPS[self._acknowledge]
        while left:
            step, left = left[0], left[1:]
            if not gate.ask(step, did):
                return None
            did = self.do(step, taken)
            if did.get("refused"):
                left = self.steps_after_refusal(left)
            elif did.get("lost"):
                return did
        return did


def main() -> None:
    acknowledge = os.environ["ONCEPROOF_ACKNOWLEDGE"]
    client = importlib.import_module(CLIENTS[os.environ["ONCEPROOF_BROKER"]]).open_client(acknowledge)
    worker = Worker(client, acknowledge, os.environ["ONCEPROOF_ON_REFUSAL"])
    gate = GateClient(os.environ["ONCEPROOF_GATE"], os.environ["ONCEPROOF_CONSUMER"])
    gate.idle = client.source.idle
    did: dict[str, Any] | None = None
    while gate.ask("take", did):
        did, taken = worker.take()
        if taken is not None:
            did = worker.process(taken, gate, did)
            if did is None:
                return


if __name__ == "__main__":
    main()
