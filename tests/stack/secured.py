"""A profile of `tests.foreign_cluster`: a Kafka with SASL_SSL and ACLs, and a Postgres with TLS, as a user would describe them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import sql

from onceproof.stack.external.profile import FILE

from ..foreign_cluster import HARNESS, JOB, ForeignKafka, ForeignPostgres

#: The role that the profile names: no superuser.
ROLE = ("onceproof", "role-secret")
#: Variables of the profile.
VARIABLES = {"TEST_HARNESS_PASSWORD": HARNESS[1], "TEST_JOB_PASSWORD": JOB[1], "TEST_PG_PASSWORD": ROLE[1]}
SECRETS = [*VARIABLES.values()]


def text(kafka: ForeignKafka, postgres: ForeignPostgres, changes: Mapping[str, str] | None = None) -> str:
    """The text of `FILE` with one stack, ``staging``. ``changes``: part of the text -> what replaces it."""
    bootstrap = ",".join(f"{host}:{port}" for host, port in kafka.bootstrap)
    found = f"""\
[stack.staging]
provider = "external"
chaos = "allowed"
connect_s = 8
[stack.staging.kafka]
bootstrap = "{bootstrap}"
security = "SASL_SSL"
sasl = {{mechanism = "PLAIN", username = "{HARNESS[0]}", password = "${{TEST_HARNESS_PASSWORD}}"}}
job = {{mechanism = "SCRAM-SHA-512", username = "{JOB[0]}", password = "${{TEST_JOB_PASSWORD}}"}}
tls = {{ca = "{kafka.authority.ca}"}}
[stack.staging.postgres]
uri = "postgresql://{ROLE[0]}@127.0.0.1:{postgres.port}/{postgres.database}"
password = "${{TEST_PG_PASSWORD}}"
tls = {{ca = "{postgres.authority.ca}"}}
"""
    for was, now in (changes or {}).items():
        assert was in found, was
        found = found.replace(was, now)
    return found


def write(
    folder: Path, kafka: ForeignKafka, postgres: ForeignPostgres, changes: Mapping[str, str] | None = None
) -> Path:
    """Write the profile into ``folder``; returns the file."""
    file = folder / FILE
    file.write_text(text(kafka, postgres, changes), encoding="utf-8")
    return file


def create_role(postgres: ForeignPostgres) -> None:
    """What docs/your-cluster.md asks Postgres' administrator for."""
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        name = sql.Identifier(ROLE[0])
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(name, sql.Literal(ROLE[1])))
        connection.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(postgres.database), name))


def left_on(kafka: ForeignKafka, postgres: ForeignPostgres) -> list[str]:
    """Everything on both services that onceproof may have created."""
    topics = [name for name in kafka.admin().list_topics(timeout=10).topics if not name.startswith("__")]
    query = """SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|public)'
        UNION SELECT 'publication ' || pubname FROM pg_publication
        UNION SELECT 'slot ' || slot_name FROM pg_replication_slots"""
    with psycopg.connect(postgres.conninfo()) as connection:
        return sorted([*topics, *(name for (name,) in connection.execute(query))])
