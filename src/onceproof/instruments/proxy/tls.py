"""TLS of one side of a connection, without I/O; and what each failure of it means, as a sentence with the setting to change.

Python's `ssl` does the work, on memory buffers: so a rule can still reset the socket below, and a cut ends a handshake too.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
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
        self.closed = False
        """We have."""

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
        left = memoryview(plaintext)
        while left:  # a write may take less than it is given, as that of a socket
            left = left[self._tls.write(left) :]
        return self._out.read()

    def close(self) -> bytes:
        """The close_notify to send, and whatever was pending."""
        if self.established:
            self.closed = True
            with suppress(ssl.SSLError):  # the peer's own close_notify has not come yet, or the connection is broken
                self._tls.unwrap()
        return self._out.read()

    def pending(self) -> bytes:
        """Bytes of the handshake or an alert, to send to the peer."""
        return self._out.read()


#: What OpenSSL reports if the peer rejected our certificate.
_UNTRUSTED = {
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV1_ALERT_DECRYPT_ERROR",
}
_NOTHING_SHARED = {
    "NO_SHARED_CIPHER",
    "UNSUPPORTED_PROTOCOL",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "NO_PROTOCOLS_AVAILABLE",
    "VERSION_TOO_LOW",
}
#: What a service answers that wants a certificate of its client, got none, or does not know its authority.
_CLIENT_CERTIFICATE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_ACCESS_DENIED",
}
_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNEXPECTED_MESSAGE",
}
_EXPIRED, _NOT_YET, _NAMES = 10, 9, (62, 64)


def problem_with_client(why: ssl.SSLError) -> str:
    """Why a client's handshake with the proxy failed, and what to set at the client."""
    reason = why.reason or str(why)
    if reason in _UNTRUSTED:
        return (
            f"the client does not trust this run's authority ({reason}): set its ssl.ca.location or sslrootcert to the run's"
            " ca.pem, or its ssl.truststore.location to the run's ca.p12"
        )
    if reason in _NOTHING_SHARED:
        return f"the client and the proxy share no version or cipher of TLS ({reason}): allow it TLS 1.2 or 1.3"
    return f"the client's TLS handshake failed: {reason}"


def refuses_client(why: ssl.SSLError) -> bool:
    """Whether a service wants another certificate of its client; with TLS 1.3 it says so after the handshake."""
    return why.reason in _CLIENT_CERTIFICATE


def problem_with_service(why: ssl.SSLError, address: str, name: str) -> str:
    """Why the handshake with a service failed, and which setting of the connection to it to change."""
    reason = why.reason or str(why)
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"the certificate of {address} is not accepted: {_certificate(why, name)}"
    if reason in _CLIENT_CERTIFICATE:
        return f"{address} did not accept this client ({reason}): set the TLS certificate and key that it expects"
    if reason in _NOTHING_SHARED:
        return f"{address} and the proxy share no version or cipher of TLS ({reason}): allow TLS 1.2 or 1.3 there"
    if reason in _NOT_TLS:
        return f"{address} does not speak TLS ({reason}): set another port or security protocol"
    return f"the TLS handshake with {address} failed: {reason}"


def _certificate(why: ssl.SSLCertVerificationError, name: str) -> str:
    if why.verify_code == _EXPIRED:
        return "it has expired; the service needs a new one"
    if why.verify_code == _NOT_YET:
        return "it is not valid yet; compare the clocks of both machines"
    if why.verify_code in _NAMES:
        return f"it is not for {name!r}; use an address that it names, or do not check the host name"
    return f"{why.verify_message}; set the TLS authority (ca) to the one that signed it"
