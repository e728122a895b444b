"""TLS on both sides of the proxy, and how each of its failures ends: with a sentence of its own, and without a hanging connection."""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.authority import TRUSTSTORE_PASSWORD, RunAuthority
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.frames import ChannelBound
from onceproof.instruments.proxy.loop import ProxyLoop, Service, Target
from onceproof.instruments.proxy.postgres import PostgresConversation
from onceproof.instruments.proxy.rules import Board, Condition, Rule
from onceproof.instruments.proxy.tls import UpstreamTls

from .echo import Echo, receive
from .wire import GSS_REQUEST, SSL_REQUEST, Everything, joined, pg, startup

FRAME = pack(">ihhi", 12, 26, 1, 5) + b"abcd"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> RunAuthority:
    return RunAuthority.create(tmp_path_factory.mktemp("run") / "authority")


class TlsEcho(Echo):
    """An echo server that speaks only TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def _serve(self, connection: socket.socket, got: bytearray) -> None:
        with suppress(OSError):
            super()._serve(self._context.wrap_socket(connection, server_side=True), got)


class Silent:
    """Accepts connections, and neither reads nor writes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]


class Front:
    def __init__(self, loop: ProxyLoop, port: int, service: Service, **tls: Any) -> None:
        self.warnings: list[str] = []
        self.board = Board()
        target = Target(service, "127.0.0.1", port)
        self.proxy = FrameProxy(loop, "front", ("127.0.0.1", 0), target, self.board, emit=self._note, **tls)
        self.proxy.open()

    def _note(self, kind: str, **data: Any) -> None:
        if kind == "warning":
            self.warnings.append(data["message"])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.proxy.port), timeout=10)

    def wait_for(self, notes: list[str]) -> str:
        """The only note, which is a warning too."""
        wait_until("a sentence", lambda: notes, deadline_s=10)
        assert notes == self.warnings
        (only,) = notes
        return only


