"""The state of the tables in a real Postgres: every change of an output is seen, and no lock of the job is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import Proxy
from onceproof.stack.postgres import EmbeddedPostgres
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stores.postgres.store import PostgresStore

STORE = PostgresStore()


def output(table: str) -> OutputSpec:
    return OutputSpec.model_validate({"table": table, "identity": ["id"]})


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("orders", "table orders"),
        ("Orders", "table orders"),
        ('"Orders"', "table Orders"),
        ("public.orders", "table orders"),
        ("Shop.Orders", "table shop.orders"),
        ('"Shop"."odd.name"', "table Shop.odd.name"),
    ],
)
def test_a_name_is_folded_as_postgres_folds_it(place: str, name: str) -> None:
    assert STORE.name(output(place)) == name


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    logs: Path = tmp_path_factory.mktemp("logs")
    with Owner() as owner:
        [port] = lease(owner, 1)
        proxy = cast("Proxy", SimpleNamespace(listen=f"127.0.0.1:{port}"))
        yield EmbeddedPostgres.start(owner, owner.scratch / "postgres", logs, port, proxy)


def job(postgres: EmbeddedPostgres) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(postgres.client_uri, passfile=str(postgres.passfile))


@pytest.mark.real
@pytest.mark.services
def test_a_change_is_seen_in_every_kind_of_table(postgres: EmbeddedPostgres) -> None:
    stack: Any = SimpleNamespace(postgres=postgres)
    places = ["parts", "Orders", '"Quoted"', "public.plain", "s2.plain"]
    with job(postgres) as connection:
        connection.execute("CREATE SCHEMA s2")
        connection.execute("CREATE TABLE parts (v int) PARTITION BY RANGE (v)")
        connection.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100)")
        for place in places[1:]:
            connection.execute(f"CREATE TABLE {place} (v int)".encode())
    for place in places:
        before = STORE.state(stack, [output(each) for each in places])
        with job(postgres) as connection:
            connection.execute(f"INSERT INTO {place} VALUES (1)".encode())
        after = STORE.state(stack, [output(each) for each in places])
        assert before.keys() == after.keys() and len(before) == len(places)
        assert [name for name in after if after[name] != before[name]] == [STORE.name(output(place))]


@pytest.mark.real
@pytest.mark.services
def test_it_waits_only_briefly_for_a_locked_table(postgres: EmbeddedPostgres) -> None:
    with job(postgres) as connection:
        connection.execute("CREATE TABLE locked (v int)")
        connection.commit()
        connection.execute("TRUNCATE locked")
        began = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            STORE.state(cast(Any, SimpleNamespace(postgres=postgres)), None)
        assert time.monotonic() - began < 20
        connection.rollback()
