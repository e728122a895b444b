"""Requests to a broker over a connection of their own, for what librdkafka cannot ask, or cannot ask safely. Past every proxy."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from scramp import ScramClient, ScramException

from onceproof.base.errors import ServiceFailed
from onceproof.instruments.proxy.kafka_schema import Cursor, Undecodable, api_name

_CLIENT = b"onceproof"
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_HANDSHAKE, _AUTHENTICATE = 17, 36


@dataclass(frozen=True)
class Login:
    mechanism: str
    """``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``."""
    username: str
    password: str = field(repr=False)


class Connection:
    """A connection to one broker, with TLS and a login if the listener asks for them. A context manager."""

    def __init__(
        self, host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | None = None, login: Login | None = None
    ) -> None:
        """Raises `OSError` if the broker is away, and `ServiceFailed` if it refuses the login.

        ``timeout_s``: for each answer.
        """
        self._address = f"{host}:{port}"
        self._number = 0
        with ExitStack() as opening:
            plain = opening.enter_context(socket.create_connection((host, port), timeout=timeout_s))
            self._socket = plain
            if tls is not None:
                self._socket = opening.enter_context(tls.wrap_socket(plain, server_hostname=host))
            self._answers = opening.enter_context(self._socket.makefile("rb"))
            if login is not None:
                self._log_in(login)
            self._closing = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def ask(self, api: int, version: int, body: bytes, *, flexible: bool = False) -> Cursor | None:
        """The body of the broker's answer; None if it closed the connection instead.

        ``flexible``: whether this version of the API has compact fields and tags (KIP-482). Raises `OSError` if the broker is away or
        does not answer in time, and `ServiceFailed` if it sends something else.
        """
        self._number += 1
        head = struct.pack(">hhih", api, version, self._number, len(_CLIENT)) + _CLIENT + (b"\0" if flexible else b"")
        request = head + body
        self._socket.sendall(_INT32.pack(len(request)) + request)
        size = int.from_bytes(self._answers.read(4))
        received = self._answers.read(size)
        if not size or len(received) < size:
            return None
        cursor = Cursor(received)
        try:
            if cursor.number(_INT32) != self._number:
                raise Undecodable("the answer to another request")
            if flexible:
                cursor.skip_tags()
        except Undecodable as wrong:
            raise self._failed(f"sent something else than an answer to {api_name(api)}: {wrong}") from wrong
        return cursor

    def _log_in(self, login: Login) -> None:
        """SASL in Kafka's own requests (KIP-152)."""
        answer = self.ask(_HANDSHAKE, 1, string(login.mechanism))
        if answer is None or answer.number(_INT16):
            raise self._failed(f"does not offer the login {login.mechanism}")
        if login.mechanism == "PLAIN":
            self._authenticate(f"\0{login.username}\0{login.password}")
            return
        client = ScramClient([login.mechanism], login.username, login.password)
        try:
            client.set_server_first(self._authenticate(client.get_client_first()))
            client.set_server_final(self._authenticate(client.get_client_final()))
        except ScramException as refused:
            raise self._failed(f"refused the login of {login.username}: {refused}") from None

    def _authenticate(self, message: str) -> str:
        said = message.encode()
        answer = self.ask(_AUTHENTICATE, 0, _INT32.pack(len(said)) + said)
        if answer is None:
            raise self._failed("closed the connection instead of answering the login")
        refused, why = answer.number(_INT16), answer.text(compact=False)
        if refused:
            raise self._failed(f"refused the login: {why}")
        return answer.take(max(answer.number(_INT32), 0)).decode()

    def _failed(self, what: str) -> ServiceFailed:
        return ServiceFailed(f"the broker at {self._address} {what}")


def string(text: str) -> bytes:
    """As Kafka's messages without compact fields hold it."""
    data = text.encode()
    return _INT16.pack(len(data)) + data


def ask(address: str, api: int, version: int, body: bytes, *, flexible: bool, timeout_s: float) -> Cursor | None:
    """`Connection.ask` over a connection for this request alone, without TLS and login."""
    host, _, port = address.rpartition(":")
    with Connection(host, int(port), timeout_s=timeout_s) as broker:
        return broker.ask(api, version, body, flexible=flexible)
