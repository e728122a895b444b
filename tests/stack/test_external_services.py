"""Checks, objects and clean-up on a real Kafka and a real Postgres that act as an external stack."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.scenario.model import TopicSpec
from onceproof.stack.external import cleanup, journal, kafka, postgres
from onceproof.stack.external.journal import Created, ObjectJournal
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.names import RunNames, identity
from onceproof.stack.external.postgres import ExternalPostgres
from onceproof.stack.external.profile import KafkaProfile, StackProfile, Tls
from onceproof.stack.processes.owner import Owner

from .external_services import Direct, Foreign, started

pytestmark = [pytest.mark.real, pytest.mark.services]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Owner() as owner:
        yield started(owner, tmp_path_factory.mktemp("foreign"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def names() -> RunNames:
    return RunNames(identity(), f"run-{time.monotonic_ns()}")


def of_postgres(foreign: Foreign, names: RunNames, kept: ObjectJournal, folder: Path) -> ExternalPostgres:
    host, port = postgres.address(foreign.profile.postgres)  # type: ignore[arg-type]
    return ExternalPostgres(foreign.profile, names, kept, Direct("postgres", f"{host}:{port}", ""), folder / "pgpass")


def of_kafka(foreign: Foreign, names: RunNames, kept: ObjectJournal) -> ExternalKafka:
    addresses = kafka.check(foreign.profile)
    proxies = {id: Direct(f"client-{id}", f"{host}:{port}", "") for id, (host, port) in addresses.items()}
    return ExternalKafka(
        foreign.profile, names, kept, addresses, proxies, foreign.profile.kafka.bootstrap, copies=kept.path.parent
    )


def journal_of(foreign: Foreign, names: RunNames) -> ObjectJournal:
    return ObjectJournal(names.run, foreign.profile.name, *cleanup.addresses(foreign.profile))


def with_postgres(foreign: Foreign, **changes: object) -> StackProfile:
    assert foreign.profile.postgres is not None
    return foreign.profile.model_copy(update={"postgres": foreign.profile.postgres.model_copy(update=changes)})


def with_kafka(foreign: Foreign, **changes: object) -> StackProfile:
    return foreign.profile.model_copy(
        update={"kafka": KafkaProfile.model_validate({"bootstrap": "127.0.0.1:1", **changes})}
    )


@pytest.fixture
def silent() -> Iterator[int]:
    """A port on which connections are accepted and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_healthy_stack_passes_its_checks_and_nothing_is_created(foreign: Foreign) -> None:
    before = foreign.topics(), foreign.objects()
    assert len(kafka.check(foreign.profile)) == 1
    postgres.check(foreign.profile)
    assert (foreign.topics(), foreign.objects()) == before


def test_an_unreachable_kafka_is_reported_within_the_time_limit(foreign: Foreign, silent: int) -> None:
    for bootstrap in ("127.0.0.1:1", f"127.0.0.1:{silent}"):
        began = time.monotonic()
        with pytest.raises(
            EnvironmentProblem, match=rf"Kafka {bootstrap} of \[stack.staging\] cannot be reached within 2 s"
        ) as error:
            kafka.check(with_kafka(foreign, bootstrap=bootstrap).model_copy(update={"connect_s": 2}))
        assert time.monotonic() - began < 6 and "kafka.bootstrap" in str(error.value.hint)


