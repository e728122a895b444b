"""Where consumers wait before each step: a unix socket, so that the schedule decides the order of steps and not the machine.

Every consumer, also a user's own, gets these environment variables:

``ONCEPROOF_GATE``      path of the socket: one connection per consumer, lines of JSON
``ONCEPROOF_CONSUMER``  its name
``ONCEPROOF_BROKER``    the scenario's ``broker``. The variables below are those for AMQP; docs/consumers.md has Kafka's
``ONCEPROOF_AMQP_URL``  the broker, with user and password
``ONCEPROOF_QUEUES``    the queues to take from, comma-separated, to be tried in this order
``ONCEPROOF_OUTPUT``    the queue for its effects
``ONCEPROOF_ACKNOWLEDGE``  the scenario's ``acknowledge``, for a consumer that supports several orders
``ONCEPROOF_ON_REFUSAL``   the scenario's ``on_refusal``: what it does with a message whose effect was refused
``ONCEPROOF_RETRY``     the queue for such a message, if there is one
``ONCEPROOF_DEAD_LETTER``  the topic for such a message, if there is one
``ONCEPROOF_MARK``      a queue to declare (auto-delete) and consume first, on the channel opened *last*: it goes with the client

Before each step the consumer writes ``{"consumer": NAME, "before": STEP, "did": REPORT}`` and waits for the line ``go``. Any
other line, or the end of the connection, means that there is nothing more to do. STEP is ``take``, ``effect``, ``acknowledge``,
``commit``, ``release`` (gives the message back), ``retry`` (puts it into the retry queue) or ``dead-letter`` (puts it into the
topic for dead letters), in the consumer's own order; every message begins with a ``take``. A step is done when the broker has answered. REPORT is null at first, then says which step was
just done: ``{"step": STEP, "message": ID}``, where ID is the ``message_id`` that the broker gave. Further fields:

- ``"queue"`` and ``"redelivered"`` after a take; ``"message"`` is null if the queues were empty
- ``"output"`` after an effect: which output it went to, by its name in the scenario, or else which table or topic
- ``"refused": true`` after an effect that the output refused
- ``"returned": true`` if the broker gave a published message back because it has no queue for it: the run ends as an error of
  the harness
- ``"lost": true`` after a step that got no answer, or whose connection is gone. The consumer then takes again from what the
  broker has. In that take, and not before, it makes a new connection, on AMQP with a new mark
- ``"fenced": true`` as well if the broker answered an acknowledgement with: the message belongs to another consumer
"""

from __future__ import annotations

import json
import selectors
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onceproof.base.errors import EnvironmentProblem

_LINE_BYTES = 65_536

Step = Literal["take", "effect", "acknowledge", "commit", "release", "retry", "dead-letter"]


class StepReport(BaseModel):
    """What a consumer reports about the step that it has just done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Step
    message: str | None = None
    queue: str | None = None
    redelivered: bool = False
    output: str | None = None
    """Where the effect went: the name of an output, or of another table or topic; None: the first output of its group."""
    refused: bool = False
    """Whether the output refused the effect."""
    lost: bool = False
    """Whether the step got no answer; the consumer then continues from what the broker has."""
    returned: bool = False
    """Whether the broker gave the effect back because it has no queue for it."""
    fenced: bool = False
    """Whether the broker refused the acknowledgement because the message belongs to another consumer."""


class StepRequest(BaseModel):
    """A consumer that waits at its next step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    consumer: str
    before: Step
    did: StepReport | None = None


@dataclass
class _Connection:
    """The connection of one consumer, and the incomplete line that it has sent so far."""

    socket: socket.socket
    received: bytes = b""


class Gate:
    """The harness's end of the socket. Not thread-safe: only the thread of the run uses it."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
        except OSError as refused:
            self._listener.close()
            raise EnvironmentProblem(
                f"the gate of the consumers cannot be made at {path}: {refused}",
                hint="the path of a unix socket holds some 100 bytes: set TMPDIR to a folder with a shorter name",
            ) from refused
        self._listener.listen()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[str, _Connection] = {}
        self._requests: dict[str, StepRequest] = {}

    def pump(self, timeout_s: float) -> None:
        """Accept connections and read requests, waiting at most that long for them."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                accepted, _ = self._listener.accept()
                self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))
            else:
                self._receive(key.data)

    def request_of(self, consumer: str) -> StepRequest | None:
        """The step at which the consumer waits, if it does."""
        return self._requests.get(consumer)

    def grant(self, consumer: str) -> None:
        """Let the consumer do the step at which it waits. If it has died meanwhile, its process shows that, not this call."""
        self._requests.pop(consumer, None)
        connection = self._connections.get(consumer)
        if connection is not None:
            try:
                connection.socket.sendall(b"go\n")
            except OSError:
                self._drop(connection)

    def forget(self, consumer: str) -> None:
        """Drop the connection and the request of a dead consumer."""
        self._requests.pop(consumer, None)
        connection = self._connections.pop(consumer, None)
        if connection is not None:
            self._drop(connection)

    def close(self) -> None:
        """Close all connections, which ends the consumers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._drop(key.data)
        self._selector.close()
        self._listener.close()

    def _receive(self, connection: _Connection) -> None:
        try:
            received = connection.socket.recv(_LINE_BYTES)
        except OSError:
            received = b""
        if not received:
            self._drop(connection)
            return
        connection.received += received
        while b"\n" in connection.received:
            line, connection.received = connection.received.split(b"\n", 1)
            self._read_request(connection, line)
        if len(connection.received) > _LINE_BYTES:
            raise EnvironmentProblem(f"a consumer sent {len(connection.received)} bytes without the end of a line")

    def _read_request(self, connection: _Connection, line: bytes) -> None:
        try:
            request = StepRequest.model_validate(json.loads(line))
        except (ValueError, ValidationError) as error:
            raise EnvironmentProblem(
                f"a consumer sent the line {line[:200]!r} to its gate, which is not a valid step: {error}",
                hint="the lines are described in docs/consumers.md",
            ) from error
        self._connections[request.consumer] = connection
        self._requests[request.consumer] = request

    def _drop(self, connection: _Connection) -> None:
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()
