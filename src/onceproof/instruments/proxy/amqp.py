"""Parses an AMQP 0-9-1 connection: the methods that the client sends, and the broker's answer to a watched one.

Format: AMQP 0-9-1 specification, 2.3.5. A frame is a type, a channel, a size, that many bytes and the octet 0xCE. Before the
first frame a client sends eight bytes that name the protocol. Methods are frames of type 1: class, method, arguments.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Literal

from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Interest, Piece

#: A longer frame is not AMQP: a broker's frame_max is some 128 KiB.
_LONGEST = 64 * 1024 * 1024
_PROTOCOL = b"AMQP\x00\x00\x09\x01"
_HEAD = Struct(">BHI")
_METHOD = Struct(">BHIHH")
_ACK = Struct(">QB")
_METHOD_FRAME, _TYPES = 1, (1, 2, 3, 8)
_END = b"\xce"
_ACKNOWLEDGES, _COMMITS, _COMMITTED = (60, 80), (90, 20), (90, 21)
#: The names of methods, for conditions and for messages about frames that did not match.
_NAMES = {
    (20, 10): "channel.open",
    (50, 10): "queue.declare",
    (60, 10): "basic.qos",
    (60, 20): "basic.consume",
    (60, 40): "basic.publish",
    (60, 70): "basic.get",
    _ACKNOWLEDGES: "basic.ack",
    (60, 90): "basic.reject",
    (60, 120): "basic.nack",
    (90, 10): "tx.select",
    _COMMITS: "tx.commit",
    (90, 30): "tx.rollback",
}


class AmqpConversation:
    """Implements `onceproof.instruments.proxy.frames.Conversation`. Rules may stop ``basic.ack`` and ``tx.commit``."""

    def __init__(self, interest: Interest) -> None:
        self.readable = True
        self.rewrites = False
        self._interest = interest
        self._began = False
        self._kept = {"client": b"", "server": b""}
        self._passing = {"client": 0, "server": 0}
        """Bytes left of a frame that passes unread."""
        self._watched: dict[int, Frame] = {}
        """Channel -> the commit whose answer is awaited: a channel has one at a time."""

    def from_client(self, data: bytes) -> list[Piece]:
        if not self.readable:
            return [self.rest_of_client(), data]
        if self._began:
            return self._frames("client", data)
        start = self._kept["client"] + data
        if start[:1] == b"\x16":
            raise Encrypted("TLS: use an amqp:// URL and not an amqps:// one")
        if len(start) < len(_PROTOCOL) and _PROTOCOL.startswith(start):
            self._kept["client"] = start
            return []
        self._kept["client"] = b""
        self.readable = self._began = start.startswith(_PROTOCOL)
        if not self.readable:
            return [start]
        rest = start[len(_PROTOCOL) :]
        return [_PROTOCOL, *(self._frames("client", rest) if rest else [])]

    def from_server(self, data: bytes) -> list[Piece]:
        if not self.readable:
            return [self.rest_of_server(), data]
        return self._frames("server", data)

    def rest_of_client(self) -> bytes:
        return self._rest("client")

    def rest_of_server(self) -> bytes:
        return self._rest("server")

    def watch(self, frame: Frame) -> None:
        """See `Conversation.watch`. Does nothing for a ``basic.ack``: only a commit has an answer."""
        if frame.kind == _NAMES[_COMMITS]:
            self._watched[frame.tag] = frame

    def _rest(self, side: Literal["client", "server"]) -> bytes:
        rest, self._kept[side] = self._kept[side], b""
        return rest

    def _frames(self, side: Literal["client", "server"], data: bytes) -> list[Piece]:
        if (passing := self._passing[side]) >= len(data):
            self._passing[side] -= len(data)
            return [data]
        data, self._kept[side], self._passing[side] = self._kept[side] + data, b"", 0
        pieces: list[Piece] = []
        start, at = 0, passing  # [start, at) passes
        while at < len(data):
            if len(data) - at < _HEAD.size:
                break
            kind, channel, size = _HEAD.unpack_from(data, at)
            if kind not in _TYPES or size > _LONGEST:
                self.readable = False  # not a frame: from here on everything passes
                at = len(data)
                break
            whole = _HEAD.size + size + len(_END)
            if kind == _METHOD_FRAME:
                if len(data) - at < _METHOD.size:
                    break
                method = _METHOD.unpack_from(data, at)[3:]
                if self._wanted(side, channel, method):
                    if len(data) - at < whole:
                        self._kept[side] = data[at:]
                        return [*pieces, data[start:at]] if at > start else pieces
                    if at > start:
                        pieces.append(data[start:at])
                    pieces.append(self._piece(side, channel, method, data[at : at + whole]))
                    start = at + whole
            at += whole
        if at > len(data):
            self._passing[side], at = at - len(data), len(data)
        self._kept[side] = data[at:]
        if at > start:
            pieces.append(data[start:at])
        return pieces

    def _wanted(self, side: str, channel: int, method: tuple[int, int]) -> bool:
        if side == "server":
            return method == _COMMITTED and channel in self._watched
        name = _NAMES.get(method, f"method {method[0]}.{method[1]}")
        return self._interest.active and self._interest.wants(name)

    def _piece(self, side: str, channel: int, method: tuple[int, int], raw: bytes) -> Piece:
        if side == "server":
            return Answer(raw, self._watched.pop(channel), {"answer": "tx.commit-ok"})
        facts: dict[str, Any] = {"channel": channel}
        if method == _ACKNOWLEDGES:
            tag, multiple = _ACK.unpack_from(raw, _METHOD.size)
            facts |= {"delivery_tag": tag, "multiple": bool(multiple & 1)}
        return Frame(raw, _NAMES[method], facts, channel)
