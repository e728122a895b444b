"""Requests to a broker over a socket of their own, for what librdkafka cannot ask, or cannot ask safely. Past every proxy."""

from __future__ import annotations

import socket
import struct

from onceproof.base.errors import ServiceFailed
from onceproof.instruments.proxy.kafka_schema import Cursor, Undecodable, api_name

_CLIENT = b"onceproof"
_INT32 = struct.Struct(">i")


def ask(address: str, api: int, version: int, body: bytes, *, flexible: bool, timeout_s: float) -> Cursor | None:
    """The body of a broker's answer; None if it closed the connection instead.

    ``flexible``: whether this version of the API has compact fields and tags (KIP-482). Raises `OSError` if the broker is away or
    does not answer within ``timeout_s`` seconds, and `ServiceFailed` if it sends something else.
    """
    host, _, port = address.rpartition(":")
    head = struct.pack(">hhih", api, version, 1, len(_CLIENT)) + _CLIENT + (b"\0" if flexible else b"")
    request = head + body
    with (
        socket.create_connection((host, int(port)), timeout=timeout_s) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(_INT32.pack(len(request)) + request)
        size = int.from_bytes(answer.read(4))
        received = answer.read(size)
    if not size or len(received) < size:
        return None
    cursor = Cursor(received)
    try:
        cursor.number(_INT32)  # the request's number
        if flexible:
            cursor.skip_tags()
    except Undecodable as wrong:
        raise ServiceFailed(
            f"the broker at {address} sent something else than an answer to {api_name(api)}: {wrong}"
        ) from wrong
    return cursor
