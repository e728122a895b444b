"""What `validate` and `plan` warn of: likely wrong, and run all the same."""

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


def warned(path: Path) -> list[str]:
    done = CliRunner().invoke(app, ["validate", "--json", str(path)])
    assert done.exit_code == 0, done.output
    plan = CliRunner().invoke(app, ["plan", "--json", str(path)])
    found: list[dict[str, Any]] = json.loads(done.stdout)["warnings"]
    assert json.loads(plan.stdout)["warnings"] == found
    return [f"{one['place']['line']}:{one['place']['column']}: {one['message']} ({one['hint']})" for one in found]


def test_a_job_without_a_checkpoint(write: Write) -> None:
    (only,) = warned(write())
    assert "11:3: the job does not use {checkpoint}" in only
    assert warned(write(("--topic,", "'--checkpoint={checkpoint}/x', --topic,"))) == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--dead-topic=dead", "topic 'dead', which --dead-topic names, is never created"),
        ("--out-topic=enriched", None),
        ("--topic-partitions=3", None),
        ("--out=/srv/out", "'/srv/out' is outside the run"),
        ("--out=s3a://bucket/out", "'s3a://bucket/out' is outside the run"),
        ("--out=out", None),
        ("--packages=org.postgresql:postgresql:42.7.3", "leave it out: the Kafka connector and Postgres' driver"),
        ("--packages=org.example:x:1", "without a network name the jar"),
    ],
)
def test_what_leads_nowhere_or_out_of_the_run(write: Write, word: str, said: str | None) -> None:
    found = warned(write(("--topic,", f"'--checkpoint={{checkpoint}}/x', '{word}', --topic,")))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_packages_that_the_code_of_a_job_asks_for(write: Write) -> None:
    path = write(("--topic,", "'--checkpoint={checkpoint}/x', --topic,"))
    (path.parent / "job.py").write_text(
        'b.config("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")'
    )
    (only,) = warned(path)
    assert "which Spark fetches from the network at each start" in only


@pytest.mark.parametrize("part", ["host", "port", "user", "database"])
def test_postgres_in_parts_goes_anywhere(write: Write, part: str) -> None:
    load(write(("--kafka,", f"'--db={{postgres.{part}}}', --kafka,")))


def test_the_password_goes_into_variables_alone(write: Write) -> None:
    scenario = load(write(('{TARGET: "{postgres}"}', '{PGPASSWORD: "{postgres.password}"}')))
    assert scenario.model_dump()["pipeline"]["env"] == {"PGPASSWORD": "{postgres.password}"}
    with pytest.raises(ScenarioError, match="the list of processes would show the password"):
        load(write(("--kafka,", "'--pw={postgres.password}', --kafka,")))
