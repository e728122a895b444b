"""The ways to make a service really refuse: how each begins and ends, and by which answers it is recognised.

No answer is faked. The service is unreachable, or its administrator has configured it to refuse; the protocol proxy only
listens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString, Protocol

import psycopg
from psycopg import sql

from onceproof.base.errors import EnvironmentProblem
from onceproof.faults.context import FaultContext
from onceproof.instruments.proxy.frames import Reply
from onceproof.stack.api import Postgres

_ADMIN_S = 10
#: While the job is stopped between two batches, only another query of the job may hold the table, for a moment.
_LOCK_S = 10
_WAITING = """
    SELECT pid, extract(epoch FROM clock_timestamp() - query_start)::int FROM pg_stat_activity
    WHERE %s = ANY (pg_blocking_pids(pid)) AND usename = %s ORDER BY query_start LIMIT 1"""
NEEDS_TIMEOUT = (
    "Postgres refuses a waiting session only by its own lock_timeout or statement_timeout, and has none by default: "
    'set one well below 60 s, for example pipeline: env: PGOPTIONS: "-c lock_timeout=2s" (a client of libpq), or '
    "?options=-c%20lock_timeout=2s in a JDBC URL"
)


class Refusal(Protocol):
    """One way to refuse. ``begin`` and ``end`` may be called while the job is stopped. ``end`` and ``repair`` are idempotent,
    and may be called without a ``begin``."""

    def begin(self, context: FaultContext) -> str:
        """Make the service refuse. Returns what was done, as a sentence of evidence."""

    def end(self, context: FaultContext) -> None:
        """Make the service accept requests again."""

    def repair(self, context: FaultContext) -> None:
        """Called after `end`: restore what takes longer, such as a killed broker. Does nothing by default."""
        return

    def matches(self, reply: Reply) -> bool:
        """Whether this reply is a refusal of this kind."""

    def why_not_refused(self, context: FaultContext) -> str:
        """Why no request has been refused so far, and what to set; called before `end`. Empty if the reason is not known."""
        return ""


class Unavailable(Refusal):
    """The server is healthy but unreachable: new connections are reset, and existing ones when they are next used."""

    def begin(self, context: FaultContext) -> str:
        postgres_of(context).proxy.reject_clients()
        return "Postgres was made unreachable: new connections were reset at once, existing ones on their next use"

    def end(self, context: FaultContext) -> None:
        postgres_of(context).proxy.heal()

    def matches(self, reply: Reply) -> bool:
        # Class 57P: the server is shutting down, has crashed, or does not accept connections yet.
        # A connection that its client only checked, or closed, was not refused anything.
        return (reply.what == "connection" and reply.code != "idle") or reply.code.startswith("57P")


class Stopped(Unavailable):
    """The server is shut down, and started again at the end."""

    def begin(self, context: FaultContext) -> str:
        postgres = postgres_of(context)
        postgres.stop()
        # Otherwise the proxies would accept a client's connection and then drop it, which a stopped server never does.
        postgres.proxy.reject_clients()
        return "Postgres was shut down (fast shutdown, as by an administrator)"

    def end(self, context: FaultContext) -> None:
        postgres_of(context).restart()
        super().end(context)


class Locked(Refusal):
    """Another session holds the table in the strongest lock mode, as ALTER TABLE or VACUUM FULL would."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._holder: psycopg.Connection[tuple[object, ...]] | None = None

    def begin(self, context: FaultContext) -> str:
        self._holder = administrator(postgres_of(context), autocommit=False)
        self._holder.execute(f"SET LOCAL lock_timeout = '{_LOCK_S}s'".encode())
        self._holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(identifier(self._table)))
        return f"another session held table {self._table} in ACCESS EXCLUSIVE mode"

    def end(self, context: FaultContext) -> None:
        if self._holder is not None:
            self._holder.close()

    def matches(self, reply: Reply) -> bool:
        # lock_not_available, after lock_timeout; query_canceled, after statement_timeout.
        return reply.what == "error" and reply.code in ("55P03", "57014")

    def why_not_refused(self, context: FaultContext) -> str:
        if self._holder is None or self._holder.closed:
            return ""
        with administrator(postgres_of(context)) as connection:
            asked = (self._holder.info.backend_pid, postgres_of(context).user)
            row = connection.execute(_WAITING, asked).fetchone()
        if row is None:
            return f"no session of the job is waiting for table {self._table}"
        return f"the job's session {row[0]} has been waiting for table {self._table} for {row[1]} s; {NEEDS_TIMEOUT}"


