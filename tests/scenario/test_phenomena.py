"""Each phenomenon is shown by naive scenarios and by a remedy, or listed as not shown yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.judge.checker import checkers
from onceproof.scenario.phenomena import PHENOMENA, of
from onceproof.scenario.phenomenon import GROUPS
from onceproof.scenario_files.library import Entry, entries
from onceproof.scenario_files.load import load
from onceproof.scenario_files.rows import Row, rows

pytestmark = pytest.mark.sources

#: Shipped scenarios that show no phenomenon -> why.
NONE = {"foreign-no-checkpoint": "it shows which job cannot be tested; its verdict is inconclusive"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_a_phenomenon_is_shown_or_listed_as_missing(row: Row) -> None:
    if row.case.missing:
        assert row.lacks, f"{row.name} has a naive scenario and a remedy: remove what its `missing` says"
    else:
        assert row.lacks == []


def test_every_scenario_names_what_it_shows() -> None:
    assert {one.name for one in entries() if not one.phenomena} == set(NONE)


@pytest.mark.parametrize("one", [one for one in entries() if one.name not in NONE], ids=lambda one: one.name)
def test_a_scenario_shows_what_it_names(one: Entry) -> None:
    """A violated one shows an anomaly of each phenomenon that it names, and names cases where there are several."""
    for name in one.phenomena:
        phenomenon, cases = of(name)
        if one.verdict == "violated":
            assert len(cases) == 1, f"name the case of {phenomenon.id}"
            assert set(one.anomalies) & set(cases[0].anomalies), f"{name} shows {cases[0].anomalies}"
        else:
            assert one.verdict == "held"
    assert len(set(one.phenomena)) == len(one.phenomena)


def test_the_list_is_consistent() -> None:
    ids = [one.id for one in PHENOMENA]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids, key=lambda id_: (id_[0], int(id_[1:])))
    assert {id_[0] for id_ in ids} == set(GROUPS)
    for one in PHENOMENA:
        named = [case.name for case in one.cases]
        assert len(set(named)) == len(named)
        assert all(named) or len(named) == 1, one.id
        assert {anomaly for case in one.cases for anomaly in case.anomalies} <= set(checkers.names())


def test_an_unknown_phenomenon_is_reported_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: driver-crash-postgres\nphenomena: [B1, A3/slwo]\n")
    with pytest.raises(ScenarioError) as refused:
        load(file)
    (problem,) = refused.value.problems
    assert (problem.place.line, problem.place.column) == (2, 17)
    assert "did you mean 'A3/slow'" in problem.message


def test_what_the_base_shows_is_not_inherited(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: driver-crash-postgres\n")
    assert load("scenarios/driver-crash-postgres.yaml").phenomena == ["B1"]
    assert load(file).phenomena == []


def test_the_table_is_listed_with_the_last_results(tmp_path: Path) -> None:
    def stored(name: str, verdict: str) -> None:
        (tmp_path / name).mkdir()
        claim = {"delivery": "effectively-once", "order": "per-key", "atomicity": "none"}
        document = {"scenario": "naive-append", "verdict": verdict, "claim": claim, "reasons": []}
        (tmp_path / name / "verdict.json").write_text(json.dumps(document))

    stored("naive-append-20260101T000000-aaaa", "violated")
    stored("naive-append-20260102T000000-aaaa", "inconclusive")
    (tmp_path / "naive-append-20260103T000000-aaaa").mkdir()  # in progress
    (tmp_path / "notes.txt").write_text("not a run")
    done = CliRunner().invoke(app, ["list", "--by", "row", "--runs", str(tmp_path), "--json"])
    listed = {row["row"]: row for row in json.loads(done.stdout)["rows"]}
    assert {"name": "naive-append", "last": "inconclusive"} in listed["B1"]["naive"]
    assert {"name": "driver-crash-postgres", "last": None} in listed["B1"]["remedies"]
    text = CliRunner().invoke(app, ["list", "--by", "row", "--runs", str(tmp_path)]).stdout
    assert "naive-append (last run: inconclusive)" in text
    for missing in (row.case.missing for row in rows() if row.case.missing):
        assert missing in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--by", "column"], "--by: there is no order 'column'"),
        (["list", "faults", "--by", "row"], "--by row lists scenarios, not 'faults'"),
        (["list", "scenarios", "naive-append", "--by", "row"], "--by row lists scenarios, not 'naive-append'"),
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert message in done.stderr