def trusting(authority: RunAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


def ended(connection: socket.socket) -> bool:
    """Whether the peer ends the connection within its time-out."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No more file can be opened by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path("/dev/null").open() as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_authoritys_files(authority: RunAuthority) -> None:
    assert authority.key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in authority.ca.read_text() + authority.certificate.read_text()
    assert authority.truststore.stat().st_size > 0 and TRUSTSTORE_PASSWORD == "changeit"
    with pytest.raises(FileExistsError):
        RunAuthority.create(authority.ca.parent)


def test_bytes_and_rules_pass_tls_on_both_sides(loop: ProxyLoop, authority: RunAuthority) -> None:
    echo = TlsEcho(authority.server_context())
    front = Front(
        loop,
        echo.port,
        "kafka",
        client_tls=authority.server_context(),
        upstream_tls=UpstreamTls(trusting(authority), None),
    )
    part = pack(">ihhi", 500_000 - 4, 0, 11, 1) + bytes(range(250)) * 1999 + bytes(238)
    with trusting(authority).wrap_socket(front.connect(), server_hostname="127.0.0.1") as client:
        for _ in range(8):  # one after another: Python's TLS sockets are not for two threads
            client.sendall(part)
            assert receive(client, len(part)) == part
        rule = Rule(Condition("EndTxn"), "drop-request")
        front.board.arm(rule)
        client.sendall(FRAME)
        assert rule.wait_for_hit(5).frame.raw == FRAME
        with pytest.raises(ConnectionResetError):
            while socket.socket.recv(client, 65536):  # below TLS, which reports a reset as an end
                pass
    assert bytes(echo.got[-1]) == part * 8
    assert front.proxy.refusals == front.proxy.incidents == []
    front.proxy.cut()


def test_a_client_without_tls_is_refused(loop: ProxyLoop, echo: Echo, authority: RunAuthority) -> None:
    front = Front(loop, echo.port, "kafka", client_tls=authority.server_context())
    with front.connect() as client:
        client.sendall(FRAME)
        assert ended(client)
    assert "does not speak TLS: set its security.protocol to SSL or SASL_SSL" in front.wait_for(front.proxy.refusals)


def test_a_client_that_does_not_trust_the_authority_is_refused(
    loop: ProxyLoop, echo: Echo, authority: RunAuthority, tmp_path: Path
) -> None:
    front = Front(loop, echo.port, "kafka", client_tls=authority.server_context())
    other = RunAuthority.create(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError), front.connect() as client:
        trusting(other).wrap_socket(client, server_hostname="127.0.0.1")
    assert "ssl.ca.location or sslrootcert to the run's ca.pem" in front.wait_for(front.proxy.refusals)


def test_a_client_that_dies_in_its_handshake_is_not_a_wrong_setting(
    loop: ProxyLoop, echo: Echo, authority: RunAuthority
) -> None:
    front = Front(loop, echo.port, "kafka", client_tls=authority.server_context())
    with front.connect() as client:
        client.sendall(b"\x16\x03\x01\x00\x50half a greeting")
    assert "ended before its first frame: it closed the connection" in front.wait_for(front.proxy.incidents)
    assert front.proxy.refusals == []


def test_a_service_without_tls_is_named(loop: ProxyLoop, echo: Echo, authority: RunAuthority) -> None:
    front = Front(loop, echo.port, "kafka", upstream_tls=UpstreamTls(trusting(authority), None))
    with front.connect() as client:
        assert ended(client)
    assert f"127.0.0.1:{echo.port} does not speak TLS" in front.wait_for(front.proxy.refusals)


@pytest.mark.parametrize(
    ("name", "why"),
    [(None, r"set the TLS authority \(ca\)"), ("broker.example.org", "it is not for 'broker.example.org'")],
)
def test_a_certificate_that_does_not_fit_is_named(
    loop: ProxyLoop, authority: RunAuthority, tmp_path: Path, name: str | None, why: str
) -> None:
    echo = TlsEcho(authority.server_context())
    trusted = RunAuthority.create(tmp_path / "other") if name is None else authority
    front = Front(loop, echo.port, "kafka", upstream_tls=UpstreamTls(trusting(trusted), name))
    with front.connect() as client:
        assert ended(client)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(front.wait_for(front.proxy.refusals))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_service_that_wants_a_certificate_of_its_client_is_named(
    loop: ProxyLoop, authority: RunAuthority, version: ssl.TLSVersion
) -> None:
    """With TLS 1.3 it refuses after the handshake."""
    context = authority.server_context()
    context.maximum_version = version
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    echo = TlsEcho(context)
    front = Front(loop, echo.port, "kafka", upstream_tls=UpstreamTls(trusting(authority), None))
    with front.connect() as client:
        assert ended(client)
    assert "set the TLS certificate and key that it expects" in front.wait_for(front.proxy.refusals)


def test_a_cut_ends_handshakes_in_progress(loop: ProxyLoop, authority: RunAuthority) -> None:
    silent = Silent()
    front = Front(
        loop,
        silent.port,
        "kafka",
        client_tls=authority.server_context(),
        upstream_tls=UpstreamTls(trusting(authority), None),
    )
    with front.connect() as mute, front.connect() as half:
        half.sendall(b"\x16\x03\x01\x00\x50half a greeting")
        wait_until("both connections", lambda: len(front.proxy.links) == 2, deadline_s=10)
        there = silent.listener.accept()[0]
        front.proxy.cut()
        assert ended(mute) and ended(half)
        there.settimeout(10)
        assert ended(there)
    wait_until("no connection to be left", lambda: not front.proxy.links, deadline_s=10)
    assert front.proxy.refusals == front.proxy.incidents == front.warnings == []


def test_without_a_file_descriptor_a_client_waits(loop: ProxyLoop, echo: Echo) -> None:
    front = Front(loop, echo.port, "kafka")
    with socket.socket() as client:
        client.settimeout(10)
        with no_descriptors():
            client.connect(("127.0.0.1", front.proxy.port))
            sentence = front.wait_for(front.proxy.incidents)
        assert "could not accept a connection: Too many open files; raise the limit" in sentence
        client.sendall(FRAME)
        assert receive(client, len(FRAME)) == FRAME
    front.proxy.cut()


# -- Postgres: a client asks first --------------------------------------------------------------------------------


@pytest.fixture
def asked(loop: ProxyLoop, echo: Echo, authority: RunAuthority) -> Iterator[Front]:
    front = Front(loop, echo.port, "postgres", client_tls=authority.server_context())
    yield front
    front.proxy.cut()


def test_a_client_of_postgres_gets_tls_when_it_asks(asked: Front, authority: RunAuthority) -> None:
    raw = asked.connect()
    raw.sendall(GSS_REQUEST)
    assert receive(raw, 1) == b"N"
    raw.sendall(SSL_REQUEST)
    assert receive(raw, 1) == b"S"
    with trusting(authority).wrap_socket(raw, server_hostname="localhost") as client:
        client.sendall(startup())
        assert receive(client, len(startup())) == startup()


def test_a_client_of_postgres_may_begin_with_tls(asked: Front, authority: RunAuthority) -> None:
    context = trusting(authority)
    context.set_alpn_protocols(["postgresql"])
    with context.wrap_socket(asked.connect(), server_hostname="127.0.0.1") as client:
        assert client.selected_alpn_protocol() == "postgresql"
        client.sendall(startup())
        assert receive(client, len(startup())) == startup()


def test_a_client_of_postgres_may_go_without(asked: Front) -> None:
    with asked.connect() as client:
        for byte in startup():
            client.sendall(bytes([byte]))
        assert receive(client, len(startup())) == startup()


def test_what_comes_unencrypted_after_the_question_is_refused(asked: Front) -> None:
    with asked.connect() as client:
        client.sendall(SSL_REQUEST + startup())
        assert ended(client)
    assert "sent data between its question for TLS and the answer" in asked.wait_for(asked.proxy.refusals)


def test_a_postgres_without_tls_is_named(loop: ProxyLoop, authority: RunAuthority) -> None:
    silent = Silent()
    front = Front(loop, silent.port, "postgres", upstream_tls=UpstreamTls(trusting(authority), None))
    with front.connect() as client:
        there = silent.listener.accept()[0]
        there.settimeout(10)
        assert receive(there, len(SSL_REQUEST)) == SSL_REQUEST
        there.sendall(b"N")
        assert ended(client) and ended(there)
    assert "answered no: set ssl=on there, or no TLS for it here" in front.wait_for(front.proxy.refusals)


OFFER = pg("R", pack(">i", 10) + b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")


def chosen(mechanism: bytes, header: bytes) -> bytes:
    first = header + b"n=,r=nonce"
    return pg("p", mechanism + b"\0" + pack(">i", len(first)) + first)


def offered() -> PostgresConversation:
    conversation = PostgresConversation(Everything(), encrypted=True)
    conversation.from_client(startup())
    assert b"PLUS" not in joined(conversation.from_server(OFFER))
    return conversation


@pytest.mark.parametrize(
    ("mechanism", "header"), [(b"SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,"), (b"SCRAM-SHA-256", b"y,,")]
)
def test_a_login_that_binds_the_channel_is_refused(mechanism: bytes, header: bytes) -> None:
    with pytest.raises(ChannelBound, match="channel_binding=disable"):
        offered().from_client(chosen(mechanism, header))


def test_another_login_passes_untouched() -> None:
    message = chosen(b"SCRAM-SHA-256", b"n,,")
    conversation = offered()
    assert joined(conversation.from_client(message)) == message
    assert conversation.rewrites
    conversation.from_server(pg("Z", b"I"))
    assert not conversation.rewrites
