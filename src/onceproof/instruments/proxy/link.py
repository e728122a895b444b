"""One connection through the proxy: passes bytes on as they come, and applies a rule to each frame that the rule stops.

The first bytes of a frame show its kind (`onceproof.instruments.proxy.frames`). Only a frame that a rule may want is buffered
until it is complete.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from onceproof.instruments.proxy.accept import has_died
from onceproof.instruments.proxy.doorway import Doorway, Refusal, enter
from onceproof.instruments.proxy.frames import Answer, Conversation, Encrypted, Frame, Piece, Refused, Reply
from onceproof.instruments.proxy.loop import ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board, Hit, Parked, Rule, now
from onceproof.instruments.proxy.side import How, Side
from onceproof.instruments.proxy.tls import HANDSHAKE_S, UpstreamTls, problem_with_service, refuses_client

#: Bytes that a client may send while one of its frames is parked. TCP would buffer about as much.
_PARKED_MOST = 4 * 1024 * 1024
#: This process, or the machine, has no free file descriptor.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Listener(Protocol):
    """The proxy that accepted the connection. `onceproof.instruments.proxy.engine` implements it."""

    name: str
    port: int
    target: Target
    board: Board
    loop: ProxyLoop
    rejecting: bool
    client_tls: ssl.SSLContext | None
    upstream_tls: UpstreamTls | None
    requesting: set[str] | None
    entered_tls: bool
    """Whether TLS with the service has ever been opened."""
    links: set[Link]
    tasks: set[asyncio.Task[None]]

    def conversation(self) -> Conversation: ...

    def emit(self, kind: str, **data: Any) -> None: ...

    def refuse(self, why: Refused) -> None: ...

    def incident(self, why: str) -> None: ...


class Link:
    """One connection through the proxy: its two sides, and the state of the frames between them."""

    def __init__(self, proxy: Listener) -> None:
        self.proxy = proxy
        self.client = Side(self, self._from_client, self._client_eof, self._client_lost)
        self.server = Side(self, self._from_server, self._server_eof, self._server_lost)
        self._conversation = proxy.conversation()
        self.peer = "?"
        self._asked_last = False
        """The last bytes came from the client."""
        self._reported_unreadable = False
        self._door: Doorway | None = None
        self._ready = False
        """The service can be written to."""
        self._waiting: dict[int, tuple[Rule, Hit]] = {}
        """id of a frame whose answer is awaited -> the rule and hit that wait for it"""
        self._early = bytearray()
        """What the client sent before the connection to the service was made; reading is paused, but data may have come."""
        self._early_end = False
        self._parked: Parked | None = None
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

    @property
    def awaits_answer(self) -> bool:
        """Whether the client certainly waits for an answer: it sent something, and nothing came since."""
        return self._asked_last and self._conversation.in_use

    # -- the two sides --------------------------------------------------------------------------------------------

    def accepted(self) -> None:
        assert self.client.transport is not None
        peer = self.client.transport.get_extra_info("peername")
        if peer is None:  # the client had reset the connection before it was accepted
            self.end("abort")
            return
        self.proxy.links.add(self)
        self.peer = f"{peer[0]}:{peer[1]}"
        if self.proxy.rejecting:
            self._reject("refused")
            return
        target, context = self.proxy.target, self.proxy.client_tls
        if context is not None or (self.proxy.upstream_tls is not None and target.service == "postgres"):
            self._door = Doorway(self.client, target, context, self._from_client, self._not_entered)
        else:
            self.client.pause()  # until there is a connection to the service
        task = asyncio.get_running_loop().create_task(self._connect())
        self.proxy.tasks.add(task)
        task.add_done_callback(self.proxy.tasks.discard)

    async def _connect(self) -> None:
        target, tls = self.proxy.target, self.proxy.upstream_tls
        address = f"{target.host}:{target.port}"
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, *target.next_hop)
            if tls is not None:
                await asyncio.wait_for(enter(self.server, target, tls), HANDSHAKE_S)
        except Refused as why:
            self._refuse(why)
        except ssl.SSLError as why:
            self._not_secured(why, problem_with_service(why, address, (tls and tls.server_name) or target.host))
        except OSError as why:
            self._not_reached(why, address)
        else:
            self._enter()

    def _enter(self) -> None:
        self.server.read = self._from_server
        if self.server.gone:
            return
        self._ready = True
        self.proxy.entered_tls = self.proxy.entered_tls or self.proxy.upstream_tls is not None
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self._from_client(early)
        if self._early_end:
            self._client_eof()
        self.client.resume()

    def _not_secured(self, why: ssl.SSLError, sentence: str) -> None:
        if self.proxy.entered_tls and not isinstance(why, ssl.SSLCertVerificationError):
            self.proxy.incident(sentence)  # it has worked before, so no setting is wrong
            self._reject("refused")
        else:
            self._refuse(Refusal(sentence))

    def _not_reached(self, why: OSError, address: str) -> None:
        if isinstance(why, ConnectionAbortedError):
            return  # the proxy itself ended the connection
        if why.errno in NO_DESCRIPTOR:
            self.proxy.incident(f"could not connect to {address}: {why.strerror}; raise the limit (`ulimit -n`)")
        elif self.server.transport is not None and not self.client.gone:
            said = str(why) or f"no answer within {HANDSHAKE_S:g} s"
            if not self.proxy.entered_tls:
                self._refuse(
                    Refusal(f"{address} does not seem to speak TLS: in the handshake, {said}; set another port")
                )
                return
            self.proxy.incident(f"the TLS handshake with {address} failed: {said}")
        self._reject("refused")

    def _not_entered(self, why: Exception) -> None:
        """End the connection of a client that failed before its first frame, in TLS or by a setting."""
        if isinstance(why, Refused):
            self._refuse(why)
            return
        if not self.client.gone and not isinstance(why, ConnectionAbortedError):
            self.proxy.incident(f"a client's connection ended before its first frame: {why}")
        self.end("close")

    def broken_tls(self, side: Side, why: ssl.SSLError) -> None:
        """The TLS of an established side broke."""
        if side is self.client:
            self.proxy.incident(f"the TLS of a client broke: {why.reason or why}")
            self._client_lost()
            return
        target = self.proxy.target
        address = f"{target.host}:{target.port}"
        if refuses_client(why):
            self._refuse(Refusal(problem_with_service(why, address, target.host)))
            return
        self.proxy.incident(f"the TLS with {address} broke: {why.reason or why}")
        self._server_lost()

    def _reject(self, how: Literal["refused", "broken", "idle"]) -> None:
        """Reset the connection: the closest that a proxy can come to a refusal by the service itself."""
        self.proxy.board.note(Reply(now(), self.proxy.name, "connection", how, f"from {self.peer}"))
        self.end("reset")

    def _from_client(self, data: bytes) -> None:
        if self._cut_off:
            return
        self._asked_last = True
        if not self._ready and not self.server.gone:
            self._note_request()
            self._early += data
            self.client.pause()
            return
        if self.proxy.rejecting and self._parked is None:
            self._reject("broken" if self._conversation.attempts(data) else "idle")
            return
        if self._parked is not None:
            self._parked.unread += data
            if len(self._parked.unread) > _PARKED_MOST and not self._parked.paused:
                self._parked.paused = True
                self.client.pause()
                task = asyncio.get_running_loop().create_task(self._watch_paused(self._parked))
                self.proxy.tasks.add(task)
                task.add_done_callback(self.proxy.tasks.discard)
            return
        try:
            pieces = self._conversation.from_client(data)
        except Refused as why:
            self._refuse(why)
            return
        self._check_readable()
        self._note_request()
        self._forward(pieces)

    async def _watch_paused(self, parked: Parked) -> None:
        assert self.client.transport is not None
        connection = self.client.transport.get_extra_info("socket")
        if await has_died(connection, self.peer, self.proxy.port, lambda: self._parked is parked):
            self._client_lost()

    def _note_request(self) -> None:
        if self.proxy.requesting is not None and self._conversation.in_use:
            self.proxy.requesting.add(self.peer)

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
            self._reject("broken" if self._conversation.in_use else "idle")
            return
        self._asked_last = False
        self._unparsed += len(data)
        ahead = not (self._cut_off or self._waiting or self._conversation.rewrites)
        if ahead and self._unparsed - len(data) == self._sent_ahead:
            # No answer is awaited, and nothing is held back: the client gets the bytes before they are parsed.
            self.client.write(data)
            self._sent_ahead += len(data)
        try:
            pieces = self._conversation.from_server(data)
        except Refused as why:
            self._refuse(why)
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
        if not self._ready and not self.server.gone:
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

    def end(self, how: How) -> None:
        """End both sides. A frame that waits for late delivery is lost."""
        self.client.cut(how)
        self.server.cut("abort" if how == "abort" else "close")

    def forget_if_over(self) -> None:
        if self._door is not None and self.client.over:
            self._door.close()
        if self.client.over and self.server.over:
            self.proxy.links.discard(self)

    # -- applying rules -------------------------------------------------------------------------------------------

    def _stop(self, rule: Rule, frame: Frame, following: Sequence[Piece]) -> bool:
        """Apply the rule to the frame; True if the pieces that follow the frame must not pass now."""
        hit = Hit(frame, self.proxy.name, self.peer, now())
        self._emit("frame.stopped", rule, hit, action=rule.action)
        if rule.action == "park" or rule.hold:
            self._parked = Parked(rule, hit, following)
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
        parked.hit.client_left_at = now()  # first: who sees `undeliverable` must find the time
        why = parked.hit.undeliverable = (
            "the client closed the connection while the frame was parked, so the frame never reached the service"
        )
        self._emit("frame.abandoned", parked.rule, parked.hit, why=why)
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
        if rule.quiet:
            return
        named = {"rule": rule.name} if rule.name else {}
        self.proxy.emit(kind, **named, **hit.event_data(), **more)

    def _refuse(self, why: Refused) -> None:
        self.proxy.refuse(why)
        self._cut_off = True
        self.end("abort" if isinstance(why, Encrypted) else "close")  # close: a client may read the alert

    def _check_readable(self) -> None:
        if not self._conversation.readable and not self._reported_unreadable:
            self._reported_unreadable = True
            self.proxy.emit(
                "warning",
                message=f"{self.proxy.name}: the connection from {self.peer} does not speak "
                f"{self.proxy.target.service}; its bytes pass, and no rule can read its frames",
            )


def _bytes(piece: Piece) -> bytes:
    return piece if isinstance(piece, bytes) else piece.raw
