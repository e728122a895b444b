"""`onceproof explain` explains every anomaly, from its checker's own file."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.cli.show.anomaly import explained
from onceproof.judge.anomalies import anomalies, anomaly, sections
from onceproof.judge.checker import Checker, checkers


@pytest.mark.parametrize("name", checkers.names())
def test_an_anomaly_is_explained_under_every_heading(name: str) -> None:
    headings = [heading for heading, _ in sections(anomaly(name))]
    assert headings == [
        *("what it means", "for example", "how it comes about", "how it is decided", "what a claim allows"),
        *(["what may come with it"] if checkers.get(name).comes_with else []),
        *("what stops it", "read on"),
    ]


def test_what_claims_allow_is_explained() -> None:
    of = {
        name: dict(sections(anomaly(name)))["what a claim allows"]
        for name in ("lost-write", "unexplained", "stale-tail")
    }
    assert of["lost-write"] == ("With delivery: at-most-once, a loss in a batch that a fault struck.",)
    assert of["unexplained"] == ("Nothing.",)
    assert of["stale-tail"] == ("With liveness: none, all of it.",)


def test_the_list_names_every_anomaly_and_the_command_for_more() -> None:
    text = explained(None, as_json=False)
    assert all(one.name in text for one in anomalies())
    assert "onceproof explain ANOMALY" in text
    assert {one["name"] for one in json.loads(explained(None, as_json=True))["anomalies"]} == set(checkers.names())


def test_an_explanation_fits_a_terminal() -> None:
    text = explained("duplicate", as_json=False)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("duplicate\n\nwhat it means\n")
    explanation = json.loads(explained("duplicate", as_json=True))
    assert explanation["anomaly"] == "duplicate" and explanation["causes"] and explanation["sources"]
    assert (
        explanation["allowed"][0]["claim"] == {"delivery": "at-least-once"}
        and "torn-batch" in explanation["comes_with"]
    )


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'duplicate'"):
        explained("duplicat", as_json=False)


def test_the_explain_command() -> None:
    runner = CliRunner()
    assert "torn-batch" in runner.invoke(app, ["explain"]).stdout
    assert runner.invoke(app, ["explain", "torn-batch"]).stdout.startswith("torn-batch\n")
    unknown = runner.invoke(app, ["explain", "torn-bach"])
    assert unknown.exit_code == 2 and "did you mean 'torn-batch'" in unknown.output


def test_a_checker_of_another_package_needs_no_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(Checker):
        meaning = "what only they look for"

    checkers.names()  # loads the registered checkers before another one is added
    monkeypatch.setattr(checkers, "_items", {("theirs",): Theirs})
    assert [heading for heading, _ in sections(anomaly("theirs"))] == ["what it means", "what a claim allows"]
