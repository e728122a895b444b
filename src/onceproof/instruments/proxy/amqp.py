"""Parses an AMQP 0-9-1 connection: the methods that the client sends, and the broker's answer to a watched one.

Format: AMQP 0-9-1 specification, 2.3.5. A frame is a type, a channel, a size, that many bytes and the octet 0xCE. Before the
first frame a client sends eight bytes that name the protocol. Methods are frames of type 1: class, method, arguments.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Any

from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Interest, Piece, SplitConversation, Splitter

#: A longer frame is not AMQP: a broker's frame_max is some 128 KiB.
_LONGEST = 64 * 1024 * 1024
_PROTOCOL = b"AMQP\x00\x00\x09\x01"
_HEAD = Struct(">BHI")
_METHOD = Struct(">BHIHH")
_ACK = Struct(">QB")
_METHOD_FRAME, _TYPES = 1, (1, 2, 3, 8)
_END = b"\xce"
_SIDES = ("client", "server")
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


class AmqpConversation(SplitConversation):
    """Implements `onceproof.instruments.proxy.frames.Conversation`. Rules may stop ``basic.ack`` and ``tx.commit``."""

    def __init__(self, interest: Interest) -> None:
        super().__init__(*(Splitter(partial(self._measure, side), partial(self._parse, side)) for side in _SIDES))
        self._interest = interest
        self._began = False
        self._watched: dict[int, Frame] = {}
        """Channel -> the commit whose answer is awaited: a channel has one at a time."""

    def watch(self, frame: Frame) -> None:
        """See `Conversation.watch`. Does nothing for a ``basic.ack``: only a commit has an answer."""
        if frame.kind == _NAMES[_COMMITS]:
            self._watched[frame.tag] = frame

    def _measure(self, side: str, data: bytes, at: int) -> tuple[int, bool] | None:
        if side == "client" and not self._began:
            return self._measure_protocol(data)
        left = len(data) - at
        if left < _HEAD.size:
            return None
        kind, channel, size = _HEAD.unpack_from(data, at)
        if kind not in _TYPES or size > _LONGEST:
            return 0, False
        whole = _HEAD.size + size + len(_END)
        if kind != _METHOD_FRAME:
            return whole, False
        if left < _METHOD.size:
            return None
        return whole, self._wanted(side, channel, _METHOD.unpack_from(data, at)[3:])

    def _measure_protocol(self, start: bytes) -> tuple[int, bool] | None:
        """The eight bytes with which a client begins."""
        if start[:1] == b"\x16":
            raise Encrypted("TLS: use an amqp:// URL and not an amqps:// one")
        if len(start) < len(_PROTOCOL) and _PROTOCOL.startswith(start):
            return None
        self._began = start.startswith(_PROTOCOL)
        return len(_PROTOCOL) if self._began else 0, False

    def _wanted(self, side: str, channel: int, method: tuple[int, int]) -> bool:
        if side == "server":
            return method == _COMMITTED and channel in self._watched
        name = _NAMES.get(method, f"method {method[0]}.{method[1]}")
        return self._interest.active and self._interest.wants(name)

    def _parse(self, side: str, data: bytes, at: int, end: int) -> list[Piece]:
        raw = data[at:end]
        channel, method = _HEAD.unpack_from(raw)[1], _METHOD.unpack_from(raw)[3:]
        if side == "server":
            return [Answer(raw, self._watched.pop(channel), {"answer": "tx.commit-ok"})]
        facts: dict[str, Any] = {"channel": channel}
        if method == _ACKNOWLEDGES:
            tag, multiple = _ACK.unpack_from(raw, _METHOD.size)
            facts |= {"delivery_tag": tag, "multiple": bool(multiple & 1)}
        return [Frame(raw, _NAMES[method], facts, channel)]
