"""The Postgres of an external stack: the rights that a run needs, and the objects that it creates there.

A run has one schema, one publication and one logical replication slot, all of one name. The job's tables are in the schema,
because the search path of its connections is that schema alone.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.stack.api import Proxy, Replica
from onceproof.stack.external.journal import Created, ObjectJournal
from onceproof.stack.external.names import RunNames
from onceproof.stack.external.profile import PostgresProfile, StackProfile, Tls
from onceproof.stack.external.trust import upstream_context
from onceproof.stack.postgres import write_passfile
from onceproof.stack.toxiproxy.dropping import PACKETS_DROPPED, drop_packets

#: ``publish_via_partition_root`` and pgoutput without empty transactions.
_LEAST_VERSION = 15
#: Since this version a publication can have stored generated columns, and must have them where whole rows are logged.
_PUBLISHES_GENERATED = 180000
_HAS_VIRTUAL = """
    SELECT EXISTS (SELECT FROM pg_attribute
                   WHERE attrelid = to_regclass(%s) AND attgenerated = 'v' AND NOT attisdropped)"""
#: A slot starts once every transaction that is open on the server has ended.
_SLOT_S = 20
#: Nobody else uses the run's schema; only a session that the job left behind may hold a lock in it.
_LOCK_S = 3

_RIGHTS = """
    SELECT current_setting('server_version_num')::int / 10000 AS version, current_setting('wal_level') AS wal_level,
           has_database_privilege(current_database(), 'CREATE') AS may_create, current_user::text AS role,
           current_database()::text AS database"""

#: The sessions that the job left behind: those that hold a lock in the run's schema. A lock names its relation by a number
#: that is unique within one database only.
_LEFT_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM (
        SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_database d ON d.oid = l.database
        WHERE n.nspname = %s AND d.datname = current_database() AND l.pid <> pg_backend_pid()) held"""


def conninfo(profile: StackProfile, **more: Any) -> str:
    """libpq conninfo straight to the server, with the password. Never stored."""
    postgres = profile.postgres
    assert postgres is not None, "the profile has a Postgres"
    parts = {**postgres.parts(), **_tls_settings(postgres.tls), **more}
    return make_conninfo(
        **{**parts, "password": postgres.secret},
        application_name="onceproof",
        connect_timeout=max(2, round(profile.connect_s)),
    )


def _tls_settings(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {"sslmode": "disable"}
    files = {"sslrootcert": tls.ca or "system", "sslcert": tls.certificate, "sslkey": tls.key}
    mode = "verify-full" if tls.check_hostname else "verify-ca"
    return {"sslmode": mode, **{name: str(path) for name, path in files.items() if path is not None}}


def check(profile: StackProfile) -> None:
    """Raise `EnvironmentProblem` if the server cannot be reached, or the profile's user lacks a right. Creates nothing."""
    where = _where(profile)
    try:
        with psycopg.connect(conninfo(profile), autocommit=True) as connection:
            row = connection.execute(_RIGHTS).fetchone()
            assert row is not None, "the query has one row"
            version, wal_level, may_create, role, database = row
            if version < _LEAST_VERSION:
                raise EnvironmentProblem(
                    f"{where} is Postgres {version}", hint=f"onceproof needs Postgres {_LEAST_VERSION} or newer"
                )
            if wal_level != "logical":
                raise EnvironmentProblem(
                    f"{where} has wal_level = {wal_level}: commits cannot be read back from it",
                    hint="its administrator must set wal_level = logical and restart it",
                )
            if not may_create:
                raise EnvironmentProblem(
                    f"{where}: user {role!r} may not create a schema in database {database!r}",
                    hint=f"its administrator can run: GRANT CREATE ON DATABASE {database} TO {role}",
                )
            _check_slots(connection, where, role)
    except psycopg.OperationalError as refused:
        raise _unreachable(refused, profile) from None


def _check_slots(connection: psycopg.Connection[Any], where: str, role: str) -> None:
    """A temporary slot is gone with its connection. Making one is the only sure test: cloud services have rights of their own."""
    connection.execute(f"SET statement_timeout = '{_SLOT_S}s'".encode())
    try:
        connection.execute(
            "SELECT pg_create_logical_replication_slot('onceproof_check_' || pg_backend_pid(), 'pgoutput', true)"
        )
    except errors.InsufficientPrivilege:
        raise EnvironmentProblem(
            f"{where}: user {role!r} may not create a replication slot, by which commits are read back",
            hint=f"its administrator can run: ALTER ROLE {role} REPLICATION "
            "(Amazon RDS: GRANT rds_replication TO ...; Cloud SQL and Azure: ALTER ROLE ... REPLICATION)",
        ) from None
    except errors.ConfigurationLimitExceeded:
        raise EnvironmentProblem(
            f"{where}: all replication slots are in use",
            hint="drop a slot that nobody uses (SELECT * FROM pg_replication_slots), or raise max_replication_slots",
        ) from None
    except errors.QueryCanceled:
        raise _blocked(where) from None


def _blocked(where: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{where}: a replication slot could not start within {_SLOT_S} s, because an older transaction is still open",
        hint="end it: SELECT pid, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY 2",
    )


def _where(profile: StackProfile) -> str:
    assert profile.postgres is not None, "the profile has a Postgres"
    parts = profile.postgres.parts()
    return f"Postgres {parts['host']}:{parts.get('port', '5432')}/{parts['dbname']} of [stack.{profile.name}]"


#: The first message of a client that wants TLS: its length and the code of the request.
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)

