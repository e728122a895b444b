"""A certificate authority per run, for the proxy's own listeners: clients that require TLS trust it instead of the service's.

The authority's private key never leaves this process. The listeners' key is in one file that only this user can read.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The truststore holds only the public certificate. Java reads a PKCS12 truststore only with a password; this is its usual one.
TRUSTSTORE_PASSWORD = "changeit"  # noqa: S105 - protects nothing

#: Longer than any run. A certificate that begins now would be refused by a client whose clock is a little behind.
_LASTS = datetime.timedelta(days=30)
_BEGAN = datetime.timedelta(days=1)
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class RunAuthority:
    """The files of one authority, for `create` to write and for the clients of a run to trust."""

    folder: Path
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
        made = cls(folder, *(folder / name for name in ("ca.pem", "ca.p12", "listener.pem", "listener.key")))
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca = _ca_certificate(ca_key)
        certificate = _listener_certificate(key, ca, ca_key, dict.fromkeys((*_LOOPBACK, *hosts)))
        _write(made.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        _write(made.certificate, certificate.public_bytes(Encoding.PEM), 0o644)
        _write(made.ca, ca.public_bytes(Encoding.PEM), 0o644)
        encryption = BestAvailableEncryption(TRUSTSTORE_PASSWORD.encode())
        trusted = pkcs12.PKCS12Certificate(ca, b"onceproof")
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


def _ca_certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("onceproof, authority of one run")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _listener_certificate(
    key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, hosts: Iterable[str]
) -> x509.Certificate:
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(_name("onceproof, protocol proxy"), ca.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEGAN)
        .not_valid_after(now + _LASTS)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(content)
