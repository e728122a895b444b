"""An external stack with logins, TLS and access rules: what is refused is reported with its cause, and nothing remains."""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclOperation
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import SecretStr
from typer.testing import CliRunner

from onceproof.base.errors import EnvironmentProblem, ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.cli.app import app
from onceproof.scenario.model import TopicSpec
from onceproof.stack.external import cleanup, journal, kafka, postgres
from onceproof.stack.external.journal import ObjectJournal
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.names import RunNames, identity
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, Sasl, StackProfile, Tls
from onceproof.stack.external.trust import upstream_context
from onceproof.stack.fetch import components
from onceproof.stack.kafka.requests import Connection, Login
from onceproof.stack.processes.owner import Owner
from onceproof.stores.kafka.partition_log import PartitionLog

from ..foreign_cluster import ADMIN, HARNESS, JOB, ForeignKafka, ForeignPostgres
from . import secured

pytestmark = [pytest.mark.real, pytest.mark.services]


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


@pytest.fixture(scope="module")
def cluster(owner: Owner, tmp_path_factory: pytest.TempPathFactory) -> ForeignKafka:
    return ForeignKafka(owner, tmp_path_factory.mktemp("kafka"), components.ensure())


@pytest.fixture(scope="module")
def server(owner: Owner, tmp_path_factory: pytest.TempPathFactory) -> ForeignPostgres:
    found = ForeignPostgres(owner, tmp_path_factory.mktemp("postgres"))
    secured.create_role(found)
    return found


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


def test_an_expired_certificate_of_postgres(cluster: ForeignKafka, tmp_path: Path) -> None:
    ca, port, end = expired_service(tmp_path, of_postgres=True)
    try:
        server = PostgresProfile(uri=f"postgresql://a@127.0.0.1:{port}/a", password=SecretStr("b"), tls=Tls(ca=ca))
        with pytest.raises(EnvironmentProblem, match="its certificate has expired") as error:
            postgres.check(profile(of_cluster(cluster), server))
        assert "renew" in str(error.value.hint)
    finally:
        end.set()


def test_a_missing_access_rule_is_reported_and_nothing_remains(cluster: ForeignKafka) -> None:
    as_job = profile(of_cluster(cluster, JOB))
    names = RunNames(identity(), "run")
    kept = ObjectJournal("run", "staging", *cleanup.addresses(as_job))
    broker = ExternalKafka(as_job, names, kept, kafka.check(as_job), {}, "", copies=kept.path.parent)
    before = set(cluster.admin().list_topics(timeout=10).topics)
    with pytest.raises(EnvironmentProblem, match="'job' may not create topic") as error:
        broker.check_topics({names.topic("orders"): TopicSpec()})
    assert "kafka-acls" in str(error.value.hint)
    with pytest.raises(EnvironmentProblem, match="'job' may not create topic"):
        broker.create_topic(names.topic("orders"), 1)
    assert kept.entry.objects == () and set(cluster.admin().list_topics(timeout=10).topics) == before