class Revoked(Refusal):
    """The job's role loses the right to INSERT into the table."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._revoked = False

    def begin(self, context: FaultContext) -> str:
        if not self._may_insert(context):
            raise EnvironmentProblem(f"the job's role has no right to INSERT into {self._table} that could be revoked")
        self._change(context, "REVOKE INSERT ON {} FROM {}")
        self._revoked = True
        if self._may_insert(context):
            raise EnvironmentProblem(
                f"after the REVOKE the job's role may still INSERT into {self._table}, through another role"
            )
        return f"the right to INSERT into {self._table} was revoked"

    def end(self, context: FaultContext) -> None:
        if self._revoked:
            self._change(context, "GRANT INSERT ON {} TO {}")

    def matches(self, reply: Reply) -> bool:
        return reply.what == "error" and reply.code == "42501" and self._table.rpartition(".")[2] in reply.message

    def _may_insert(self, context: FaultContext) -> bool:
        postgres = postgres_of(context)
        question = "SELECT has_table_privilege(%s, %s, 'INSERT')"
        with administrator(postgres) as connection:
            row = connection.execute(question, (postgres.user, identifier(self._table).as_string())).fetchone()
        return row is not None and row[0] is True

    def _change(self, context: FaultContext, statement: LiteralString) -> None:
        postgres = postgres_of(context)
        with administrator(postgres) as connection:
            connection.execute(sql.SQL(statement).format(identifier(self._table), sql.Identifier(postgres.user)))


class TopicSetting(Refusal):
    """A topic gets a configuration with which its brokers refuse what is produced to it."""

    def __init__(self, topic: str, settings: Mapping[str, str], codes: tuple[int, ...]) -> None:
        self._topic = topic
        self._settings = settings
        self._codes = tuple(map(str, codes))
        self._before: Mapping[str, str | None] | None = None

    def begin(self, context: FaultContext) -> str:
        self._before = context.stack.kafka.alter_topic(self._topic, self._settings)
        settings = ", ".join(f"{name}={value}" for name, value in self._settings.items())
        return f"topic {self._topic} was set to {settings}"

    def end(self, context: FaultContext) -> None:
        if self._before is not None:
            context.stack.kafka.restore_topic(self._topic, self._before)

    def matches(self, reply: Reply) -> bool:
        of_topic = reply.where.rpartition("/")[0] == self._topic
        return reply.what == "Produce" and of_topic and reply.code in self._codes


class TooFewReplicas(TopicSetting):
    """The topic requires three replicas in sync, and the broker of one follower is killed.

    KIP-966 caps the setting at the number of replicas.
    """

    def __init__(self, topic: str) -> None:
        # NOT_ENOUGH_REPLICAS; NOT_ENOUGH_REPLICAS_AFTER_APPEND, when the ISR shrank while the record waited.
        super().__init__(topic, {"min.insync.replicas": "3"}, (19, 20))
        self._killed: int | None = None

    def begin(self, context: FaultContext) -> str:
        kafka = context.stack.kafka
        leader = kafka.leader(self._topic, 0).broker
        description = super().begin(context)
        self._killed = next(broker for broker in kafka.brokers if broker != leader)
        kafka.kill_broker(self._killed)
        context.timeline.emit("broker.away", broker=self._killed, how="killed")
        return f"{description}, and broker {self._killed}, which holds a replica, was killed"

    def repair(self, context: FaultContext) -> None:
        kafka = context.stack.kafka
        if self._killed is not None and not kafka.is_running(self._killed):
            kafka.restart_broker(self._killed)
            context.timeline.emit("broker.back", broker=self._killed)


def postgres_of(context: FaultContext) -> Postgres:
    assert context.stack.postgres is not None, "validated: the fault needs Postgres"
    return context.stack.postgres


def administrator(postgres: Postgres, *, autocommit: bool = True) -> psycopg.Connection[tuple[object, ...]]:
    """A superuser's connection that bypasses every proxy. Raises `EnvironmentProblem`."""
    try:
        return psycopg.connect(postgres.harness_conninfo, connect_timeout=_ADMIN_S, autocommit=autocommit)
    except psycopg.OperationalError as refused:
        raise EnvironmentProblem(f"cannot connect to Postgres as its administrator: {refused}") from refused


def identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))
