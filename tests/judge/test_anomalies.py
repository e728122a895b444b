"""Every anomaly is explained, on the command line, from its checker's own file."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.cli.show import explained
from onceproof.judge.anomalies import Explanation, anomalies, anomaly, sections
from onceproof.judge.checker import checkers

SIXTEEN = {
    *(
        "lost-write",
        "stale-tail",
        "duplicate",
        "wrong-value",
        "diverged-replay",
        "torn-batch",
        "reordered",
        "aborted-read",
    ),
    *("precommitted-read", "unexplained", "misplaced", "zombie-write", "commit-ahead-of-effect", "sink-disagreement"),
    *("hanging-transaction", "input-lost"),
}


def test_all_sixteen_are_registered() -> None:
    assert set(checkers.names()) == SIXTEEN


@pytest.mark.parametrize("name", sorted(SIXTEEN))
def test_an_anomaly_is_explained_in_its_own_file(name: str) -> None:
    checker = checkers.get(name)
    assert checker.__module__ == f"onceproof.checkers.{name.replace('-', '_')}"
    explanation = anomaly(name).explanation
    for field in fields(Explanation):
        assert getattr(explanation, field.name), f"{name} says nothing under {field.name}"
    assert [heading for heading, _ in sections(anomaly(name))] == [
        *("what it means", "for example", "how it comes about", "how it is decided", "what stops it", "read on"),
    ]


def test_the_list_names_each_and_how_to_read_on() -> None:
    text = explained(None, as_json=False)
    assert all(one.name in text for one in anomalies())
    assert "onceproof explain NAME" in text
    assert {one["name"] for one in json.loads(explained(None, as_json=True))["anomalies"]} == set(checkers.names())


def test_one_anomaly_fits_a_terminal() -> None:
    text = explained("duplicate", as_json=False)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("duplicate\n\nwhat it means\n")
    told = json.loads(explained("duplicate", as_json=True))
    assert told["anomaly"] == "duplicate" and told["causes"] and told["sources"]


def test_a_name_that_is_nearly_right() -> None:
    with pytest.raises(UsageError, match="did you mean 'duplicate'"):
        explained("duplicat", as_json=False)


def test_the_command() -> None:
    runner = CliRunner()
    assert "torn-batch" in runner.invoke(app, ["explain"]).stdout
    assert runner.invoke(app, ["explain", "torn-batch"]).stdout.startswith("torn-batch\n")
    unknown = runner.invoke(app, ["explain", "torn-bach"])
    assert unknown.exit_code == 2 and "did you mean 'torn-batch'" in unknown.output


def test_a_checker_of_somebody_else_may_come_without_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(checkers.get("duplicate"), "explanation")
    assert [heading for heading, _ in sections(anomaly("duplicate"))] == ["what it means"]
