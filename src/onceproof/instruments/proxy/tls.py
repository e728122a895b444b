"""TLS of one side of a connection, without I/O; and what each failure of it means, as a sentence with the setting to change.

Python's `ssl` does the work, on memory buffers: so a rule can still reset the socket below, and a cut ends a handshake too.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

#: A handshake takes milliseconds; a peer that needs longer than this does not speak TLS, or is gone.
HANDSHAKE_S = 10.0

_MOST_READ = 256 * 1024


@dataclass(frozen=True)
class UpstreamTls:
    """How to open TLS to the real service."""

    context: ssl.SSLContext
    """Which authorities to trust, the own certificate if the service wants one, and whether the name is checked."""
    server_name: str | None
    """The name that the service's certificate must be for. None: the host that each connection goes to."""


class TlsPipe:
    """One end of a TLS connection: ciphertext in, plaintext out, and back. Errors are `ssl.SSLError`."""

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None, accepts: bool = False) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=accepts, server_hostname=server_name)
        self.established = False
        self.ended = False
        """The peer has said that it sends no more (close_notify)."""

    def feed(self, ciphertext: bytes) -> bytes:
        """Take what arrived, and return the plaintext in it. Afterwards `pending` may hold bytes to send."""
        self._in.write(ciphertext)
        if not self.established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.established = True
        found = []
        try:
            while data := self._tls.read(_MOST_READ):
                found.append(data)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(found)

    def encrypt(self, plaintext: bytes) -> bytes:
        self._tls.write(plaintext)
        return self._out.read()

    def close(self) -> bytes:
        """The close_notify to send, and whatever was pending."""
        if self.established:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the peer's own close_notify has not come, which is as it should be; or the connection is broken
        return self._out.read()

    def pending(self) -> bytes:
        """Bytes of the handshake or an alert, to send to the peer."""
        return self._out.read()
