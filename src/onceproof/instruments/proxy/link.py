"""One connection through the proxy: bytes pass as they come, and to a frame that a rule stops is done what the rule says.

What a frame is, is known from its first bytes (`onceproof.instruments.proxy.frames`); only one that a rule may want is kept until it
is whole.
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

#: What a client may send on while a frame of it is parked. TCP would keep about as much.
_PARKED_MOST = 4 * 1024 * 1024
#: Bytes that wait for a slow peer before its other side is read no more.
_HIGH_WATER = 1024 * 1024


@dataclass
class _Parked:
    """A frame that waits, and what its client has sent since: read already, and not yet."""

    rule: Rule
    hit: Hit
    behind: Sequence[Piece]
    unread: bytearray = field(default_factory=bytearray)


class Listener(Protocol):
    """The proxy that a connection came in by, as `onceproof.instruments.proxy.engine` has it."""

    name: str
    target: Target
    board: Board
    loop: ProxyLoop
    away: bool
    refusals: list[str]
    links: set[Link]
    tasks: set[asyncio.Task[None]]

    def conversation(self) -> Conversation: ...

    def emit(self, kind: str, **data: Any) -> None: ...


class Link:
    """One connection through the proxy: two sides and what is known of the frames between them."""

    def __init__(self, proxy: Listener) -> None:
        self.proxy = proxy
        self.client = Side(self, self._from_client, self._client_eof, self._client_lost)
        self.server = Side(self, self._from_server, self._server_eof, self._server_lost)
        self._talk = proxy.conversation()
        self._peer = "?"
        self._told_unreadable = False
        self._waiting: dict[int, tuple[Rule, Hit]] = {}
        """id of a watched frame -> whose answer it gets"""
        self._early = bytearray()
        """What the client said before the way to the service stood; it is told to wait, and may have spoken by then."""
        self._early_end = False
        self._parked: _Parked | None = None
        self._kept = 0
        """Bytes of the service that are still being read here: the beginning of a message, or of an answer."""
        self._ahead = 0
        """How many of them its client has already."""
        self._late = False
        """A frame of it waits to be delivered late."""
        self._deaf = False
        """The client was cut off, or is to hear and be heard no more: only answers to watched frames are looked at."""
        self._silent = False
        """It was not told: its connection stands."""

    # -- the two sides --------------------------------------------------------------------------------------------

    def accepted(self) -> None:
        self.proxy.links.add(self)
        assert self.client.transport is not None
        host, port = self.client.transport.get_extra_info("peername")[:2]
        self._peer = f"{host}:{port}"
        if self.proxy.away:
            self._turn_away("refused")
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
            self._turn_away("refused")
            return
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self._from_client(early)
        if self._early_end:
            self._client_eof()
        self.client.resume()

    def _turn_away(self, how: Literal["refused", "broken"]) -> None:
        """A reset is as near as can be to being refused by the service itself."""
        self.proxy.board.told(Reply(now(), self.proxy.name, "connection", how, f"from {self._peer}"))
        self.end("reset")

    def _from_client(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.server.transport is None and not self.server.gone:
            self._early += data
            return
        if self.proxy.away and self._parked is None:
            self._turn_away("broken")
            return
        if self._parked is not None:
            self._parked.unread += data
            if len(self._parked.unread) > _PARKED_MOST:
                self.client.pause()
            return
        try:
            pieces = self._talk.from_client(data)
        except Encrypted as why:
            self._refuse(str(why))
            return
        self._check_readable()
        self._carry(pieces)

    def _carry(self, pieces: Sequence[Piece]) -> None:
        """To the service, up to a frame that a rule stops."""
        for index, piece in enumerate(pieces):
            if isinstance(piece, Frame):
                rule = self.proxy.board.rule_for(piece)
                if rule is not None:
                    if self._stop(rule, piece, pieces[index + 1 :]):
                        return
                    continue
            self.server.write(_bytes(piece))

    def _from_server(self, data: bytes) -> None:
        if self.proxy.away and not self._deaf and self._parked is None:
            self._turn_away("broken")
            return
        self._kept += len(data)
        if not self._deaf and not self._waiting and self._kept - len(data) == self._ahead:
            # No answer is waited for, and nothing is held back: the client need not wait until it has been read here as well.
            self.client.write(data)
            self._ahead += len(data)
        try:
            pieces = self._talk.from_server(data)
        except Encrypted as why:
            self._refuse(str(why))
            return
        self._check_readable()
        for piece in pieces:
            raw = _bytes(piece)
            self._kept -= len(raw)
            if isinstance(piece, Answer):
                self._answered(piece)
                continue
            if self._ahead:
                known = min(self._ahead, len(raw))
                self._ahead -= known
                raw = raw[known:]
            if not self._deaf:
                self.client.write(raw)

    def _client_eof(self) -> None:
        if self.server.transport is None and not self.server.gone:
            self._early_end = True
        elif self._parked is not None:
            self._left_while_parked()
        elif self._deaf:
            self._client_lost()
        else:
            self.server.write(self._talk.rest_of_client())
            self.server.write_eof()

    def _server_eof(self) -> None:
        if not self._deaf:
            self.client.write(self._talk.rest_of_server()[self._ahead :])
        self._server_lost()

    def _client_lost(self) -> None:
        self.client.cut("close")
        if self._parked is not None:
            self._left_while_parked()
        elif self._late or self._waiting:
            self._deaf = True  # the service's word on what was stopped is still wanted
        else:
            self.server.cut("close")

    def _server_lost(self) -> None:
        self.server.cut("close")
        if self._parked is not None:
            parked, self._parked = self._parked, None
            parked.hit.undeliverable = "the service closed the connection while it was parked; it was never delivered"
            self._emit("frame.undeliverable", parked.rule, parked.hit, why=parked.hit.undeliverable)
        for rule, hit in self._waiting.values():
            hit.undeliverable = "the service closed the connection without an answer"
            self._emit("frame.undeliverable", rule, hit, why=hit.undeliverable)
        self._waiting.clear()
        if not (self._deaf and self._silent):
            self.client.cut("close")

    def end(self, how: Literal["reset", "close", "abort"]) -> None:
        """Both sides; what is late on it is lost."""
        self.client.cut(how)
        self.server.cut("abort" if how == "abort" else "close")

    def forget_if_over(self) -> None:
        if self.client.over and self.server.over:
            self.proxy.links.discard(self)

    # -- what rules do --------------------------------------------------------------------------------------------

    def _stop(self, rule: Rule, frame: Frame, behind: Sequence[Piece]) -> bool:
        """Do what the rule says; True if what is behind the frame may not pass now."""
        hit = Hit(frame, self.proxy.name, self._peer, now())
        self._emit("frame.stopped", rule, hit, action=rule.action)
        if rule.action == "park" or rule.hold:
            self._parked = _Parked(rule, hit, behind)
            rule.when_released(lambda: self.proxy.loop.soon(self._release, hit))
        else:
            self._act(rule, hit, behind)
        rule.hits.append(hit)  # last: whoever waits for it finds everything done
        return self._parked is not None or rule.action != "drop-answer"

    def _act(self, rule: Rule, hit: Hit, behind: Sequence[Piece]) -> None:
        if rule.action == "drop-request":
            self._cut_client(rule, hit)
            if not self._silent:
                self.server.cut("close")
        elif rule.action == "late":
            self._late = True
            self._cut_client(rule, hit)
            # What is behind belongs to it: without its Sync, Postgres would not flush the answer.
            rest = b"".join(map(_bytes, behind))
            rule.when_released(lambda: self.proxy.loop.soon(self._deliver_late, rule, hit, rest))
        else:
            self._deliver(rule, hit)

    def _deliver(self, rule: Rule, hit: Hit) -> None:
        self._waiting[id(hit.frame)] = (rule, hit)
        self._talk.watch(hit.frame)
        hit.delivered_at = now()
        self.server.write(hit.frame.raw)

    def _deliver_late(self, rule: Rule, hit: Hit, rest: bytes) -> None:
        self._late = False
        if self.server.gone:
            hit.undeliverable = "the service had closed the connection by then"
            self._emit("frame.undeliverable", rule, hit, why=hit.undeliverable)
            return
        self._deliver(rule, hit)
        self.server.write(rest)
        self._emit("frame.delivered", rule, hit, late_s=round(now() - hit.seen_at, 6))

    def _release(self, hit: Hit) -> None:
        parked = self._parked
        if parked is None or parked.hit is not hit:
            return  # its client has left
        self._parked = None
        self._emit("frame.released", parked.rule, hit, parked_s=round(now() - hit.seen_at, 6))
        self._act(parked.rule, hit, parked.behind)
        if self._deaf:
            return
        self.client.resume()
        self._carry(parked.behind)
        if parked.unread:
            self._from_client(bytes(parked.unread))

    def _answered(self, answer: Answer) -> None:
        rule, hit = self._waiting.pop(id(answer.frame))
        hit.answered_at = now()
        if rule.action == "drop-answer" and not self._deaf:
            self._cut_client(rule, hit)
        if not self._deaf:
            self.client.write(answer.raw)
        elif not self._silent and not self._waiting:
            self.server.cut("close")
        self._emit("frame.answered", rule, hit, answer=dict(answer.facts))
        hit.answer = answer

    def _left_while_parked(self) -> None:
        assert self._parked is not None
        parked, self._parked = self._parked, None
        self._deaf = True
        why = parked.hit.undeliverable = "its client left while it was parked; it was never delivered"
        self._emit("frame.abandoned", parked.rule, parked.hit, why=why)
        parked.hit.client_left_at = now()
        self.end("close")

    def _cut_client(self, rule: Rule, hit: Hit) -> None:
        self._deaf = True
        hit.cut_at = now()
        if rule.cut == "silence":
            self._silent = True
            rule.when_over(lambda: self.proxy.loop.soon(self._break_silence))
        else:
            self.client.cut(rule.cut)

    def _break_silence(self) -> None:
        """A client without a time-out of its own would wait for ever."""
        self._silent = False
        self.client.cut("close")
        if not self._waiting and not self._late:
            self.server.cut("close")

    # -- what is told ---------------------------------------------------------------------------------------------

    def _emit(self, kind: str, rule: Rule, hit: Hit, **more: Any) -> None:
        named = {"rule": rule.name} if rule.name else {}
        self.proxy.emit(kind, **named, **hit.told(), **more)

    def _refuse(self, why: str) -> None:
        sentence = f"{self.proxy.name} refused an encrypted connection, whose frames cannot be read: {why}"
        if sentence not in self.proxy.refusals:
            self.proxy.refusals.append(sentence)
            self.proxy.emit("warning", message=sentence)
        self._deaf = True
        self.end("abort")

    def _check_readable(self) -> None:
        if not self._talk.readable and not self._told_unreadable:
            self._told_unreadable = True
            self.proxy.emit(
                "warning",
                message=f"{self.proxy.name}: the connection from {self._peer} does not speak "
                f"{self.proxy.target.service}; it passes, and no rule can see into it",
            )


class Side(asyncio.Protocol):
    """One end of a link, with the flow control between the two."""

    def __init__(
        self,
        link: Link,
        on_data: Callable[[bytes], None],
        on_eof: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._link = link
        self.data_received = on_data  # type: ignore[method-assign,assignment]  # no frame of Python in between
        self._on_eof = on_eof
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self.gone = False
        """Nothing more is to go through it; what was written may still be on its way."""
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)
        if self.gone:  # cut before it stood
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if self is self._link.client:
            self._link.accepted()

    def eof_received(self) -> bool:
        self._on_eof()
        return True  # half-closed: the other direction goes on

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
        """End it: with RST, or with FIN after all that was written, or with what the kernel has of that."""
        if self.gone and how != "abort":  # one that flushes may have to be cut short
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
