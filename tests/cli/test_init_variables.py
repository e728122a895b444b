"""`onceproof init` recognises options and variables for Postgres, Kafka and checkpoints by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text("print()\n")
    monkeypatch.chdir(tmp_path)


def init(*words: str) -> Scenario:
    done = CliRunner().invoke(app, ["init", "--json", *words])
    assert done.exit_code == 0, done.output
    return load(Path(json.loads(done.stdout)["scenario"]))


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (
            ("--env", "PGHOST=db", "--env", "PGPORT=5432", "--env", "PGUSER=me", "--env", "PGDATABASE=shop", "--"),
            {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "database"},
        ),
        (
            (
                "--",
                "POSTGRES_HOST=db",
                "POSTGRES_PORT=5432",
                "POSTGRES_USER=me",
                "POSTGRES_PASSWORD=s3cr3t",
                "POSTGRES_DB=shop",
            ),
            {
                "POSTGRES_HOST": "host",
                "POSTGRES_PORT": "port",
                "POSTGRES_USER": "user",
                "POSTGRES_PASSWORD": "password",
                "POSTGRES_DB": "database",
            },
        ),
        (
            ("--", "env", "DB_HOST=db", "DB_NAME=shop", "DB_USERNAME=me", "DB_PASS=s3cr3t"),
            {"DB_HOST": "host", "DB_NAME": "database", "DB_USERNAME": "user", "DB_PASS": "password"},
        ),
        (
            ("--", "APP_PG_HOST=db", "JDBC_USER=me", "JDBC_PASSWORD=s3cr3t", "DATABASE_NAME=shop", "DATABASE_HOST=db"),
            {
                "APP_PG_HOST": "host",
                "JDBC_USER": "user",
                "JDBC_PASSWORD": "password",
                "DATABASE_NAME": "database",
                "DATABASE_HOST": "host",
            },
        ),
    ],
)
def test_parts_of_the_postgres_address_become_templates(words: tuple[str, ...], env: dict[str, str]) -> None:
    scenario = init("--table", "t", *words, "python", "job.py")
    assert scenario.pipeline.env == {name: f"{{postgres.{part}}}" for name, part in env.items()}
    assert "s3cr3t" not in Path("job.yaml").read_text() and scenario.stack.postgres is not None


@pytest.mark.parametrize(
    ("assigned", "filled"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS=kafka", "{kafka}"),
        ("KAFKA_BROKERS=a:9092,b:9092", "{kafka}"),
        ("BOOTSTRAP_SERVERS=kafka:29092", "{kafka}"),
        ("KAFKA_URL=broker", "{kafka}"),
        ("KAFKA_BROKER_ID=1", "1"),
        ("CHECKPOINT_DIR=/data/cp/sums", "{checkpoint}/sums"),
        ("CHECKPOINT_ROOT=/data/cp", "{checkpoint}"),
        ("SPARK_CHECKPOINT_LOCATION=s3a://b/cp", "{checkpoint}/cp"),
        ("CHECKPOINT_INTERVAL=5 seconds", "5 seconds"),
        ("DB_HOST=db:5432", "{postgres.host}:{postgres.port}"),
        ("DB_URL=postgres://me:pw@db/shop", "{postgres}"),
        ("JDBC_URL=jdbc:postgresql://db/shop?user=me&password=pw", "{postgres.jdbc}"),
        ("DSN=host=db dbname=shop user=me password=pw", "{postgres}"),
        ("DB_TABLE=sums", "sums"),
        ("INPUT_TOPICS=orders,refunds", "{topic.orders},{topic.refunds}"),
        ("MYSQL_HOST=db", "db"),
    ],
)
def test_variables_are_recognised_by_their_names(assigned: str, filled: str) -> None:
    name = assigned.partition("=")[0]
    assert init("--", assigned, "python", "job.py").pipeline.env == {name: filled}


def test_options_are_recognised_by_their_names_and_a_password_is_removed() -> None:
    scenario = init(
        *("--", "python", "job.py", "--pg-host", "db", "--pgPort=5432", "--db-user", "me", "--database", "shop"),
        *("--db-password", "s3cr3t", "--brokers", "kafka", "--ckpt-dir", "/x/y"),
    )
    assert scenario.pipeline.command[2:] == [
        *("--pg-host", "{postgres.host}", "--pgPort={postgres.port}", "--db-user", "{postgres.user}"),
        *("--database", "{postgres.database}", "--db-password", "CHANGE-ME", "--brokers", "{kafka}"),
        *("--ckpt-dir", "{checkpoint}/y"),
    ]
    assert 'env: {PGPASSWORD: "{postgres.password}"}' in Path("job.yaml").read_text()
