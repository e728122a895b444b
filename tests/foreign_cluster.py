"""Services of an external stack: Kafka with SASL_SSL and ACLs, Postgres with TLS only. No proxy of ours, own authority.

Only Java, the jars and the supervision of processes come from the stack.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from psycopg import conninfo

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.authority import RunAuthority
from onceproof.instruments.proxy.tls import UpstreamTls
from onceproof.stack.external.client_files import escaped, quoted
from onceproof.stack.fetch.components import Components
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.node import KafkaProgram
from onceproof.stack.kafka.settings import FAST_FAILOVER, HOST, LOGGING, jvm_argv
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import lease

Mechanism = Literal["PLAIN", "SCRAM-SHA-512"]

ADMIN, HARNESS = ("admin", "admin-secret"), ("onceproof", "harness-secret")
JOB = ("job", 'job "s=e#c\\ret')  # every character that the file of a Java client must escape
PREFIX = "t-"
"""The job may use topics, groups and transactional ids that begin with this."""

_Right = tuple[ResourceType, str, AclOperation]
_OP = AclOperation
_TOPIC, _GROUP, _ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID  # type: ignore[attr-defined]
#: What docs/your-cluster.md asks for, as prefixes of names; and what clients of the proxy do in `tests/instruments/proxy`.
RIGHTS: dict[str, list[_Right]] = {
    HARNESS[0]: [
        *((_TOPIC, "onceproof-", each) for each in (_OP.CREATE, _OP.READ, _OP.WRITE, _OP.DELETE, _OP.ALTER_CONFIGS)),
        (_GROUP, "onceproof-", AclOperation.READ),
        (_ID, "onceproof-", AclOperation.WRITE),  # for the fault aborted-input only
    ],
    JOB[0]: [
        *((kind, PREFIX, AclOperation.ALL) for kind in (_TOPIC, _GROUP, _ID)),
        *((_TOPIC, "onceproof-", each) for each in (AclOperation.READ, AclOperation.WRITE)),
        *((_ID, name, AclOperation.WRITE) for name in ("flights-to-", "gives-up-once-", "departures")),
        (_GROUP, "onceproof-", AclOperation.READ),  # for the Kafka sink of `onceproof.sinks` only
    ],
}


class ForeignKafka:
    """Three nodes, each broker and controller. `ADMIN` may do anything, `HARNESS` and `JOB` what `RIGHTS` lists."""

    def __init__(self, owner: Owner, folder: Path, components: Components) -> None:
        self.authority = RunAuthority.create(folder / "authority")
        self._owner = owner
        self._folder = folder
        self._program = KafkaProgram(components.java, components.kafka_jars, components.kafka_archive)
        ports = lease(owner, 9)
        self._client, self._internal, self._controller = (
            dict(zip((1, 2, 3), ports[n::3], strict=True)) for n in range(3)
        )
        self.nodes: dict[int, Service] = {}
        self.bootstrap = [(HOST, port) for port in self._client.values()]
        keystore = folder / "keystore.pem"
        keystore.touch(0o600)
        keystore.write_bytes(self.authority.key.read_bytes() + self.authority.certificate.read_bytes())
        (folder / "log4j2.properties").write_text(LOGGING)
        for node in self._client:
            self._properties(node).write_text(self._settings(node, keystore))
            main = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", self._properties(node))
            assert self._java(f"format-{node}", *main).wait(60) == 0
        for node in self._client:
            self.start(node)
        self.wait_for_brokers()
        self._admit()

    @property
    def upstream(self) -> UpstreamTls:
        return UpstreamTls(ssl.create_default_context(cafile=str(self.authority.ca)), None)

    def settings(
        self,
        user: tuple[str, str] = JOB,
        mechanism: Mechanism = "PLAIN",
        *,
        ca: Path | None = None,
        at: str | None = None,
    ) -> dict[str, Any]:
        """librdkafka's settings for a client; of the cluster itself unless ``at`` and ``ca`` say otherwise."""
        return {
            **client_config(at or ",".join(f"{host}:{port}" for host, port in self.bootstrap)),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user[0],
            "sasl.password": user[1],
            "ssl.ca.location": str(ca or self.authority.ca),
        }

    def start(self, node: int) -> None:
        self.nodes[node] = self._java(f"foreign-{node}", "kafka.Kafka", self._properties(node))

    def kill(self, node: int) -> None:
        self.nodes[node].kill()

    def admin(self) -> AdminClient:
        return AdminClient(self.settings(ADMIN))

    def create_topic(self, name: str, partitions: int = 2) -> None:
        admin = self.admin()  # the call is abandoned when its client is
        admin.create_topics([NewTopic(name, partitions, 3)])[name].result(30)

    @contextmanager
    def denied(self, user: str, prefix: str, operation: AclOperation) -> Iterator[None]:
        """In the block ``user`` may not do this to topics with the prefix. A denial is stronger than a permission."""
        acl = AclBinding(
            _TOPIC, prefix, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.DENY
        )
        admin = self.admin()
        admin.create_acls([acl])[acl].result(30)
        try:
            yield
        finally:
            found = AclBindingFilter(
                _TOPIC, prefix, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.DENY
            )
            admin.delete_acls([found])[found].result(30)

    def quota(self, user: str, **rates: int) -> None:
        """Set quotas of a user (``producer_byte_rate``, ...); none: remove that of producers."""
        changes = [f"{name}={rate}" for name, rate in rates.items()]
        what = ("--add-config", ",".join(changes)) if changes else ("--delete-config", "producer_byte_rate")
        where = f"{HOST}:{next(iter(self._internal.values()))}"
        command = ("kafka.admin.ConfigCommand", "--bootstrap-server", where, "--alter", "--entity-type", "users")
        assert self._java(f"quota-{len(changes)}", *command, "--entity-name", user, *what).wait(60) == 0

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads; -1 for none."""
        found = self.admin().list_topics(topic, timeout=10)
        leader: int = found.topics[topic].partitions[partition].leader
        return leader

    def _properties(self, node: int) -> Path:
        return self._folder / f"{node}.properties"

    def _java(self, name: str, *main: str | Path) -> Service:
        options = [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"]
        if self._program.archive is not None:
            options.append(f"-XX:SharedArchiveFile={self._program.archive}")
        argv = jvm_argv(self._program.java.path, self._program.jars, options, main)
        log = self._folder / f"{name}.log"
        return self._owner.start(name, argv, log=log, cwd=self._folder, stop_signal=signal.SIGKILL)

    def _settings(self, node: int, keystore: Path) -> str:
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        users = escaped(" ".join(f"user_{name}={quoted(password)}" for name, password in (ADMIN, HARNESS, JOB)))
        own = "listener.name.foreign"
        settings = {
            "process.roles": "broker,controller",
            "node.id": node,
            "log.dirs": self._folder / f"data-{node}",
            "controller.quorum.voters": ",".join(f"{n}@{HOST}:{port}" for n, port in self._controller.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "listeners": f"FOREIGN://{HOST}:{self._client[node]},INTERNAL://{HOST}:{self._internal[node]},"
            f"CONTROLLER://{HOST}:{self._controller[node]}",
            "advertised.listeners": f"FOREIGN://{HOST}:{self._client[node]},INTERNAL://{HOST}:{self._internal[node]},"
            f"CONTROLLER://{HOST}:{self._controller[node]}",
            "listener.security.protocol.map": "FOREIGN:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"{own}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{own}.plain.sasl.jaas.config": f"{plain} required {users};",
            f"{own}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            f"{own}.ssl.keystore.type": "PEM",
            f"{own}.ssl.keystore.location": keystore,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN[0]};User:ANONYMOUS",  # ANONYMOUS: the brokers, on the listeners without SASL
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.num.partitions": 3,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4194304,  # the default takes half of the node's heap
            **FAST_FAILOVER,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def wait_for_brokers(self) -> None:
        def all_there() -> bool:
            for node in self.nodes.values():
                node.check_running()
            try:
                return len(self.admin().list_topics(timeout=2).brokers) == 3
            except KafkaException:
                return False

        wait_until("three brokers", all_there, deadline_s=90)

    def _admit(self) -> None:
        admin = self.admin()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        secret = UserScramCredentialUpsertion(JOB[0], scram, JOB[1].encode())
        prefixed, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        acls = [
            AclBinding(kind, name, prefixed, f"User:{user}", "*", operation, allow)
            for user, rights in RIGHTS.items()
            for kind, name, operation in rights
        ]
        for done in (*admin.alter_user_scram_credentials([secret]).values(), *admin.create_acls(acls).values()):
            done.result(30)


class ForeignPostgres:
    """A server with ``ssl=on`` that only accepts TLS. Postgres of the machine: the embedded one is built without TLS."""

    user, password, database = "postgres", "postgres-secret", "postgres"

    def __init__(self, owner: Owner, folder: Path) -> None:
        found = shutil.which("postgres")
        if found is None:
            if "ONCEPROOF_CONFORMANCE" not in os.environ:  # the gate runs everywhere, `tox -e external` where it can
                pytest.skip("no Postgres with TLS on this machine: install the package postgresql")
            raise EnvironmentProblem("no Postgres with TLS on this machine", hint="install the package postgresql")
        binaries = Path(found).resolve().parent
        self.authority = RunAuthority.create(folder / "authority")
        (self.port,) = lease(owner, 1)
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        home = owner.temporary_folder()
        home.chmod(0o755)
        data = home / "server" / "data"
        data.parent.mkdir(0o700)
        if user is not None:
            os.chown(data.parent, user.pw_uid, user.pw_gid)
        secret = data.parent / "password"
        secret.write_text(self.password)
        for name, source in (("server.key", self.authority.key), ("server.crt", self.authority.certificate)):
            shutil.copy(source, data.parent / name)
            (data.parent / name).chmod(0o600)
        rules = data.parent / "pg_hba.conf"
        rules.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        for path in data.parent.iterdir():
            if user is not None:
                os.chown(path, user.pw_uid, user.pw_gid)
        subprocess.run(
            [
                binaries / "initdb",
                "-D",
                data,
                "-U",
                self.user,
                f"--pwfile={secret}",
                "-A",
                "scram-sha-256",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            user=user and user.pw_name,
            cwd="/",
        )
        options = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": data.parent / "server.crt",
            "ssl_key_file": data.parent / "server.key",
            "hba_file": rules,
            "wal_level": "logical",
        }
        argv = [binaries / "postgres", "-D", data, *(w for k, v in options.items() for w in ("-c", f"{k}={v}"))]
        self.service = owner.start(
            "foreign-postgres",
            argv,
            log=folder / "postgres.log",
            cwd=Path("/"),
            user=user and user.pw_name,
            stop_signal=signal.SIGQUIT,
        )
        wait_until("Postgres to accept connections", self._answers, deadline_s=60)

    @property
    def upstream(self) -> UpstreamTls:
        return UpstreamTls(ssl.create_default_context(cafile=str(self.authority.ca)), None)

    def conninfo(self, *, port: int | None = None, ca: Path | None = None, **more: str) -> str:
        """A connection string that checks the certificate; of the server itself unless ``port`` and ``ca`` say otherwise."""
        settings = {
            "host": HOST,
            "port": port or self.port,
            "user": self.user,
            "password": self.password,
            "dbname": self.database,
            "sslmode": "verify-full",
            "sslrootcert": str(ca or self.authority.ca),
            "connect_timeout": 10,
        }
        return conninfo.make_conninfo(**{**settings, **more})

    def execute(self, statement: str) -> None:
        """Execute it as the administrator."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def version(self) -> str:
        """``15.18``"""
        with psycopg.connect(self.conninfo()) as connection:
            return str(connection.info.parameter_status("server_version")).split()[0]

    def _answers(self) -> bool:
        self.service.check_running()
        try:
            psycopg.connect(self.conninfo()).close()
        except psycopg.OperationalError:
            return False
        return True