def test_tls_to_a_listener_without_it_names_the_setting(foreign: Foreign) -> None:
    with pytest.raises(EnvironmentProblem) as error:
        kafka.check(with_kafka(foreign, bootstrap=foreign.profile.kafka.bootstrap, security="SSL"))
    assert error.value.exit_code == 4 and "kafka." in str(error.value.hint)


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"password": SecretStr("wrong-one")}, "the server refuses the password", "postgres.password"),
        ({"password": None}, "the server wants a password", "postgres.password"),
        ({"uri": "postgresql://nobody@127.0.0.1:{port}/pipeline"}, "the server refuses the password", "postgres.uri"),
        ({"uri": "postgresql://pipeline@127.0.0.1:{port}/none"}, "does not exist", "postgres.uri"),
        ({"uri": "postgresql://pipeline@127.0.0.1:1/pipeline"}, "cannot be reached", "postgres.uri"),
        ({"tls": Tls()}, "it does not speak TLS", "postgres.tls"),
    ],
)  # fmt: skip
def test_a_postgres_that_refuses_is_reported_with_the_setting(
    foreign: Foreign, changes: dict[str, object], said: str, hint: str
) -> None:
    _, port = postgres.address(foreign.profile.postgres)  # type: ignore[arg-type]
    filled = {key: value.format(port=port) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(EnvironmentProblem, match=said) as error:
        postgres.check(with_postgres(foreign, **filled))
    assert hint in str(error.value.hint) and "wrong-one" not in str(error.value)


def test_a_postgres_that_never_answers_is_reported_within_the_time_limit(foreign: Foreign, silent: int) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentProblem, match="cannot be reached"):
        found = with_postgres(foreign, uri=f"postgresql://pipeline@127.0.0.1:{silent}/pipeline")
        postgres.check(found.model_copy(update={"connect_s": 2}))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("take", "give", "said"),
    [
        ("ALTER ROLE pipeline NOREPLICATION", "ALTER ROLE pipeline REPLICATION", "may not create a replication slot"),
        (
            "ALTER DATABASE pipeline OWNER TO onceproof",
            "ALTER DATABASE pipeline OWNER TO pipeline",
            "may not create a schema in database 'pipeline'",
        ),
    ],
)
def test_a_missing_right_is_reported_before_anything_is_created(
    foreign: Foreign, take: str, give: str, said: str
) -> None:
    foreign.grant(take)
    try:
        with pytest.raises(EnvironmentProblem, match=said) as error:
            postgres.check(foreign.profile)
        assert "its administrator can run" in str(error.value.hint) and foreign.objects() == []
    finally:
        foreign.grant(give)


def test_slots_that_are_all_in_use_are_reported(foreign: Foreign) -> None:
    slots = [f"taken_{number}" for number in range(4)]
    for slot in slots:
        foreign.grant(f"SELECT pg_create_physical_replication_slot('{slot}')")
    try:
        with pytest.raises(EnvironmentProblem, match="all replication slots are in use"):
            postgres.check(foreign.profile)
    finally:
        for slot in slots:
            foreign.grant(f"SELECT pg_drop_replication_slot('{slot}')")


