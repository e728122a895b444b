"""Warnings of `validate` and `plan` about likely mistakes in scenarios that can be run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.scenario_files.load import load

Write = Callable[..., Path]


def warnings_of(path: Path) -> list[str]:
    done = CliRunner().invoke(app, ["validate", "--json", str(path)])
    assert done.exit_code == 0, done.output
    plan = CliRunner().invoke(app, ["plan", "--json", str(path)])
    found: list[dict[str, Any]] = json.loads(done.stdout)["warnings"]
    assert json.loads(plan.stdout)["warnings"] == found
    return [f"{one['place']['line']}:{one['place']['column']}: {one['message']} ({one['hint']})" for one in found]


def test_a_job_without_a_checkpoint_is_warned_of(write: Write) -> None:
    (only,) = warnings_of(write())
    assert "11:3: the job does not use {checkpoint}" in only
    assert warnings_of(write(("--topic,", "'--checkpoint={checkpoint}/x', --topic,"))) == []


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--dead-topic=dead", "nothing creates topic 'dead', which --dead-topic names"),
        ("--out-topic=enriched", None),
        ("--topic-partitions=3", None),
        ("--out=/srv/out", "'/srv/out' is outside the run directory"),
        ("--out=s3a://bucket/out", "'s3a://bucket/out' is outside the run directory"),
        ("--out=out", None),
        ("--packages=org.postgresql:postgresql:42.7.3", "remove it: Spark's Kafka connector and Postgres' JDBC driver"),
        ("--packages=org.example:x:1", "to run without a network, pass the jar"),
    ],
)
def test_unknown_topics_outside_paths_and_packages_are_warned_of(write: Write, word: str, expected: str | None) -> None:
    found = warnings_of(write(("--topic,", f"'--checkpoint={{checkpoint}}/x', '{word}', --topic,")))
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_packages_in_the_code_of_a_job_are_warned_of(write: Write) -> None:
    path = write(("--topic,", "'--checkpoint={checkpoint}/x', --topic,"))
    (path.parent / "job.py").write_text(
        'b.config("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")'
    )
    (only,) = warnings_of(path)
    assert "which Spark fetches from the network at each start" in only


@pytest.mark.parametrize("part", ["host", "port", "user", "database"])
def test_parts_of_the_postgres_address_are_accepted_in_the_command(write: Write, part: str) -> None:
    load(write(("--kafka,", f"'--db={{postgres.{part}}}', --kafka,")))


def test_the_password_is_accepted_only_in_variables(write: Write) -> None:
    scenario = load(write(('{TARGET: "{postgres}"}', '{PGPASSWORD: "{postgres.password}"}')))
    assert scenario.model_dump()["pipeline"]["env"] == {"PGPASSWORD": "{postgres.password}"}
    with pytest.raises(ScenarioError, match="the process list would show the password"):
        load(write(("--kafka,", "'--pw={postgres.password}', --kafka,")))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE flight_out (id text)", "does not create table 'flights_out'"),
        ("CREATE TABLE Public.Flights_Out (id text)", None),
        ("CREATE TABLE x (id text); ALTER TABLE x RENAME TO flights_out", None),
        ("CREATE SCHEMA shop", None),
    ],
)
def test_an_output_table_that_no_statement_creates_is_warned_of(write: Write, sql: str, expected: str | None) -> None:
    path = write(
        ("--topic,", "'--checkpoint={checkpoint}/x', --topic,"),
        ("tables: [planes]", f"tables: [planes]\n    sql: {sql}"),
    )
    found = warnings_of(path)
    assert len(found) == (expected is not None)
    assert expected is None or (expected in found[0] and "did you mean 'flight_out'?" in found[0])