#: What is wrong in the profile: part of its text -> what replaces it; variables; what is said; the setting that it names.
WRONG: dict[str, tuple[dict[str, str], dict[str, str], str, str]] = {
    "password of Kafka": ({}, {"TEST_HARNESS_PASSWORD": "not-this-one"}, "refused the login", "kafka.sasl"),
    "user of Kafka": ({'username = "onceproof"': 'username = "nobody"'}, {}, "refused the login", "kafka.sasl"),
    "mechanism": ({'"PLAIN"': '"SCRAM-SHA-256"'}, {}, "refused the login", "kafka.sasl"),
    "authority of Kafka": ({"{kafka}": "{postgres}"}, {}, "its certificate is not trusted", "kafka.tls.ca"),
    "no rights": (
        {'username = "onceproof", password = "${TEST_HARNESS_PASSWORD}"': 'username = "job", password = "${TEST_JOB_PASSWORD}"'},
        {},
        "'job' may not create topic",
        "kafka-acls",
    ),
    "password of Postgres": ({}, {"TEST_PG_PASSWORD": "not-this-one"}, "the server refuses the password", "postgres.password"),
    "authority of Postgres": ({"{postgres}": "{kafka}"}, {}, "its certificate is not trusted", "postgres.tls.ca"),
    "database": ({"/postgres\"": "/none\""}, {}, "does not exist", "postgres.uri"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_run_that_cannot_begin_says_why_and_leaves_nothing(
    cluster: ForeignKafka, server: ForeignPostgres, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, variables, said, setting = WRONG[wrong]
    names = {"{kafka}": str(cluster.authority.ca), "{postgres}": str(server.authority.ca)}
    secured.write(tmp_path, cluster, server, {names.get(was, was): names.get(now, now) for was, now in changes.items()})
    output = refused(cluster, server, tmp_path, monkeypatch, variables)
    assert said in output and setting in output and "not-this-one" not in output


def refused(
    cluster: ForeignKafka,
    server: ForeignPostgres,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str] | None = None,
    *,
    remains: int = 0,
) -> str:
    """What `onceproof run` prints on one line: it ends in time with exit code 4, and leaves nothing on the services (``remains``: objects)."""
    monkeypatch.chdir(folder)
    for name, value in {**secured.VARIABLES, **(variables or {})}.items():
        monkeypatch.setenv(name, value)
    before = secured.left_on(cluster, server)
    began = time.monotonic()
    done = CliRunner().invoke(app, ["run", "foreign-jdbc-append", "--stack", "staging"])
    assert done.exit_code == 4 and "onceproof itself failed" not in done.output, done.output
    assert time.monotonic() - began < 30, "connect_s is 8"
    assert len({*secured.left_on(cluster, server)} - {*before}) == len([*journal.folder().glob("*")]) == remains
    return re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize("right", ["READ", "WRITE"])
def test_a_right_that_is_denied_is_named_and_nothing_remains(
    cluster: ForeignKafka, server: ForeignPostgres, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.write(tmp_path, cluster, server)
    with cluster.denied(HARNESS[0], "onceproof-", AclOperation[right]):
        output = refused(cluster, server, tmp_path, monkeypatch)
    assert f"the right {right} on topics onceproof-" in output
    assert f"its administrator can allow {right} on topics with the prefix onceproof-" in output


def test_without_the_right_to_delete_one_topic_remains_and_is_named(
    cluster: ForeignKafka, server: ForeignPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.write(tmp_path, cluster, server)
    before = secured.left_on(cluster, server)
    with cluster.denied(HARNESS[0], "onceproof-", AclOperation.DELETE):
        output = refused(cluster, server, tmp_path, monkeypatch, remains=1)
    (topic,) = {*secured.left_on(cluster, server)} - {*before}
    assert "the right DELETE on topics onceproof-" in output and topic in output.replace(" ", "")
    (file,) = journal.folder().glob("*.json")
    entry = journal.read(file)
    assert entry is not None and [made.name for made in entry.objects] == [topic]
    journal.keep(file, replace(entry, harness_start_ticks=1))  # as if this process were gone
    done = CliRunner().invoke(app, ["cleanup", "--stack", "staging"])
    assert done.exit_code == 0 and secured.left_on(cluster, server) == before, done.output


@contextmanager
def own_topic(cluster: ForeignKafka, run: str) -> Iterator[tuple[ExternalKafka, str]]:
    """A topic that the harness has created, and deletes again, with the rights of `RIGHTS` alone."""
    as_harness = profile(of_cluster(cluster, HARNESS)).model_copy(update={"connect_s": 2})
    names = RunNames(identity(), run)
    kept = ObjectJournal(run, "staging", *cleanup.addresses(as_harness))
    broker = ExternalKafka(as_harness, names, kept, kafka.check(as_harness), {}, "", copies=kept.path.parent)
    topic = names.topic("orders")
    broker.create_topic(topic, 1)
    try:
        yield broker, topic
    finally:
        assert [why for _, why in cleanup.remove(kept.entry.objects, as_harness)] == [None]
        kept.forget(kept.entry.objects[0])
        kept.remove()


def test_the_headers_of_a_log_are_fetched_with_the_harness_own_login(cluster: ForeignKafka) -> None:
    with own_topic(cluster, "headers") as (broker, topic):
        producer = Producer(broker.harness_client())
        for number in range(3):
            producer.produce(topic, str(number).encode())
        assert producer.flush(20) == 0
        with PartitionLog.open(broker.log_folders(topic)[0]) as log:
            found = log.batch_of(2)
            assert found is not None and found.last_offset == 2 and not found.transactional


_REFUSED = {
    "PLAIN": "refused the login: Authentication failed",
    "SCRAM-SHA-512": "refused the login: ",
    "SCRAM-SHA-256": "does not offer the login SCRAM-SHA-256",
}


def test_a_login_that_the_broker_refuses_is_named(cluster: ForeignKafka) -> None:
    of = of_cluster(cluster, HARNESS)
    ((host, port),) = of.addresses()[:1]
    for mechanism, why in _REFUSED.items():
        login = Login(mechanism, "harness", "not-the-password")
        with pytest.raises(ServiceFailed, match=why):
            Connection(host, port, timeout_s=10, tls=upstream_context(of.tls), login=login)


def test_the_limit_of_a_topic_can_be_changed(cluster: ForeignKafka) -> None:
    """What the fault reject does by too-large."""
    with own_topic(cluster, "limit") as (broker, topic):
        before = broker.alter_topic(topic, {"max.message.bytes": "1000"})
        producer = Producer(broker.harness_client())
        errors: list[KafkaError | None] = []
        producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: errors.append(error))
        producer.flush(20)
        assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
        broker.restore_topic(topic, before)

        def accepted() -> bool:
            producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: errors.append(error))
            producer.flush(20)
            return errors[-1] is None

        wait_until("the leader to have the old limit", accepted, deadline_s=20)


def test_a_quota_is_reported(cluster: ForeignKafka) -> None:
    with own_topic(cluster, "quota") as (broker, topic):
        throttled_after_a_while(cluster, broker, topic)


def test_a_limit_of_connections_is_reported(
    cluster: ForeignKafka, server: ForeignPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.write(tmp_path, cluster, server)
    server.execute(f"ALTER ROLE {secured.ROLE[0]} CONNECTION LIMIT 0")
    try:
        output = refused(cluster, server, tmp_path, monkeypatch)
    finally:
        server.execute(f"ALTER ROLE {secured.ROLE[0]} CONNECTION LIMIT -1")
    assert "it has no connection left for this user" in output and "CONNECTION LIMIT" in output


def test_the_job_is_limited_to_its_own_transactional_ids(cluster: ForeignKafka) -> None:
    """So the runs of `test_external_conformance.py` need no other right."""
    Producer({**cluster.settings(JOB), "transactional.id": "gives-up-once-0"}).init_transactions(30)
    with pytest.raises(KafkaException, match=r"(?i)authoriz"):
        Producer({**cluster.settings(JOB), "transactional.id": "another-0"}).init_transactions(30)


def throttled_after_a_while(cluster: ForeignKafka, broker: ExternalKafka, topic: str) -> None:
    broker.throttling.check()
    cluster.quota(HARNESS[0], producer_byte_rate=20_000)
    try:
        producer = Producer(broker.harness_client())
        with pytest.raises(EnvironmentProblem, match="has a quota for 'onceproof' and has delayed") as error:
            for _ in range(300):
                producer.produce(topic, b"x" * 10_000)
                producer.poll(0.1)
                broker.throttling.check()
        assert "kafka-configs" in str(error.value.hint) and error.value.exit_code == 4
        producer.purge()
    finally:
        cluster.quota(HARNESS[0])


def expired_service(folder: Path, *, of_postgres: bool = False) -> tuple[Path, int, threading.Event]:
    """A listener whose certificate, its own authority, has expired: its file, its port, and what ends it.

    ``of_postgres``: TLS begins after a request for it.
    """
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
                if of_postgres:
                    connection.recv(8)
                    connection.sendall(b"S")
                with context.wrap_socket(connection, server_side=True):
                    pass
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return ca, listener.getsockname()[1], end
