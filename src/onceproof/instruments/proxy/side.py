"""One end of a connection through the proxy: its transport, its TLS if it has any, and the flow control towards the other end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Literal, Protocol, cast

from onceproof.instruments.proxy.tls import TlsPipe

#: Bytes waiting for a slow peer at which the proxy stops reading from the other side.
_HIGH_WATER = 1024 * 1024

_ENDED = "the proxy ended the connection"

How = Literal["reset", "close", "abort"]


class Ends(Protocol):
    """The connection that a side belongs to. `onceproof.instruments.proxy.link` implements it."""

    client: Side
    server: Side

    def accepted(self) -> None: ...

    def forget_if_over(self) -> None: ...

    def broken_tls(self, side: Side, why: ssl.SSLError) -> None:
        """The TLS of an established side broke."""


class Side(asyncio.Protocol):
    """One end of a link. With TLS, `read` gets plaintext and `write` takes it."""

    def __init__(
        self, link: Ends, on_data: Callable[[bytes], None], on_eof: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        self._link = link
        self.read = on_data
        """Gets what the peer sends; may be replaced at any time."""
        self._on_eof = on_eof
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self.gone = False
        """No more data is read or written; data written earlier may still be on its way."""
        self.over = False
        self._tls: TlsPipe | None = None
        self._shaken: asyncio.Future[None] | None = None
        self._ended = False
        self._broken = False
        self._when_lost: Callable[[Exception], object] | None = None

    # -- called by the loop ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)
        if self.gone:  # cut before the connection was made
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if self is self._link.client:
            self._link.accepted()

    def data_received(self, data: bytes) -> None:
        if self._tls is None:
            self.read(data)
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        if not self._lost(ConnectionResetError("it closed the connection")) and not self._ended:
            self._ended = True
            self._on_eof()
        return True  # half-closed: the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        opening = self._lost(exc or ConnectionResetError("it closed the connection"))
        if not self.gone:
            self.gone = True
            if not opening:
                self._on_lost()
        self.over = True
        self._link.forget_if_over()

    def pause_writing(self) -> None:
        self._other().pause()

    def resume_writing(self) -> None:
        self._other().resume()

    # -- TLS ------------------------------------------------------------------------------------------------------

    def start_tls(self, tls: TlsPipe, received: bytes = b"") -> asyncio.Future[None]:
        """Begin the handshake; from now on everything is encrypted. ``received``: what the peer has already sent of it.

        The future raises `ssl.SSLError`, or `ConnectionError` if the peer or a cut ends the connection first.
        """
        self._tls = tls
        self._shaken = asyncio.get_running_loop().create_future()
        self.when_lost(self._fail)
        if self.transport is None or self.gone:
            self._fail(ConnectionAbortedError(_ENDED))
        else:
            self._feed(received)
        return self._shaken

    def when_lost(self, act: Callable[[Exception], object]) -> None:
        """While this end is being opened: call ``act``, and nothing else, if the peer or a cut ends it first."""
        self._when_lost = act

    def _feed(self, data: bytes) -> None:
        assert self._tls is not None
        if self._broken:
            return
        try:
            plaintext = self._tls.feed(data)
        except ssl.SSLError as why:
            self._broken = True
            self._send(self._tls.pending())  # the alert
            if self._fail(why) or self.gone:
                return
            if self._tls.closed:
                # Java answers an end that comes right after the handshake with a record that cannot be decrypted.
                self._on_lost()
            else:
                self._link.broken_tls(self, why)
            return
        self._send(self._tls.pending())
        if self._tls.established and self._shaken is not None and not self._shaken.done():
            self._when_lost = None
            self._shaken.set_result(None)
        if plaintext and not self.gone:
            self.read(plaintext)
        if self._tls.ended and not self._ended and not self.gone:
            self._ended = True
            self._on_eof()

    def _fail(self, why: Exception) -> bool:
        """End the handshake, if one is in progress."""
        if self._shaken is None or self._shaken.done():
            return False
        self._shaken.set_exception(why)
        return True

    # -- called by the link ---------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not data or self.transport is None or self.transport.is_closing():
            return
        if self._tls is None:
            self.transport.write(data)
            return
        try:
            ciphertext = self._tls.encrypt(data)
        except ssl.SSLError as why:  # it broke, or the peer has ended it
            if not self.gone:
                self._link.broken_tls(self, why)
            return
        self.transport.write(ciphertext)

    def write_eof(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._close_tls()
            with suppress(OSError):
                self.transport.write_eof()

    def cut(self, how: How) -> None:
        """End this side: ``reset`` sends RST, ``close`` a FIN after all written data, ``abort`` drops data not yet sent."""
        self._lost(ConnectionAbortedError(_ENDED))
        if self.gone and how != "abort":  # an abort also ends a side that is still flushing
            return
        self.gone = True
        if self.transport is None:
            self.over = True
            self._link.forget_if_over()
            return
        if how == "close":
            self._close_tls()
            self.transport.close()
            return
        if how == "reset":
            raw: socket.socket = self.transport.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.transport.abort()

    def _lost(self, why: Exception) -> bool:
        """Whether this end was still being opened; then whatever opens it gets the reason."""
        act, self._when_lost = self._when_lost, None
        if act is not None:
            act(why)
        return act is not None

    def _close_tls(self) -> None:
        if self._tls is not None:
            self._send(self._tls.close())

    def _send(self, raw: bytes) -> None:
        if raw and self.transport is not None and not self.transport.is_closing():
            self.transport.write(raw)

    def _other(self) -> Side:
        return self._link.server if self is self._link.client else self._link.client