#: Part of libpq's message -> cause and fix.
_CAUSES = (
    ("password authentication failed", "the server refuses the password", "see postgres.uri (the user) and postgres.password"),
    ("no password supplied", "the server wants a password", 'add postgres.password = "${NAME}"'),
    ("certificate has expired", "its certificate has expired", "renew it: see postgres.tls"),
    ("certificate verify failed", "its certificate is not trusted", "set postgres.tls.ca to its authority's certificate"),
    ("does not match host name", "its certificate is for another name", "see the host in postgres.uri"),
    ("does not support SSL", "it does not speak TLS", "remove postgres.tls"),
    ("no encryption", "it refuses connections without TLS, or this user or address", "add postgres.tls = {ca = ...}"),
    ("too many connections", "it has no connection left for this user", "raise the role's CONNECTION LIMIT or max_connections"),
    ("remaining connection slots", "it has no connection left for this user", "raise max_connections, or end idle sessions"),
    ("no pg_hba.conf entry", "it refuses this user, database or address", "see its pg_hba.conf"),
    ("does not exist", "the database or the user does not exist", "see postgres.uri"),
)  # fmt: skip


def _unreachable(refused: psycopg.OperationalError, profile: StackProfile) -> EnvironmentProblem:
    said = " ".join(str(refused).split())
    if "certificate verify failed" in said and (why := _certificate_problem(profile)):
        said = why
    for part, cause, fix in _CAUSES:
        if part in said:
            return EnvironmentProblem(f"{_where(profile)}: {cause}: {said}", hint=fix)
    return EnvironmentProblem(
        f"{_where(profile)} cannot be reached: {said}",
        hint="see the host and the port in postgres.uri; connect_s is how long a connection may take",
    )


def _certificate_problem(profile: StackProfile) -> str:
    """What is wrong with the server's certificate, which libpq does not say; empty if nothing is found."""
    assert profile.postgres is not None, "the profile has a Postgres"
    host, port = address(profile.postgres)
    try:
        with socket.create_connection((host, port), timeout=profile.connect_s) as connection:
            connection.sendall(_SSL_REQUEST)
            connection.recv(1)
            with upstream_context(profile.postgres.tls).wrap_socket(connection, server_hostname=host):
                return ""
    except ssl.SSLCertVerificationError as why:
        return f"certificate verify failed: {why.verify_message}"
    except OSError:
        return ""


