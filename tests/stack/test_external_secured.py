"""An external stack with logins, TLS and access rules: what is refused is said, and a whole run works through TLS."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from onceproof.base.errors import EnvironmentProblem
from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario.model import TopicSpec
from onceproof.scenario_files.load import load_all
from onceproof.stack.external import cleanup, journal, kafka, postgres
from onceproof.stack.external.journal import ObjectJournal
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.names import RunNames, identity
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, Sasl, StackProfile, Tls
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

from ..foreign_cluster import ADMIN, JOB, ForeignKafka, ForeignPostgres

pytestmark = [pytest.mark.real, pytest.mark.full]

#: The naive append with a login and TLS. A crash repeats one batch, and the lost answer to a COMMIT repeats another.
SCENARIO = f"""
base: naive-append
pipeline:
  command: ["{{python}}", "{Path(__file__).parent.parent / "scenarios" / "jobs" / "encrypted_append.py"}"]
  args: {{security: "{{kafka.security}}", truststore: "{{kafka.truststore}}"}}
  secrets: [TEST_KAFKA_USER, TEST_KAFKA_PASSWORD]
chaos:
  - {{fault: crash, target: driver, at: {{batch: 2, point: after-sink-commit}}}}
  - {{fault: lost-ack, target: postgres, at: {{batch: 4, point: commit-unacknowledged}}}}
expect: {{verdict: violated, anomalies: [duplicate]}}
"""


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


@pytest.fixture(scope="module")
def cluster(owner: Owner, tmp_path_factory: pytest.TempPathFactory) -> ForeignKafka:
    return ForeignKafka(owner, tmp_path_factory.mktemp("kafka"), components.ensure())


@pytest.fixture(scope="module")
def server(owner: Owner, tmp_path_factory: pytest.TempPathFactory) -> ForeignPostgres:
    return ForeignPostgres(owner, tmp_path_factory.mktemp("postgres"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


def profile(kafka: KafkaProfile, server: PostgresProfile | None = None) -> StackProfile:
    return StackProfile(name="staging", provider="external", chaos="allowed", kafka=kafka, postgres=server, connect_s=8)


def of_cluster(
    cluster: ForeignKafka, user: tuple[str, str] = ADMIN, *, ca: Path | None = None, password: str | None = None
) -> KafkaProfile:
    return KafkaProfile(
        bootstrap=",".join(f"{host}:{port}" for host, port in cluster.bootstrap),
        security="SASL_SSL",
        sasl=Sasl(mechanism="PLAIN", username=user[0], password=SecretStr(password or user[1])),
        tls=Tls(ca=ca or cluster.authority.ca),
    )


def of_server(server: ForeignPostgres, *, ca: Path | None = None) -> PostgresProfile:
    uri = f"postgresql://{server.user}@127.0.0.1:{server.port}/{server.database}"
    return PostgresProfile(uri=uri, password=SecretStr(server.password), tls=Tls(ca=ca or server.authority.ca))


def test_a_wrong_password_of_kafka(cluster: ForeignKafka) -> None:
    with pytest.raises(EnvironmentProblem, match="refused the login") as error:
        kafka.check(profile(of_cluster(cluster, password="not-this-one")))
    assert "kafka.sasl" in str(error.value.hint) and "not-this-one" not in str(error.value)


def test_a_certificate_of_another_authority(cluster: ForeignKafka, server: ForeignPostgres) -> None:
    with pytest.raises(EnvironmentProblem, match="its certificate is not trusted") as error:
        kafka.check(profile(of_cluster(cluster, ca=server.authority.ca)))
    assert "kafka.tls.ca" in str(error.value.hint)
    with pytest.raises(EnvironmentProblem, match="its certificate is not trusted") as error:
        postgres.check(profile(of_cluster(cluster), of_server(server, ca=cluster.authority.ca)))
    assert "postgres.tls.ca" in str(error.value.hint)


def test_a_listener_that_requires_tls(cluster: ForeignKafka, server: ForeignPostgres) -> None:
    plain = KafkaProfile(bootstrap=of_cluster(cluster).bootstrap)
    with pytest.raises(EnvironmentProblem, match=r"cannot be reached|refused") as error:
        kafka.check(profile(plain))
    assert "kafka." in str(error.value.hint)
    with pytest.raises(EnvironmentProblem, match="it refuses connections without TLS") as error:
        postgres.check(profile(plain, of_server(server).model_copy(update={"tls": None})))
    assert "postgres.tls" in str(error.value.hint)


def test_an_expired_certificate(tmp_path: Path) -> None:
    ca, port, end = expired_service(tmp_path)
    try:
        with pytest.raises(EnvironmentProblem, match="its certificate has expired") as error:
            kafka.check(profile(KafkaProfile(bootstrap=f"127.0.0.1:{port}", security="SSL", tls=Tls(ca=ca))))
        assert "renew" in str(error.value.hint)
    finally:
        end.set()


def test_a_missing_access_rule_is_reported_and_nothing_remains(cluster: ForeignKafka) -> None:
    as_job = profile(of_cluster(cluster, JOB))
    names = RunNames(identity(), "run")
    kept = ObjectJournal("run", "staging", *cleanup.addresses(as_job))
    broker = ExternalKafka(as_job, names, kept, kafka.check(as_job), {}, "")
    before = set(cluster.admin().list_topics(timeout=10).topics)
    with pytest.raises(EnvironmentProblem, match="'job' may not create topic") as error:
        broker.check_topics({names.topic("orders"): TopicSpec()})
    assert "kafka-acls" in str(error.value.hint)
    with pytest.raises(EnvironmentProblem, match="'job' may not create topic"):
        broker.create_topic(names.topic("orders"), 1)
    assert kept.entry.objects == () and set(cluster.admin().list_topics(timeout=10).topics) == before


@pytest.mark.timeout(300)
def test_a_run_through_tls(
    cluster: ForeignKafka, server: ForeignPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KAFKA_USER", ADMIN[0])
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", ADMIN[1])
    before = set(cluster.admin().list_topics(timeout=10).topics)
    scenario = tmp_path / "encrypted-append.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    (loaded,) = load_all([str(scenario)], profile(of_cluster(cluster), of_server(server)))
    done = run(loaded, runs_dir=tmp_path / "runs")
    assert done.verdict.outcome is Outcome.VIOLATED, done.verdict.reasons
    assert [finding.anomaly for finding in done.verdict.findings] == ["duplicate"]
    assert set(cluster.admin().list_topics(timeout=10).topics) - before <= {"__consumer_offsets"}
    assert [*journal.folder().iterdir()] == []
    for secret in (ADMIN[1], server.password):
        assert [path for path in done.run_dir.rglob("*.json*") if secret in path.read_text(encoding="utf-8")] == []


def expired_service(folder: Path) -> tuple[Path, int, threading.Event]:
    """A listener whose certificate, its own authority, has expired: its file, its port, and what ends it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "expired")])
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(long_ago)
        .not_valid_after(long_ago + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca, both = folder / "expired.pem", folder / "both.pem"
    ca.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both.write_bytes(secret + ca.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.2)
    end = threading.Event()

    def serve() -> None:
        while not end.is_set():
            with suppress(OSError):  # the client ends the handshake; a time-out is one as well
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True):
                    pass
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return ca, listener.getsockname()[1], end
