"""A scenario on an external stack: what is refused before anything starts, and what `plan` lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.scenario_files.load import load_all, load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile

KAFKA = KafkaProfile(bootstrap="127.0.0.1:1")
POSTGRES = PostgresProfile(uri="postgresql://tester@127.0.0.1:1/shop")
PROFILE = StackProfile(name="staging", provider="external", chaos="allowed", kafka=KAFKA, postgres=POSTGRES)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("broker-crash", "the brokers"),
        ("leader-isolated-acks-1", "the links between brokers"),
        ("unclean-election", "the brokers' files"),
        ("postgres-crash", "Postgres"),
    ],
)
def test_a_fault_that_needs_control_of_a_service_is_refused(name: str, needs: str) -> None:
    with pytest.raises(ScenarioError, match=f"n/a on stack staging: it needs control of {needs}"):
        load_all([name], PROFILE)


@pytest.mark.parametrize("name", ["effectively-once", "naive-append", "lost-ack-kafka", "two-drivers", "late-endtxn"])
def test_a_fault_of_the_job_or_of_its_connections_is_not(name: str) -> None:
    (loaded,) = load_all([name], PROFILE)
    assert loaded.profile is PROFILE and loaded.scenario.stack.provider == "embedded"


def test_consumers_are_refused() -> None:
    with pytest.raises(ScenarioError, match="consumers need services of their own"):
        load_all(["amqp-redelivery-reorders"], PROFILE)


def test_a_stack_without_postgres_is_refused_if_the_scenario_uses_it() -> None:
    with pytest.raises(ScenarioError, match=r"uses Postgres, and \[stack.staging\] has none"):
        load_file(find("naive-append"), PROFILE.model_copy(update={"postgres": None}))


def test_an_object_store_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"a service of the embedded stack(.|\n)*run it without --stack"):
        load_file(find("object-store-checkpoint"), PROFILE)


@pytest.mark.parametrize(("key", "value"), [("provider", "external"), ("prefix", "onceproof-0-x.")])
def test_only_the_option_chooses_the_stack(key: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: naive-append\nstack: {{{key}: {value}}}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"mine.yaml:2:.*stack.{key}.*\n.*--stack NAME|mine.yaml:2:.*--stack NAME"):
        load_file(path)


def test_a_table_in_a_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: naive-append\noutputs: {departures_table: {table: public.departures}}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"mine.yaml:2.*names a schema(.|\n)*write 'departures'"):
        load_file(path, PROFILE)


def test_plan_lists_every_object_and_the_faults_that_cannot_be_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("onceproof.toml").write_text(
        '[stack.staging]\nprovider = "external"\nchaos = "allowed"\nkafka = {bootstrap = "127.0.0.1:1"}\n'
        'postgres = {uri = "postgresql://tester@127.0.0.1:1/shop"}\n',
        encoding="utf-8",
    )
    done = CliRunner().invoke(app, ["plan", "postgres-crash", "--stack", "staging", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    placed = {fault["target"]: fault["placement"] for fault in found["faults"]}
    assert placed["postgres"]["exactness"] == "n/a" and "needs control of Postgres" in placed["postgres"]["why"]
    kinds = [sentence.split(" onceproof")[0] for sentence in found["external"]]
    assert kinds[:4] == ["topic", "schema", "publication", "replication slot"]
    assert "Kafka 127.0.0.1:1 (PLAINTEXT)" in found["stack"][0]
    text = CliRunner().invoke(app, ["plan", "postgres-crash", "--stack", "staging"]).stdout
    assert "schema onceproof_" in text and "departures" in text
