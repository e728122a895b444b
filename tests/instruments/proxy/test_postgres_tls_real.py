"""libpq with ``sslmode=verify-full`` through the proxy: to a Postgres that accepts nothing but TLS.

It is the machine's own (package postgresql): the embedded one is built without TLS.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onceproof.instruments.proxy.authority import RunAuthority
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.loop import ProxyLoop, Target
from onceproof.instruments.proxy.rules import Action, Board, Condition, Rule
from onceproof.instruments.proxy.tls import UpstreamTls
from onceproof.stack.processes.owner import Owner

from ...foreign_cluster import ForeignPostgres

pytestmark = [pytest.mark.real, pytest.mark.services]

DISABLED = {"channel_binding": "disable"}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignPostgres]:
    with Owner() as owner:
        yield ForeignPostgres(owner, tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def authority(tmp_path: Path) -> RunAuthority:
    return RunAuthority.create(tmp_path / "authority")


@pytest.fixture
def front(postgres: ForeignPostgres, authority: RunAuthority) -> Iterator[FrameProxy]:
    with_loop = ProxyLoop()
    proxy = in_front(with_loop, postgres, authority)
    yield proxy
    with_loop.close()
    assert with_loop.failures == []


def in_front(
    loop: ProxyLoop, postgres: ForeignPostgres, authority: RunAuthority, upstream: UpstreamTls | None = None
) -> FrameProxy:
    proxy = FrameProxy(
        loop,
        "postgres",
        ("127.0.0.1", 0),
        Target("postgres", "127.0.0.1", postgres.port),
        Board(),
        client_tls=authority.server_context(),
        upstream_tls=upstream or postgres.upstream,
    )
    proxy.open()
    return proxy


def uses_tls(connection: psycopg.Connection[tuple[object, ...]]) -> object:
    """Whether the server's end of the connection, which is the proxy's, uses TLS."""
    row = connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert row is not None
    return row[0]


def test_verify_full_against_the_runs_authority(
    postgres: ForeignPostgres, front: FrameProxy, authority: RunAuthority
) -> None:
    with psycopg.connect(postgres.conninfo(port=front.port, ca=authority.ca, **DISABLED)) as connection:
        assert connection.pgconn.ssl_in_use
        assert uses_tls(connection) is True
        connection.execute("CREATE TEMP TABLE big AS SELECT repeat('x', 1000) AS x FROM generate_series(1, 5000)")
        assert len(connection.execute("SELECT x FROM big").fetchall()) == 5000
    assert front.refusals == front.incidents == []


def test_a_client_without_tls_reaches_a_server_that_accepts_nothing_else(
    postgres: ForeignPostgres, front: FrameProxy
) -> None:
    """libpq would refuse an offer to bind the channel of a connection without TLS: the proxy withdraws it."""
    with psycopg.connect(postgres.conninfo(port=front.port, sslmode="disable")) as connection:
        assert not connection.pgconn.ssl_in_use
        assert uses_tls(connection) is True


@pytest.mark.parametrize("action", ["drop-answer", "drop-request", "late"])
def test_rules_apply_to_frames_within_tls(
    postgres: ForeignPostgres, front: FrameProxy, authority: RunAuthority, action: Action
) -> None:
    through = postgres.conninfo(port=front.port, ca=authority.ca, **DISABLED)
    table = "t_" + action.replace("-", "_")
    with psycopg.connect(postgres.conninfo(), autocommit=True) as direct:
        direct.execute(f"CREATE TABLE {table} (x int)")
        rule = Rule(Condition("commit", transaction=table), action)
        front.board.arm(rule)
        connection = psycopg.connect(through)
        connection.execute(f"INSERT INTO {table} VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        hit = rule.wait_for_hit(10)
        rule.release()
        if action != "drop-request":
            assert rule.wait_for_answer(hit, 10).facts["tags"] == ["COMMIT"]
        front.board.disarm(rule)
        rows = direct.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert rows == (0 if action == "drop-request" else 1,)


def test_a_client_that_binds_the_channel_is_refused(
    postgres: ForeignPostgres, front: FrameProxy, authority: RunAuthority
) -> None:
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres.conninfo(port=front.port, ca=authority.ca))
    (sentence,) = front.refusals
    assert "impossible through a proxy: set channel_binding=disable" in sentence


def test_a_certificate_of_another_authority_is_named(postgres: ForeignPostgres, authority: RunAuthority) -> None:
    loop = ProxyLoop()
    proxy = in_front(loop, postgres, authority, UpstreamTls(ssl.create_default_context(cafile=str(authority.ca)), None))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres.conninfo(port=proxy.port, ca=authority.ca, **DISABLED))
    assert "set the TLS authority (ca)" in proxy.refusals[0]
    loop.close()
