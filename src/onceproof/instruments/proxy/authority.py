"""A certificate authority per run, for the proxy's own listeners: clients that require TLS trust it instead of the service's.

The authority's private key never leaves this process. The listeners' key is in one file that only this user can read.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

#: The truststore holds only the public certificate. Java reads a PKCS12 truststore only with a password; this is its usual one.
TRUSTSTORE_PASSWORD = "changeit"  # noqa: S105 - protects nothing

_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class RunAuthority:
    """The files of one authority, for `create` to write and for the clients of a run to trust."""

    ca: Path
    """The authority's certificate, PEM: ``ssl.ca.location``, ``sslrootcert``."""
    truststore: Path
    """The same as a PKCS12 truststore for Java, with `TRUSTSTORE_PASSWORD`."""
    certificate: Path
    """The certificate of the listeners, PEM."""
    key: Path
    """Its private key, PEM, mode 0600."""

    @classmethod
    def create(cls, folder: Path, hosts: Iterable[str] = ()) -> RunAuthority:
        """Make an authority and a certificate for listeners on loopback and on ``hosts`` (names or addresses).

        Creates the folder. Raises `FileExistsError` if it already has an authority.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = cls(*(folder / name for name in ("ca.pem", "ca.p12", "listener.pem", "listener.key")))
        ca = trustme.CA(organization_name="onceproof", organization_unit_name="authority of one run")
        listener = ca.issue_cert(*dict.fromkeys((*_LOOPBACK, *hosts)), organization_name="onceproof, protocol proxy")
        key = load_pem_private_key(listener.private_key_pem.bytes(), None)
        _write(made.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        _write(made.certificate, listener.cert_chain_pems[0].bytes(), 0o644)
        _write(made.ca, ca.cert_pem.bytes(), 0o644)
        encryption = BestAvailableEncryption(TRUSTSTORE_PASSWORD.encode())
        trusted = pkcs12.PKCS12Certificate(load_pem_x509_certificate(ca.cert_pem.bytes()), b"onceproof")
        _write(made.truststore, pkcs12.serialize_java_truststore([trusted], encryption), 0o644)
        return made

    def server_context(self) -> ssl.SSLContext:
        """A context for listeners. Clients need no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        # Postgres 17 and newer: a client that begins with TLS must name the protocol. Kafka's clients name none.
        context.set_alpn_protocols(["postgresql"])
        return context


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(content)
