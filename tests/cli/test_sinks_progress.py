"""The options of `onceproof sinks progress`: what is refused before a service is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.cli.sinks import progress
from onceproof.sinks.offsets import Progress
from onceproof.sinks.recorded import PostgresProgress, Recorded

KAFKA = ["--kafka", "127.0.0.1:9", "--topic", "progress"]


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, ["sinks", "progress", *words])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "the command does not know where the progress is recorded", "--postgres-env VARIABLE"),
        (["--kafka", "127.0.0.1:9"], "--kafka is given without", "add --topic NAME"),
        (["--topic", "progress"], "--topic is given without", "add --kafka ADDRESS"),
        (["--postgres-env", "NO_SUCH"], "environment variable 'NO_SUCH' is not set", "export NO_SUCH="),
        ([*KAFKA, "--apply"], "there is no --set", "--set batch=NUMBER"),
        ([*KAFKA, "--set", "batch=1"], "--set needs the pipeline", "add --pipeline NAME"),
        ([*KAFKA, "--set", "batch"], "--set 'batch' has no value", "--set batch=NUMBER"),
        ([*KAFKA, "--set", "query="], "--set 'query=' has no value", "--set query=ID"),
        ([*KAFKA, "--set", "batches=1"], "'batches' is not batch, query or TOPIC/PARTITION", "--set batch=NUMBER"),
        ([*KAFKA, "--set", "flights/x=1"], "'flights/x' is not batch", "TOPIC/PARTITION=OFFSET"),
        ([*KAFKA, "--set", "flights/0=-1"], "'-1' is not a number", "TOPIC/PARTITION=OFFSET"),
        ([*KAFKA, "--set", "batch=9223372036854775808"], "is not a number from 0", "batch=NUMBER"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_fix(words: list[str], message: str, hint: str) -> None:
    output = refused(*words)
    assert message in output and hint in output


def test_one_store_is_changed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", "postgresql://me:confidential@127.0.0.1:1/db")
    output = refused(*KAFKA, "--postgres-env", "DB", "--pipeline", "p", "--set", "batch=1")
    assert "one store at a time" in output and "confidential" not in output


def test_a_line_of_the_settings_that_is_not_one_is_refused_without_its_text(tmp_path: Path) -> None:
    settings = tmp_path / "kafka.properties"
    settings.write_text("# a login\n\nsasl.username=me\nconfidential\n")
    output = refused(*KAFKA, "--kafka-config", str(settings))
    assert f"{settings}:4 is not NAME=VALUE" in output and "confidential" not in output
    assert "cannot read" in refused(*KAFKA, "--kafka-config", str(tmp_path / "none"))


def test_a_place_without_a_record_is_pointed_out() -> None:
    """A wrong name would change nothing that the pipeline reads, and look like a repair."""
    store = PostgresProgress("")
    place = progress._Place(store, "table p", {}, "")
    before = Recorded("departures", Progress("q", 3, {"flights": {"0": 5}}), 1)
    change = progress._parsed(["fligths/0=7", "flights/0=5"])
    text = progress._difference(place, before, replace(before, progress=change(before.progress)), applied=False)
    assert "fligths/0: nothing was recorded for it until now; its records before 7 count as written" in text
    assert "flights/0: " not in text


def test_an_error_is_one_json_object_too() -> None:
    done = CliRunner().invoke(app, ["sinks", "progress", "--json"])
    assert json.loads(done.stdout)["exit"] == 2
