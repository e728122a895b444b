"""Where consumers wait before each step: a unix socket, so that the order of steps is the schedule's and not the machine's.

What a consumer, also a user's own, is given in its environment:

``ONCEPROOF_GATE``      path of the socket: one connection a consumer, lines of JSON
``ONCEPROOF_CONSUMER``  its name
``ONCEPROOF_BROKER``    the scenario's ``broker``, which says how to find it: what follows is AMQP's, Kafka's stand in docs/consumers.md
``ONCEPROOF_AMQP_URL``  the broker, with user and password
``ONCEPROOF_QUEUES``    the queues that it takes from, comma-separated, tried in this order
``ONCEPROOF_OUTPUT``    the queue that its effects go to
``ONCEPROOF_ACKNOWLEDGE``  the scenario's ``acknowledge``, for a consumer that has this choice
``ONCEPROOF_ON_REFUSAL``   the scenario's ``on_refusal``: what it does with a message whose effect was refused
``ONCEPROOF_RETRY``     the queue for such a message, where there is one
``ONCEPROOF_MARK``      a queue to declare (auto-delete) and consume first, on the channel opened *last*: it goes with the client

Before each step it writes ``{"consumer": NAME, "before": STEP, "did": WHAT}`` and waits for the line ``go``; anything else, or
the end of the connection, means that there is nothing more to do. STEP is ``take``, ``effect``, ``acknowledge``, ``commit``,
``release`` (the message is given back) or ``retry`` (it is put into the retry queue), in whatever order the consumer has them;
every message begins with a ``take``. WHAT is the step just done: null at first, then
``{"step": STEP, "message": ID}``, where ID is the ``message_id`` that the broker gave; of a take also ``"queue"`` and
``"redelivered"``, and null as message where the queues were empty; of an effect that the output said no to ``"refused": true``, of
a message that the broker gave back because it has no queue for it ``"returned": true``, which ends the run as an error of the
harness, and
of a step that got no answer, or whose connection is gone, ``"lost": true``, after which it takes again from what the broker has: a
new connection, and on AMQP a new mark, is made in that take and not before; where the broker said to an acknowledgement that the
message is another's also ``"fenced": true``. A step is done when the broker has answered.
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

Step = Literal["take", "effect", "acknowledge", "commit", "release", "retry"]


class Did(BaseModel):
    """The step that a consumer has just done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Step
    message: str | None = None
    queue: str | None = None
    redelivered: bool = False
    refused: bool = False
    """The output said no to the effect."""
    lost: bool = False
    """No answer came to it, and the consumer goes on from what the broker has."""
    returned: bool = False
    """The broker has no queue for the effect, and gave it back."""
    fenced: bool = False
    """An answer came, and it was no: the message is another's."""


class Ask(BaseModel):
    """A consumer at its next step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    consumer: str
    before: Step
    did: Did | None = None


@dataclass
class _Line:
    """One connection: whose it is, and what it has sent of a line."""

    connection: socket.socket
    received: bytes = b""
    consumer: str | None = None


class Gate:
    """The harness's end. Not thread-safe: the run's own thread asks and answers."""

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
        self._lines: dict[str, _Line] = {}
        self._waiting: dict[str, Ask] = {}

    def pump(self, timeout_s: float) -> None:
        """Take in what has come, waiting for it no longer than that."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                connection, _ = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, _Line(connection))
            else:
                self._receive(key.data)

    def asked(self, consumer: str) -> Ask | None:
        """What the consumer waits for, if it waits."""
        return self._waiting.get(consumer)

    def go(self, consumer: str) -> None:
        """Let it do the step that it waits for. One that has died meanwhile is found out by its process."""
        self._waiting.pop(consumer, None)
        line = self._lines.get(consumer)
        if line is not None:
            try:
                line.connection.sendall(b"go\n")
            except OSError:
                self._drop(line)

    def forget(self, consumer: str) -> None:
        """Whatever a consumer that is dead has asked for."""
        self._waiting.pop(consumer, None)
        line = self._lines.pop(consumer, None)
        if line is not None:
            self._drop(line)

    def close(self) -> None:
        """Tell everybody that there is nothing more to do. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._drop(key.data)
        self._selector.close()
        self._listener.close()

    def _receive(self, line: _Line) -> None:
        try:
            received = line.connection.recv(_LINE_BYTES)
        except OSError:
            received = b""
        if not received:
            self._drop(line)
            return
        line.received += received
        while b"\n" in line.received:
            said, line.received = line.received.split(b"\n", 1)
            self._heard(line, said)
        if len(line.received) > _LINE_BYTES:
            raise EnvironmentProblem(f"a consumer sent {len(line.received)} bytes without the end of a line")

    def _heard(self, line: _Line, said: bytes) -> None:
        try:
            ask = Ask.model_validate(json.loads(said))
        except (ValueError, ValidationError) as error:
            raise EnvironmentProblem(
                f"a consumer said {said[:200]!r} at its gate, which is no step: {error}",
                hint="the lines are described in docs/consumers.md",
            ) from error
        line.consumer = ask.consumer
        self._lines[ask.consumer] = line
        self._waiting[ask.consumer] = ask

    def _drop(self, line: _Line) -> None:
        if line.connection.fileno() >= 0:
            self._selector.unregister(line.connection)
            line.connection.close()
