"""Kafka and Postgres in containers of a real daemon: up, down, cleanup, and runs with the verdicts of the embedded stack.

``tox -e compose`` runs them. They need a container daemon (DOCKER_HOST), a compose command, and the local Debian image that
ONCEPROOF_TEST_BASE names; without a registry: ``debootstrap bookworm FOLDER``, then ``tar -C FOLDER -c . | docker import - NAME``.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from onceproof.base.errors import EnvironmentProblem, ScenarioError
from onceproof.base.waiting import wait_until
from onceproof.cli.app import app
from onceproof.formats.codec import Decoder, Encoder, Settings
from onceproof.formats.registry import Access
from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.compose import project
from onceproof.stack.compose.daemon import address, client
from onceproof.stack.compose.profile import ComposeProfile
from onceproof.stack.compose.project import Project
from onceproof.stack.processes.ports import PortLease

from ...conformance import SCENARIOS, record, record_n_a
from ...gate import assert_as_expected

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.usefixtures("built")]
full = pytest.mark.full


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project of `onceproof up`, under another name and on other ports than a user's."""
    monkeypatch.setattr(project, "BY_HAND", "onceproof-test")
    ports = PortLease.take(len(project.PORTS))
    for name, port in zip(project.PORTS, ports.ports, strict=True):
        monkeypatch.setenv(name, str(port))
    found = Project("onceproof-test")
    yield found
    found.down()
    ports.release()


@full
def test_up_is_idempotent_and_down_leaves_nothing(by_hand: Project) -> None:
    by_hand.up(1)
    before = {one.id for one in by_hand.containers()}
    by_hand.up(1)
    assert {one.id for one in by_hand.containers()} == before and len(before) == 2
    assert by_hand.brokers() == 1 and len(by_hand.addresses()) == 1
    with pytest.raises(EnvironmentProblem, match="up with 1 broker"):
        by_hand.up(3)
    by_hand.down()
    by_hand.down()
    assert by_hand.containers() == []