class ExternalPostgres:
    """Implements `onceproof.stack.api.Postgres`. What it creates is in the journal, and removed at the end of the run."""

    def __init__(
        self,
        profile: StackProfile,
        names: RunNames,
        journal: ObjectJournal,
        proxy: Proxy,
        passfile: Path,
        ca: Path | None = None,
    ) -> None:
        assert profile.postgres is not None, "the profile has a Postgres"
        self._profile = profile
        self._journal = journal
        self.capture_name = names.identifier
        self.replica: Replica | None = None
        self.schema: str | None = names.identifier
        self.proxy = proxy
        self.passfile = passfile
        parts = profile.postgres.parts()
        self.user, self.database, self.password = parts["user"], parts["dbname"], profile.postgres.secret
        path = f"-csearch_path={names.identifier}"
        self.harness_conninfo = conninfo(profile, options=path)
        where = f"{proxy.listen}/{quote(self.database, safe='')}"
        tls, jdbc_tls = {"sslmode": "disable"}, {"sslmode": "disable"}
        if profile.postgres.tls is not None:
            # The proxy ends the client's TLS: a login that is bound to the server's own certificate cannot pass.
            tls = {"sslmode": "verify-full", "sslrootcert": str(ca)}
            tls, jdbc_tls = {**tls, "channel_binding": "disable"}, {**tls, "channelBinding": "disable"}
        options = urlencode({"options": path, **tls}, quote_via=quote)
        self.client_uri = f"postgresql://{quote(self.user, safe='')}@{where}?{options}"
        jdbc = {"user": self.user, "currentSchema": names.identifier, **jdbc_tls}
        self.jdbc_url = f"jdbc:postgresql://{where}?{urlencode(jdbc, quote_via=quote)}"
        write_passfile(passfile, proxy.listen.rpartition(":")[0], self.database, self.user, self.password)

    def create_schema(self) -> None:
        """Create the run's schema. Raises `EnvironmentProblem`."""
        made = Created("schema", self.capture_name)
        self._journal.will_create(made)
        try:
            with psycopg.connect(self.harness_conninfo, autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.capture_name)))
        except errors.DuplicateSchema:
            self._journal.forget(made)
            raise EnvironmentProblem(
                f"{_where(self._profile)} has a schema {self.capture_name} that this run did not create",
                hint="it may be left from a killed run: `onceproof cleanup --stack NAME`",
            ) from None
        except psycopg.Error as refused:
            raise EnvironmentProblem(f"{_where(self._profile)} refused to create a schema: {refused}") from None

    def capture(self, tables: Collection[str]) -> None:
        """Create the publication of these tables, then the slot. Raises `UsageError` for a table that does not exist."""
        with psycopg.connect(self.harness_conninfo, autocommit=True) as connection:
            for table in sorted(tables):
                row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone()
                if row != (True,):
                    raise UsageError(
                        f"output table {table!r} does not exist before the job starts, so its commits cannot be recorded",
                        hint="create it in pipeline.prepare.sql: a user without all rights can only record existing tables",
                    )
                # Otherwise a table without a primary key refuses UPDATE and DELETE once it is in a publication. Postgres
                # refuses each UPDATE with it if a column is virtual, because such a column is never published.
                if connection.execute(_HAS_VIRTUAL, [table]).fetchone() != (True,):
                    connection.execute(
                        sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(*table.split(".")))
                    )
            name = sql.Identifier(self.capture_name)
            listed = sql.SQL(", ").join(sql.Identifier(*table.split(".")) for table in sorted(tables))
            of = sql.SQL(" FOR TABLE {}").format(listed) if tables else sql.SQL("")
            self._journal.will_create(Created("publication", self.capture_name))
            stored = connection.info.server_version >= _PUBLISHES_GENERATED
            generated = sql.SQL(", publish_generated_columns = stored" if stored else "")
            connection.execute(
                sql.SQL("CREATE PUBLICATION {}{} WITH (publish_via_partition_root = true{})").format(
                    name, of, generated
                )
            )
            self._journal.will_create(Created("slot", self.capture_name))
            connection.execute(f"SET statement_timeout = '{_SLOT_S}s'".encode())
            try:
                # After the publication: pgoutput looks it up as of each change, and fails on a change that is older than it.
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.capture_name])
            except errors.QueryCanceled:
                raise _blocked(_where(self._profile)) from None

    def kill(self) -> None:
        raise _not_ours("killed")

    def stop(self) -> None:
        raise _not_ours("stopped")

    def restart(self) -> None:
        raise _not_ours("restarted")

    def is_running(self) -> bool:
        return True

    def isolate(self) -> str:
        drop_packets(self.proxy)
        return PACKETS_DROPPED

    def rejoin(self) -> None:
        self.proxy.heal()


def _not_ours(what: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"an external Postgres cannot be {what} by a fault", hint="use the embedded stack")


def removed(made: Created, profile: StackProfile) -> None:
    """Remove one object. Does nothing if it is gone. Raises `psycopg.Error`."""
    name = sql.Identifier(made.name)
    options = f"-clock_timeout={_LOCK_S}s -cstatement_timeout={2 * _LOCK_S}s -cclient_min_messages=error"
    with psycopg.connect(conninfo(profile, options=options), autocommit=True) as connection:
        if made.kind == "slot":
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [made.name]
            )
        elif made.kind == "publication":
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(name))
        elif made.kind == "role":
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [made.name]).fetchone() is not None:
                connection.execute(sql.SQL("DROP OWNED BY {}").format(name))  # what it was granted
                connection.execute(sql.SQL("DROP ROLE {}").format(name))
        else:
            connection.execute(_LEFT_SESSIONS, [made.name])
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


def address(postgres: PostgresProfile) -> tuple[str, int]:
    """Host and port of the server."""
    parts = postgres.parts()
    return parts["host"], int(parts.get("port", "5432"))
