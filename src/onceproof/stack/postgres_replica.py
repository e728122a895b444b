"""A streaming replica of the run's Postgres: another server, which applies what the first one has committed, a moment later.

It is a hot standby, made by ``pg_basebackup`` from the same wheel. It receives the log through a proxy of its own, so that a fault
can stop it from following. It has a logical slot of its own (Postgres 16): after a failover, the run's commits are read from there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceproof.base.errors import ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import ReplicaKind
from onceproof.stack.api import Proxy
from onceproof.stack.postgres import ANY_USERS_FOLDER, EmbeddedPostgres, environment, server_options
from onceproof.stack.processes.owner import Owner, Service

#: Its name in ``pg_stat_replication`` and ``synchronous_standby_names``.
_NAME = "replica"
#: For a copy of a new cluster, which takes a second.
_COPY_S = 120.0
#: It starts in 0.2 s and applies a commit within milliseconds; the rest is for a busy machine.
_FOLLOW_S = 90.0
_PROMOTED_S = 60
#: How often the primary writes to its log what a logical slot of the replica waits for.
_SNAPSHOT_EVERY_S = 0.2


class PostgresReplica:
    """Implements `onceproof.stack.api.Replica`. Its servers are stopped by the owner."""

    def __init__(
        self,
        kind: ReplicaKind,
        primary: EmbeddedPostgres,
        owner: Owner,
        lease_port: Callable[[], int],
        make_proxy: Callable[[str, int], Proxy],
    ) -> None:
        """Start it, and return when it follows. Logs go next to the primary's. Raises `ServiceFailed` with the last log lines."""
        self._synchronous = kind == "synchronous"
        self._primary = primary
        self._owner = owner
        self._lease_port = lease_port
        self._make_proxy = make_proxy
        self._made = 0
        self._start()

    def _start(self) -> None:
        self._made += 1
        self._port = self._lease_port()
        number = "" if self._made == 1 else f"-{self._made}"
        primary, home = self._primary, self._primary.home
        data_dir = home.data_dir.with_name(f"{home.data_dir.name}-replica{number}")
        self.link = self._make_proxy(f"postgres-replication{number}", primary.port)
        logs = primary.service.log.parent
        host, _, through = self.link.listen.rpartition(":")
        settings: dict[str, Any] = conninfo_to_dict(
            primary.harness_conninfo, host=host, port=through, application_name=_NAME
        )
        password = str(settings.pop("password"))
        del settings["dbname"]
        copy = self._owner.start(
            "pg_basebackup",
            [
                *home.prefix,
                home.binaries / "pg_basebackup",
                f"--pgdata={data_dir}",
                f"--dbname={make_conninfo(**settings)}",
                "--write-recovery-conf",  # stores the password in the copy's own folder, which only its user can read
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
                "--no-password",
            ],
            log=logs / f"postgres-replica{number}-copy.log",
            env={**environment(), "PGPASSWORD": password},
            cwd=ANY_USERS_FOLDER,
            user=home.user,
        )
        if (code := copy.wait(_COPY_S)) != 0:
            why = f"did not end within {_COPY_S:.0f} s" if code is None else f"ended with code {code}"
            raise ServiceFailed(f"pg_basebackup {why}", log_tail=copy.log_tail())
        options = [*server_options(self._port), "-c", "hot_standby_feedback=on"]
        self.service: Service = self._owner.start(
            "postgres-replica",
            [*home.prefix, home.binaries / "postgres", "-D", data_dir, *options],
            log=logs / f"postgres-replica{number}.log",
            env=environment(),
            cwd=ANY_USERS_FOLDER,
            user=home.user,
            stop_signal=signal.SIGQUIT,  # as the primary's
        )
        self._promoted = False
        self._conninfo = make_conninfo(primary.harness_conninfo, port=self._port)
        self.client_uri = f"postgresql://{primary.user}@127.0.0.1:{self._port}/{primary.database}"
        self.follow()
        self._capture()
        if self._synchronous:
            self._ask(primary.harness_conninfo, f"ALTER SYSTEM SET synchronous_standby_names = {_NAME}")
            self._ask(primary.harness_conninfo, "SELECT pg_reload_conf()")
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            reason = "the replica of Postgres to be synchronous"
            wait_until(
                reason,
                lambda: self._ask(primary.harness_conninfo, synchronous),
                deadline_s=_FOLLOW_S,
                abandon=self.service.check_running,
                explain=self.service.log_tail,
            )

    def _capture(self) -> None:
        """Create its logical slot, which waits for a record that the primary writes when it is asked to."""
        created = threading.Event()

        def write_snapshots() -> None:
            with psycopg.connect(self._primary.harness_conninfo, autocommit=True) as primary:
                while not created.wait(_SNAPSHOT_EVERY_S):
                    primary.execute("SELECT pg_log_standby_snapshot()")

        writer = threading.Thread(target=write_snapshots, name="standby snapshots", daemon=True)
        writer.start()
        try:
            with psycopg.connect(self._conninfo, autocommit=True) as replica:
                replica.execute(f"SET statement_timeout = '{_FOLLOW_S:.0f}s'".encode())
                create = sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput')")
                replica.execute(create.format(self._primary.capture_name))
        finally:
            created.set()
            writer.join()

    def stop_following(self) -> None:
        """From now on nothing of the primary's log arrives here; the connection stays open."""
        self.link.add_toxic("timeout", "upstream", timeout=0)
        self.link.add_toxic("timeout", "downstream", timeout=0)

    def follow(self) -> None:
        """Undo `stop_following` and `fail_over`, and return when it has applied all that is committed until now. Idempotent."""
        if self._promoted:
            self._start()
            return
        self.link.heal()
        to = self._written()
        last_error = ""

        def has_applied() -> bool:
            nonlocal last_error
            try:
                return self._bytes_after(to) >= 0
            except psycopg.OperationalError as refused:
                last_error = str(refused)
                return False

        wait_until(
            "the replica of Postgres to follow",
            has_applied,
            deadline_s=_FOLLOW_S,
            abandon=self.service.check_running,
            explain=lambda: last_error,
        )

    def lag_bytes(self) -> int:
        """How much of the primary's log it has not applied."""
        return max(0, -self._bytes_after(self._written()))

    def waiting_commits(self) -> int:
        """How many commits wait at the primary until this replica has them."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return int(self._ask(self._primary.harness_conninfo, waiting))

    def fail_over(self) -> None:
        """Kill the primary, promote this server, and lead clients to it. What it had not received is lost."""
        self._primary.kill()
        if not self._ask(self._conninfo, f"SELECT pg_promote(true, {_PROMOTED_S})"):
            raise ServiceFailed(
                f"the replica of Postgres was not promoted within {_PROMOTED_S} s", log_tail=self.service.log_tail()
            )
        self._promoted = True
        self.link.heal()  # it leads nowhere any more
        self._primary.move_to(self.service, self._port)

    def _written(self) -> str:
        """Where the primary's log ends."""
        return str(self._ask(self._primary.harness_conninfo, "SELECT pg_current_wal_flush_lsn()"))

    def _bytes_after(self, position: str) -> int:
        """How far past this position of the log it is; negative: it is behind."""
        question = "SELECT pg_wal_lsn_diff(coalesce(pg_last_wal_replay_lsn(), '0/0'), %s)"
        return int(self._ask(self._conninfo, question, position))

    @staticmethod
    def _ask(conninfo: str, question: str, *values: str) -> Any:
        """The first value of the answer; None if it has none."""
        with psycopg.connect(conninfo, autocommit=True) as connection:
            answer = connection.execute(question.encode(), values or None)
            row = answer.fetchone() if answer.description is not None else None
            return row[0] if row is not None else None
