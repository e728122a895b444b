"""One connection through the proxy: passes bytes on as they come, and applies a rule to each frame that the rule stops.

The first bytes of a frame show its kind (`onceproof.instruments.proxy.frames`). Only a frame that a rule may want is buffered
until it is complete.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import pack
from typing import Any, Literal, Protocol, cast

from onceproof.instruments.proxy.frames import Answer, Conversation, Encrypted, Frame, Piece, Reply
from onceproof.instruments.proxy.loop import ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board, Hit, Rule, now

#: Bytes that a client may send while one of its frames is parked. TCP would buffer about as much.
_PARKED_MOST = 4 * 1024 * 1024
#: Bytes waiting for a slow peer at which the proxy stops reading from the other side.
_HIGH_WATER = 1024 * 1024


@dataclass
class _Parked:
    """A parked frame, and what its client has sent after it: already parsed (``following``), and not yet (``unread``)."""

    rule: Rule
    hit: Hit
    following: Sequence[Piece]
    unread: bytearray = field(default_factory=bytearray)


class Listener(Protocol):
    """The proxy that accepted the connection. `onceproof.instruments.proxy.engine` implements it."""

    name: str
    target: Target
    board: Board
    loop: ProxyLoop
    rejecting: bool
    refusals: list[str]
    links: set[Link]
    tasks: set[asyncio.Task[None]]

    def conversation(self) -> Conversation: ...

    def emit(self, kind: str, **data: Any) -> None: ...


class Link:
    """One connection through the proxy: its two sides, and the state of the frames between them."""

    def __init__(self, proxy: Listener) -> None:
        self.proxy = proxy
        self.client = Side(self, self._from_client, self._client_eof, self._client_lost)
        self.server = Side(self, self._from_server, self._server_eof, self._server_lost)
        self._conversation = proxy.conversation()
        self._peer = "?"
        self._reported_unreadable = False
        self._waiting: dict[int, tuple[Rule, Hit]] = {}
        """id of a frame whose answer is awaited -> the rule and hit that wait for it"""
        self._early = bytearray()
        """What the client sent before the connection to the service was made; reading is paused, but data may have come."""
        self._early_end = False
        self._parked: _Parked | None = None
        self._unparsed = 0
        """Bytes from the service that the parser still holds: the beginning of a message, or of an answer."""
        self._sent_ahead = 0
        """How many of them the client already has."""
        self._late = False
        """A frame of this connection waits for its late delivery."""
        self._cut_off = False
        """The client no longer sends or receives anything: the proxy only looks for answers to watched frames."""
        self._silent = False
        """The client was cut off without notice: its connection stays open."""

    # -- the two sides --------------------------------------------------------------------------------------------

    def accepted(self) -> None:
        self.proxy.links.add(self)
        assert self.client.transport is not None
        host, port = self.client.transport.get_extra_info("peername")[:2]
        self._peer = f"{host}:{port}"
        if self.proxy.rejecting:
            self._reject("refused")
            return
        task = asyncio.get_running_loop().create_task(self._connect())
        self.proxy.tasks.add(task)
        task.add_done_callback(self.proxy.tasks.discard)

    async def _connect(self) -> None:
        self.client.pause()
        target = self.proxy.target
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, target.host, target.port)
        except OSError:
            self._reject("refused")
            return
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self._from_client(early)
        if self._early_end:
            self._client_eof()
        self.client.resume()

    def _reject(self, how: Literal["refused", "broken"]) -> None:
        """Reset the connection: of all that a proxy can do, this is closest to a refusal by the service itself."""
        self.proxy.board.note(Reply(now(), self.proxy.name, "connection", how, f"from {self._peer}"))
        self.end("reset")

    def _from_client(self, data: bytes) -> None:
        if self._cut_off:
            return
        if self.server.transport is None and not self.server.gone:
            self._early += data
            return
        if self.proxy.rejecting and self._parked is None:
            self._reject("broken")
            return
        if self._parked is not None:
            self._parked.unread += data
            if len(self._parked.unread) > _PARKED_MOST:
                self.client.pause()
            return
        try:
            pieces = self._conversation.from_client(data)
        except Encrypted as why:
            self._refuse(str(why))
            return
        self._check_readable()
        self._forward(pieces)

    def _forward(self, pieces: Sequence[Piece]) -> None:
        """Send the pieces to the service, up to a frame that a rule stops."""
        for index, piece in enumerate(pieces):
            if isinstance(piece, Frame):
                rule = self.proxy.board.rule_for(piece)
                if rule is not None:
                    if self._stop(rule, piece, pieces[index + 1 :]):
                        return
                    continue
            self.server.write(_bytes(piece))

    def _from_server(self, data: bytes) -> None:
        if self.proxy.rejecting and not self._cut_off and self._parked is None:
            self._reject("broken")
            return
        self._unparsed += len(data)
        if not self._cut_off and not self._waiting and self._unparsed - len(data) == self._sent_ahead:
            # No answer is awaited, and nothing is held back: the client gets the bytes before they are parsed.
            self.client.write(data)
            self._sent_ahead += len(data)
        try:
            pieces = self._conversation.from_server(data)
        except Encrypted as why:
            self._refuse(str(why))
            return
        self._check_readable()
        for piece in pieces:
            raw = _bytes(piece)
            self._unparsed -= len(raw)
            if isinstance(piece, Answer):
                self._handle_answer(piece)
                continue
            if self._sent_ahead:
                known = min(self._sent_ahead, len(raw))
                self._sent_ahead -= known
                raw = raw[known:]
            if not self._cut_off:
                self.client.write(raw)

    def _client_eof(self) -> None:
        if self.server.transport is None and not self.server.gone:
            self._early_end = True
        elif self._parked is not None:
            self._abandon_parked()
        elif self._cut_off:
            self._client_lost()
        else:
            self.server.write(self._conversation.rest_of_client())
            self.server.write_eof()

    def _server_eof(self) -> None:
        if not self._cut_off:
            self.client.write(self._conversation.rest_of_server()[self._sent_ahead :])
        self._server_lost()

    def _client_lost(self) -> None:
        self.client.cut("close")
        if self._parked is not None:
            self._abandon_parked()
        elif self._late or self._waiting:
            self._cut_off = True  # the service's answer to the stopped frame is still wanted
        else:
            self.server.cut("close")

    def _server_lost(self) -> None:
        self.server.cut("close")
        if self._parked is not None:
            parked, self._parked = self._parked, None
            parked.hit.undeliverable = (
                "the service closed the connection while the frame was parked, so the frame never reached it"
            )
            self._emit("frame.undeliverable", parked.rule, parked.hit, why=parked.hit.undeliverable)
        for rule, hit in self._waiting.values():
            hit.undeliverable = "the service closed the connection without an answer"
            self._emit("frame.undeliverable", rule, hit, why=hit.undeliverable)
        self._waiting.clear()
        if not (self._cut_off and self._silent):
            self.client.cut("close")

    def end(self, how: Literal["reset", "close", "abort"]) -> None:
        """End both sides. A frame that waits for late delivery is lost."""
        self.client.cut(how)
        self.server.cut("abort" if how == "abort" else "close")

    def forget_if_over(self) -> None:
        if self.client.over and self.server.over:
            self.proxy.links.discard(self)

    # -- applying rules -------------------------------------------------------------------------------------------

    def _stop(self, rule: Rule, frame: Frame, following: Sequence[Piece]) -> bool:
        """Apply the rule to the frame; True if the pieces that follow the frame must not pass now."""
        hit = Hit(frame, self.proxy.name, self._peer, now())
        self._emit("frame.stopped", rule, hit, action=rule.action)
        if rule.action == "park" or rule.hold:
            self._parked = _Parked(rule, hit, following)
            rule.when_released(lambda: self.proxy.loop.soon(self._release, hit))
        else:
            self._act(rule, hit, following)
        rule.hits.append(hit)  # last: a fault that waits for the hit must find the action done
        return self._parked is not None or rule.action != "drop-answer"

    def _act(self, rule: Rule, hit: Hit, following: Sequence[Piece]) -> None:
        if rule.action == "drop-request":
            self._cut_client(rule, hit)
            if not self._silent:
                self.server.cut("close")
        elif rule.action == "late":
            self._late = True
            self._cut_client(rule, hit)
            # What follows is delivered with it: without the Sync, Postgres would not flush the answer.
            rest = b"".join(map(_bytes, following))
            rule.when_released(lambda: self.proxy.loop.soon(self._deliver_late, rule, hit, rest))
        else:
            self._deliver(rule, hit)

    def _deliver(self, rule: Rule, hit: Hit) -> None:
        self._waiting[id(hit.frame)] = (rule, hit)
        self._conversation.watch(hit.frame)
        hit.delivered_at = now()
        self.server.write(hit.frame.raw)

    def _deliver_late(self, rule: Rule, hit: Hit, rest: bytes) -> None:
        self._late = False
        if self.server.gone:
            hit.undeliverable = "the service had closed the connection before the late delivery"
            self._emit("frame.undeliverable", rule, hit, why=hit.undeliverable)
            return
        self._deliver(rule, hit)
        self.server.write(rest)
        self._emit("frame.delivered", rule, hit, late_s=round(now() - hit.seen_at, 6))

    def _release(self, hit: Hit) -> None:
        parked = self._parked
        if parked is None or parked.hit is not hit:
            return  # one of its two peers has disconnected
        self._parked = None
        self._emit("frame.released", parked.rule, hit, parked_s=round(now() - hit.seen_at, 6))
        self._act(parked.rule, hit, parked.following)
        if self._cut_off:
            return
        self.client.resume()
        self._forward(parked.following)
        if parked.unread:
            self._from_client(bytes(parked.unread))

    def _handle_answer(self, answer: Answer) -> None:
        rule, hit = self._waiting.pop(id(answer.frame))
        hit.answered_at = now()
        if rule.action == "drop-answer" and not self._cut_off:
            self._cut_client(rule, hit)
        if not self._cut_off:
            self.client.write(answer.raw)
        elif not self._silent and not self._waiting:
            self.server.cut("close")
        self._emit("frame.answered", rule, hit, answer=dict(answer.facts))
        hit.answer = answer

    def _abandon_parked(self) -> None:
        assert self._parked is not None
        parked, self._parked = self._parked, None
        self._cut_off = True
        why = parked.hit.undeliverable = (
            "the client closed the connection while the frame was parked, so the frame never reached the service"
        )
        self._emit("frame.abandoned", parked.rule, parked.hit, why=why)
        parked.hit.client_left_at = now()
        self.end("close")

    def _cut_client(self, rule: Rule, hit: Hit) -> None:
        self._cut_off = True
        hit.cut_at = now()
        if rule.cut == "silence":
            self._silent = True
            rule.when_over(lambda: self.proxy.loop.soon(self._break_silence))
        else:
            self.client.cut(rule.cut)

    def _break_silence(self) -> None:
        """Close the client's connection: a client without a time-out of its own would wait for ever."""
        self._silent = False
        self.client.cut("close")
        if not self._waiting and not self._late:
            self.server.cut("close")

    # -- events ---------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, rule: Rule, hit: Hit, **more: Any) -> None:
        named = {"rule": rule.name} if rule.name else {}
        self.proxy.emit(kind, **named, **hit.event_data(), **more)

    def _refuse(self, why: str) -> None:
        sentence = f"{self.proxy.name} refused an encrypted connection, since its frames cannot be read: {why}"
        if sentence not in self.proxy.refusals:
            self.proxy.refusals.append(sentence)
            self.proxy.emit("warning", message=sentence)
        self._cut_off = True
        self.end("abort")

    def _check_readable(self) -> None:
        if not self._conversation.readable and not self._reported_unreadable:
            self._reported_unreadable = True
            self.proxy.emit(
                "warning",
                message=f"{self.proxy.name}: the connection from {self._peer} does not speak "
                f"{self.proxy.target.service}; its bytes pass, and no rule can read its frames",
            )


