"""The beginning of a connection, before its first frame: TLS with the client, and TLS with the service.

A client of Kafka begins with TLS. A client of Postgres first asks whether it may (SSLRequest), or begins with TLS too
(``sslnegotiation=direct``); Postgres' manual, 54.2.11.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from struct import Struct, pack

from onceproof.instruments.proxy.frames import Refused
from onceproof.instruments.proxy.loop import Target
from onceproof.instruments.proxy.side import Side
from onceproof.instruments.proxy.tls import HANDSHAKE_S, TlsPipe, UpstreamTls, problem_with_client

_HEAD = Struct(">ii")
_SSL, _GSS = 80877103, 80877104
_TLS_RECORD = b"\x16"


class Refusal(Refused):
    """The beginning of a connection cannot succeed until a setting is changed."""


class Doorway:
    """Reads the first bytes of a client, and answers what concerns encryption; then the side's ``read`` is ``through``.

    ``failed`` gets the reason if the client does not get through: a `Refusal`, or an `OSError` if the connection just died.
    """

    def __init__(
        self,
        side: Side,
        target: Target,
        context: ssl.SSLContext | None,
        through: Callable[[bytes], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._side = side
        self._kafka = target.service == "kafka"
        self._context = context
        self._through = through
        self._failed = failed
        self._kept = b""
        side.read = self._feed
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_slow)

    def close(self) -> None:
        """No longer wait for the client. Idempotent."""
        self._timer.cancel()

    def _feed(self, data: bytes) -> None:
        data, self._kept = self._kept + data, b""
        while True:
            if data[:1] == _TLS_RECORD:
                if self._context is None:
                    self._pass(data)
                else:
                    self._begin(self._context, data)
                return
            if self._kafka:
                self._fail(
                    Refusal(
                        "the client does not speak TLS: set its security.protocol to SSL or SASL_SSL, as the cluster's"
                    )
                )
                return
            if len(data) < _HEAD.size:
                self._kept = data
                return
            code = _HEAD.unpack_from(data)[1]
            if code == _GSS or (code == _SSL and self._context is None):
                self._side.write(b"N")
            elif code == _SSL and len(data) == _HEAD.size:
                self._side.write(b"S")
            elif code == _SSL:
                # Postgres refuses this too: what comes unencrypted with the question may be someone else's (CVE-2021-23214).
                self._fail(Refusal("the client sent data between its question for TLS and the answer"))
                return
            else:
                self._pass(data)
                return
            data = data[_HEAD.size :]
            if not data:
                return

    def _pass(self, data: bytes) -> None:
        self.close()
        self._side.read = self._through
        self._through(data)

    def _begin(self, context: ssl.SSLContext, data: bytes) -> None:
        self._side.read = self._through
        done = self._side.start_tls(TlsPipe(context, accepts=True), data)
        done.add_done_callback(self._shaken)

    def _shaken(self, done: asyncio.Future[None]) -> None:
        self.close()
        if done.cancelled():
            return
        why = done.exception()
        if isinstance(why, ssl.SSLError):
            self._failed(Refusal(problem_with_client(why)))
        elif isinstance(why, Exception):
            self._failed(why)

    def _too_slow(self) -> None:
        self._fail(TimeoutError(f"it did not begin, or did not finish its TLS handshake, within {HANDSHAKE_S:g} s"))

    def _fail(self, why: Exception) -> None:
        self.close()
        self._failed(why)


async def enter(side: Side, target: Target, tls: UpstreamTls) -> None:
    """Open TLS to the service on a new connection, and leave ``side.read`` to the caller.

    Raises `Refusal`; `ssl.SSLError` if the handshake failed, another `OSError` if the connection ended first.
    """
    if target.service == "postgres":
        await _ask(side, target)
    await side.start_tls(TlsPipe(tls.context, server_name=tls.server_name or target.host))


async def _ask(side: Side, target: Target) -> None:
    """Ask Postgres for TLS. It answers with one byte, or with an error and closes the connection."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(data: bytes) -> None:
        if not answered.done():
            answered.set_result(data)

    def lost(why: Exception) -> None:
        if not answered.done():
            answered.set_exception(why)

    side.read = take
    side.when_lost(lost)
    side.write(pack(">ii", _HEAD.size, _SSL))
    answer = await answered
    if answer != b"S":
        said = "answered no" if answer == b"N" else f"answered {answer[:40]!r}"
        raise Refusal(
            f"asked for TLS, Postgres at {target.host}:{target.port} {said}: set ssl=on there, or no TLS for it here"
        )
