"""Kafka and Postgres that act as an external stack: no proxy of ours, and a user with few rights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile
from onceproof.stack.fetch import components
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.node import KafkaProgram
from onceproof.stack.postgres import EmbeddedPostgres
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease


@dataclass
class Direct:
    """No proxy: clients connect to the listener itself. Implements `onceproof.stack.api.Proxy`."""

    name: str
    listen: str
    upstream: str

    def cut(self) -> None: ...

    def reject_clients(self) -> None: ...

    def add_toxic(self, kind: str, stream: str, **attributes: int) -> None: ...

    def heal(self) -> None: ...


def direct(name: str, upstream_port: int, *, listen: str | None = None) -> Direct:
    address = f"127.0.0.1:{upstream_port}"
    return Direct(name, address, address)


@dataclass
class Foreign:
    """The services of an external stack, and what their administrator can do."""

    profile: StackProfile
    admin_conninfo: str

    def topics(self) -> set[str]:
        found = AdminClient({"bootstrap.servers": self.profile.kafka.bootstrap}).list_topics(timeout=10).topics
        return {name for name in found if not name.startswith("__")}

    def objects(self) -> list[tuple[str, str]]:
        query = """SELECT 'schema', nspname FROM pg_namespace WHERE nspname LIKE 'onceproof%%'
            UNION SELECT 'publication', pubname FROM pg_publication UNION SELECT 'slot', slot_name FROM pg_replication_slots"""
        with psycopg.connect(self.admin_conninfo) as connection:
            return sorted(connection.execute(query).fetchall())

    def grant(self, statement: str) -> None:
        with psycopg.connect(self.admin_conninfo, autocommit=True) as connection:
            connection.execute(statement.encode())


def started(owner: Owner, folder: Path) -> Foreign:
    """One broker and a Postgres, without TLS; they end with their owner. Logs go to ``folder``."""
    fetched = components.ensure()
    program = KafkaProgram(fetched.java, fetched.kafka_jars, fetched.kafka_archive)
    cluster = EmbeddedKafka.start(1, owner=owner, log_folder=folder, program=program, make_proxy=direct)
    (port,) = lease(owner, 1)
    server = EmbeddedPostgres.start(owner, owner.scratch / "postgres", folder, port, direct("postgres", port))
    profile = StackProfile(
        name="staging",
        provider="external",
        chaos="allowed",
        kafka=KafkaProfile(bootstrap=cluster.client_bootstrap),
        postgres=PostgresProfile(uri=server.client_uri, password=SecretStr(server.password)),
        connect_s=5,
    )
    found = Foreign(profile, server.harness_conninfo)
    found.grant("ALTER ROLE pipeline REPLICATION")
    return found