@full
def test_a_port_that_is_taken_leaves_nothing(by_hand: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(project.PORTS[0], str(server.getsockname()[1]))
        with pytest.raises(EnvironmentProblem, match="compose up"):
            by_hand.up(1)
    assert by_hand.containers() == []


@full
def test_an_image_that_cannot_be_had_leaves_nothing(
    by_hand: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONCEPROOF_KAFKA_IMAGE", "127.0.0.1:1/no/such-image:1")
    monkeypatch.chdir(tmp_path)
    before = everything()
    for words in (["up"], ["run", "foreign-kafka-sink", "--stack", "compose"]):
        done = CliRunner().invoke(app, words)
        output = " ".join(done.output.split())
        assert done.exit_code == 4 and "onceproof itself failed" not in output, done.output
        assert "no/such-image" in output and "onceproof up --build-from BASE" in output
    assert by_hand.containers() == [] and everything() == before


def everything() -> set[str]:
    """The ids of all containers and networks of the daemon."""
    found = client()
    return {str(one.id) for one in (*found.containers.list(all=True), *found.networks.list())}


@full
def test_doctor_names_an_image_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_POSTGRES_IMAGE", "127.0.0.1:1/no/such-image:1")
    checks = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["checks"]
    (found,) = (check["found"] for check in checks if check["name"] == "containers (optional)")
    kafka, missing = found.split("; missing", 1)
    assert "onceproof/kafka:" in kafka and "no/such-image" not in kafka
    assert "127.0.0.1:1/no/such-image:1" in missing and "onceproof up --build-from BASE" in missing


@full
def test_cleanup_removes_the_containers_of_a_dead_run_alone(by_hand: Project, tmp_path: Path) -> None:
    dead, living = Project("onceproof-dead"), by_hand
    ports = PortLease.take(len(project.PORTS))
    try:
        dead.up(1, run_id="dead", ports=dict(zip(project.PORTS, ports.ports, strict=True)))
        living.up(1)
        assert project.clean_up("other", address(), dry_run=False) == []
        assert project.clean_up("dead", address(), dry_run=True) == [
            "would remove the containers of project onceproof-dead"
        ]
        assert len(dead.containers()) == 2
        assert project.clean_up("dead", address(), dry_run=False) == [
            "removed the containers of project onceproof-dead"
        ]
        assert dead.containers() == [] and len(living.containers()) == 2
    finally:
        dead.down()
        ports.release()


@full
def test_the_registry_of_up_serves_schemas(by_hand: Project, tmp_path: Path) -> None:
    by_hand.up(1)
    with pytest.raises(EnvironmentProblem, match=r"up with 1 broker\(s\) and no registry"):
        by_hand.up(1, registry=True)
    by_hand.down()
    by_hand.up(1, registry=True)
    url = by_hand.registry_url()
    assert url is not None
    schema = tmp_path / "order.avsc"
    schema.write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}')
    settings = Settings("avro", str(schema), framed=True, registry=Access(url))
    encoder = Encoder(settings, {}, "orders")
    encoder.register()
    value = encoder.encode(1, b'{"id": 7}', 0)
    assert Decoder(Settings("avro", None, framed=True, registry=Access(url))).decode(value).document == '{"id":7}'


@full
def test_cleanup_removes_what_a_killed_run_left_in_the_containers_of_up(by_hand: Project, tmp_path: Path) -> None:
    by_hand.up(1)
    program = (
        "import sys; from onceproof.stack.compose import project; project.BY_HAND = 'onceproof-test'\n"
        "from onceproof.cli.app import app; app(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program]

    def left() -> list[str]:
        with psycopg.connect(by_hand.postgres_uri(), password=by_hand.postgres_password()) as connection:
            rows = connection.execute(_CREATED).fetchall()
        kafka = AdminClient({"bootstrap.servers": ",".join(by_hand.addresses())})
        topics = [f"topic {name}" for name in kafka.list_topics(timeout=10).topics if name.startswith("onceproof-")]
        return sorted([*(str(row[0]) for row in rows), *topics])

    with (tmp_path / "out").open("w") as out:
        words = ["run", "naive-append", "--stack", "compose", "--runs", str(tmp_path)]
        killed = subprocess.Popen([*command, *words], stdout=out, stderr=out)
        try:
            wait_until("the job to start", lambda: "job started" in (tmp_path / "out").read_text(), deadline_s=120)
        finally:
            killed.kill()
            killed.wait()
    kinds = {one.split()[0] for one in left()}
    assert kinds == {"topic", "role", "schema", "publication", "slot"}
    shown = subprocess.run(
        [*command, "cleanup", "--stack", "compose", "--dry-run"], capture_output=True, text=True, check=True
    )
    assert all(f"would remove {kind} onceproof" in shown.stdout for kind in kinds), shown.stdout
    assert left(), "a dry run removes nothing"
    # Also removes the run's processes: the job still runs, and would keep its slot in use.
    subprocess.run([*command, "cleanup"], capture_output=True, check=True)
    subprocess.run([*command, "cleanup", "--stack", "compose"], capture_output=True, text=True, check=True)
    assert left() == []
    assert len(by_hand.containers()) == 2


_CREATED = """
    SELECT 'role ' || rolname FROM pg_roles WHERE rolname LIKE 'onceproof\\_%'
    UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname LIKE 'onceproof\\_%'
    UNION ALL SELECT 'publication ' || pubname FROM pg_publication
    UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots"""


@pytest.mark.parametrize(
    "name",
    # One of them in the gate, where there is a daemon.
    [pytest.param(name, marks=() if name == "naive-append" else full) for name in (*SCENARIOS, "broker-crash")],
    ids=lambda name: Path(name).stem,
)
def test_a_scenario_has_the_verdict_of_the_embedded_stack(name: str, tmp_path: Path) -> None:
    try:
        loaded = load_file(find(name), ComposeProfile.planned())
    except ScenarioError as refused:
        record_n_a("compose", name, refused)
        return
    before = {one.id for one in client().containers.list(all=True)}
    done = run(loaded, runs_dir=tmp_path)
    assert_as_expected(name, done.verdict, done.run_dir)
    record("compose", name, done.verdict, done.run_dir)
    assert {one.id for one in client().containers.list(all=True)} == before, "the run's own containers are removed"


_ON_SPARK = {
    "tasks that write": "staged-sink",
    "a stalled executor": str(Path(__file__).parents[2] / "scenarios" / "in-tasks.yaml"),
    "an executor that is cut off": str(Path(__file__).parents[2] / "scenarios_compose" / "executor-cut-off.yaml"),
    "state partly committed": str(Path(__file__).parents[2] / "scenarios" / "state-partly-on-spark.yaml"),
    "state": str(Path(__file__).parents[2] / "scenarios" / "state-on-spark.yaml"),
}


@full
@pytest.mark.parametrize("name", _ON_SPARK.values(), ids=_ON_SPARK.keys())
def test_executors_in_containers(name: str, tmp_path: Path) -> None:
    """They are struck one by one, write through the proxies, and share the run's folders with the driver."""
    loaded = load_file(find(name), ComposeProfile.planned())
    done = run(loaded, runs_dir=tmp_path)
    assert_as_expected(name, done.verdict, done.run_dir)
    logs = {path.name for path in (done.run_dir / "logs").iterdir()}
    assert {"kafka-1.log", "postgres-1.log", "spark-master-1.log", "spark-worker-1.log", "spark-worker-2.log"} <= logs
    assert any((done.run_dir / "logs" / "spark-workers").glob("app-*/*/stderr")), "the executors' own output"


@full
def test_postgres_ends_the_sessions_that_a_partition_left(by_hand: Project) -> None:
    by_hand.up(1)
    server, network, password = by_hand.postgres(), by_hand.network(project.CLIENTS), by_hand.postgres_password()
    uri = by_hand.postgres_uri()
    with closing(psycopg.connect(uri, password=password)) as holder:
        holder.execute("CREATE TABLE held ()")
        holder.commit()
        holder.execute("LOCK TABLE held")
        names = project.disconnect(server, network)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(uri, password=password, connect_timeout=2)
        project.connect(server, network, names)
        project.connect(server, network, names)

        def is_free() -> bool:
            try:
                with psycopg.connect(uri, password=password, connect_timeout=2) as other:
                    other.execute("SET lock_timeout = '500ms'")
                    other.execute("LOCK TABLE held")
            except (psycopg.OperationalError, psycopg.errors.LockNotAvailable):
                return False
            return True

        wait_until("the lock of the lost session to end", is_free, deadline_s=30)


@full
@pytest.mark.parametrize(
    ("name", "network"), [("broker-cut-off.yaml", "_cluster"), ("postgres-cut-off.yaml", "_clients")]
)
def test_a_container_that_is_off_its_network_is_a_partition(name: str, network: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "scenarios" / name
    verdict = run(load_file(path, ComposeProfile.planned()), runs_dir=tmp_path).verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    (fault,) = verdict.faults
    assert fault.hit
    (how,) = (str(item) for item in fault.evidence if "was disconnected from network" in str(item))
    assert how.endswith(network)