def test_what_a_run_creates_is_in_its_journal_and_can_be_removed(
    foreign: Foreign, names: RunNames, tmp_path: Path
) -> None:
    kept = journal_of(foreign, names)
    server, broker = of_postgres(foreign, names, kept, tmp_path), of_kafka(foreign, names, kept)
    server.create_schema()
    with psycopg.connect(server.client_uri, passfile=str(server.passfile), autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (n int)")
    server.capture({"rows"})
    topic = names.topic("orders")
    broker.check_topics({topic: TopicSpec(partitions=2)})
    broker.create_topic(topic, 2)
    name = names.identifier
    assert foreign.objects() == [("publication", name), ("schema", name), ("slot", name)] and topic in foreign.topics()
    assert {each.kind for each in kept.entry.objects} == {"topic", "schema", "publication", "slot"}
    with closing(psycopg.connect(server.client_uri, passfile=str(server.passfile))) as left:
        left.execute("LOCK TABLE rows")  # a session of the job that still holds a lock
        assert [why for _, why in cleanup.remove(kept.entry.objects, foreign.profile)] == [None] * 4
    assert foreign.objects() == [] and topic not in foreign.topics()
    assert [why for _, why in cleanup.remove(kept.entry.objects, foreign.profile)] == [None] * 4  # idempotent


def test_a_topic_that_exists_is_refused_and_left_as_it_is(foreign: Foreign, names: RunNames) -> None:
    kept = journal_of(foreign, names)
    topic = names.topic("theirs")
    of_kafka(foreign, names, journal_of(foreign, replace(names, run="another"))).create_topic(topic, 1)
    broker = of_kafka(foreign, names, kept)
    with pytest.raises(EnvironmentProblem, match="that this run did not create"):
        broker.check_topics({topic: TopicSpec()})
    with pytest.raises(EnvironmentProblem, match="that this run did not create"):
        broker.create_topic(topic, 1)
    assert kept.entry.objects == () and topic in foreign.topics()
    kafka.remove_topic(topic, foreign.profile)


def test_a_schema_that_exists_is_refused_and_left_as_it_is(foreign: Foreign, names: RunNames, tmp_path: Path) -> None:
    kept = journal_of(foreign, names)
    foreign.grant(f"CREATE SCHEMA {names.identifier}")
    with pytest.raises(EnvironmentProblem, match="that this run did not create"):
        of_postgres(foreign, names, kept, tmp_path).create_schema()
    assert kept.entry.objects == () and foreign.objects() == [("schema", names.identifier)]
    foreign.grant(f"DROP SCHEMA {names.identifier}")


def test_a_table_must_exist_before_its_commits_can_be_recorded(
    foreign: Foreign, names: RunNames, tmp_path: Path
) -> None:
    kept = journal_of(foreign, names)
    server = of_postgres(foreign, names, kept, tmp_path)
    server.create_schema()
    foreign.grant("CREATE TABLE public.elsewhere (n int)")  # must not be taken for the run's own
    with pytest.raises(UsageError, match="output table 'elsewhere' does not exist before the job starts"):
        server.capture({"elsewhere"})
    cleanup.remove(kept.entry.objects, foreign.profile)
    foreign.grant("DROP TABLE public.elsewhere")
    assert foreign.objects() == []


def test_an_older_transaction_that_blocks_the_slot_is_named(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_SLOT_S", 1)
    with psycopg.connect(foreign.admin_conninfo) as open_one:
        open_one.execute("CREATE TABLE public.never (n int)")
        with pytest.raises(EnvironmentProblem, match="an older transaction is still open"):
            postgres.check(foreign.profile)
        open_one.rollback()


def test_cleanup_removes_what_a_killed_run_left_and_names_what_it_could_not(
    foreign: Foreign, names: RunNames, tmp_path: Path
) -> None:
    kept = journal_of(foreign, names)
    of_postgres(foreign, names, kept, tmp_path).create_schema()
    of_kafka(foreign, names, kept).create_topic(names.topic("orders"), 1)
    kept.will_create(Created("topic", "of-another-user"))
    # The journal of a harness that is gone.
    journal.keep(kept.path, replace(kept.entry, harness_pid=os.getpid(), harness_start_ticks=1))
    assert len(cleanup.clean_up(foreign.profile, dry_run=True)) == 3 and names.topic("orders") in foreign.topics()
    with pytest.raises(
        EnvironmentProblem, match=r"could not remove topic of-another-user .*not one of this installation"
    ):
        cleanup.clean_up(foreign.profile)
    assert foreign.objects() == [] and names.topic("orders") not in foreign.topics()
    left = journal.read(kept.path)
    assert left is not None and [each.name for each in left.objects] == ["of-another-user"]
    other = with_kafka(foreign, bootstrap="127.0.0.1:1")
    with pytest.raises(EnvironmentProblem, match=r"not what \[stack.staging\] names now"):
        cleanup.clean_up(other)


def test_a_table_of_the_job_is_found_only_in_the_schema_of_the_run(
    foreign: Foreign, names: RunNames, tmp_path: Path
) -> None:
    kept = journal_of(foreign, names)
    server = of_postgres(foreign, names, kept, tmp_path)
    server.create_schema()
    for uri in (server.client_uri, server.harness_conninfo):
        with psycopg.connect(uri, passfile=str(server.passfile)) as connection:
            assert connection.execute("SELECT current_schemas(false)").fetchone() == ([names.identifier],)
            found = connection.execute(sql.SQL("SELECT current_user")).fetchone()
            assert found == ("pipeline",)
    cleanup.remove(kept.entry.objects, foreign.profile)