class Side(asyncio.Protocol):
    """One end of a link, with the flow control towards the other end."""

    def __init__(
        self,
        link: Link,
        on_data: Callable[[bytes], None],
        on_eof: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._link = link
        self.data_received = on_data  # type: ignore[method-assign,assignment]  # saves a Python call per read
        self._on_eof = on_eof
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self.gone = False
        """No more data is read or written; data written earlier may still be on its way."""
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)
        if self.gone:  # cut before the connection was made
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if self is self._link.client:
            self._link.accepted()

    def eof_received(self) -> bool:
        self._on_eof()
        return True  # half-closed: the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone:
            self.gone = True
            self._on_lost()
        self.over = True
        self._link.forget_if_over()

    def pause_writing(self) -> None:
        self._other().pause()

    def resume_writing(self) -> None:
        self._other().resume()

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def write_eof(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            with suppress(OSError):
                self.transport.write_eof()

    def cut(self, how: Literal["reset", "close", "abort"]) -> None:
        """End this side: ``reset`` sends RST, ``close`` a FIN after all written data, ``abort`` drops data not yet sent."""
        if self.gone and how != "abort":  # an abort also ends a side that is still flushing
            return
        self.gone = True
        if self.transport is None:
            self.over = True
            self._link.forget_if_over()
            return
        if how == "close":
            self.transport.close()
            return
        if how == "reset":
            raw: socket.socket = self.transport.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.transport.abort()

    def _other(self) -> Side:
        return self._link.server if self is self._link.client else self._link.client


def _bytes(piece: Piece) -> bytes:
    return piece if isinstance(piece, bytes) else piece.raw
