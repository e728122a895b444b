"""A streaming replica of the run's Postgres: another server, which applies what the first one has committed, a moment later.

It is a hot standby, made by ``pg_basebackup`` from the same wheel, and replicates asynchronously, as Postgres does by default. It
receives the log through a proxy of its own, so that a fault can stop it from following.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceproof.base.errors import ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.stack.api import Proxy
from onceproof.stack.postgres import ANY_USERS_FOLDER, EmbeddedPostgres, environment, server_options
from onceproof.stack.processes.owner import Owner, Service

#: For a copy of a new cluster, which takes a second.
_COPY_S = 120.0
#: It applies a commit within milliseconds; the rest is for a busy machine.
_FOLLOW_S = 30.0
_START_S = 60.0


class PostgresReplica:
    """Implements `onceproof.stack.api.Replica`. Created by `start`, stopped by its owner."""

    def __init__(self, service: Service, primary: EmbeddedPostgres, port: int, link: Proxy) -> None:
        self.service = service
        self.link = link
        self.client_uri = f"postgresql://{primary.user}@127.0.0.1:{port}/{primary.database}"
        self._primary = primary
        self._conninfo = make_conninfo(primary.harness_conninfo, port=port)

    @classmethod
    def start(cls, owner: Owner, primary: EmbeddedPostgres, log_dir: Path, port: int, link: Proxy) -> Self:
        """Copy the primary through ``link``, start the copy on 127.0.0.1:``port``, and return when it follows.

        Raises `ServiceFailed` with the last log lines.
        """
        home = primary.home
        data_dir = home.data_dir.with_name(f"{home.data_dir.name}-replica")
        host, _, through = link.listen.rpartition(":")
        # --write-recovery-conf stores the password in the copy's own folder, which only its user can read.
        settings = conninfo_to_dict(primary.harness_conninfo, host=host, port=through, application_name="replica")
        password = str(settings.pop("password"))
        del settings["dbname"]
        copy = owner.start(
            "pg_basebackup",
            [
                *home.prefix,
                home.binaries / "pg_basebackup",
                f"--pgdata={data_dir}",
                f"--dbname={make_conninfo(**settings)}",
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
                "--no-password",
            ],
            log=log_dir / "postgres-replica-copy.log",
            env={**environment(), "PGPASSWORD": password},
            cwd=ANY_USERS_FOLDER,
            user=home.user,
        )
        if (code := copy.wait(_COPY_S)) != 0:
            why = f"did not end within {_COPY_S:.0f} s" if code is None else f"ended with code {code}"
            raise ServiceFailed(f"pg_basebackup {why}", log_tail=copy.log_tail())
        service = owner.start(
            "postgres-replica",
            [*home.prefix, home.binaries / "postgres", "-D", data_dir, *server_options(port)],
            log=log_dir / "postgres-replica.log",
            env=environment(),
            cwd=ANY_USERS_FOLDER,
            user=home.user,
            stop_signal=signal.SIGQUIT,  # as the primary's
        )
        replica = cls(service, primary, port, link)
        replica.follow()
        return replica

    def stop_following(self) -> None:
        """From now on nothing of the primary's log arrives here; the connection stays open."""
        self.link.add_toxic("timeout", "upstream", timeout=0)
        self.link.add_toxic("timeout", "downstream", timeout=0)

    def follow(self) -> None:
        """Undo `stop_following`, and return when it has applied all that the primary has committed until now. Idempotent."""
        self.link.heal()
        with psycopg.connect(self._primary.harness_conninfo, autocommit=True) as primary:
            (to,) = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or ("0/0",)
        last_error = ""

        def has_applied() -> bool:
            nonlocal last_error
            try:
                return self._bytes_after(str(to)) >= 0
            except psycopg.OperationalError as refused:
                last_error = str(refused)
                return False

        wait_until(
            "the replica of Postgres to follow",
            has_applied,
            deadline_s=_START_S + _FOLLOW_S,
            abandon=lambda: self.service.check_running(),
            explain=lambda: last_error,
        )

    def lag_bytes(self) -> int:
        """How much of the primary's log it has not applied."""
        with psycopg.connect(self._primary.harness_conninfo, autocommit=True) as primary:
            (to,) = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or ("0/0",)
        return max(0, -self._bytes_after(str(to)))

    def _bytes_after(self, position: str) -> int:
        """How far past this position of the log it is; negative: it is behind."""
        with psycopg.connect(self._conninfo, autocommit=True) as replica:
            question = "SELECT pg_wal_lsn_diff(coalesce(pg_last_wal_replay_lsn(), '0/0'), %s)"
            (bytes_after,) = replica.execute(question, [position]).fetchone() or (0,)
        return int(bytes_after)
