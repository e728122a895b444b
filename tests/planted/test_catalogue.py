"""The catalogue of planted bugs: it can be read, each of its scenarios is valid, and what is wrong in an entry is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onceproof.base.errors import UsageError
from onceproof.planted import catalogue
from onceproof.planted.catalogue import Bug, PlantedBug
from onceproof.planted.mutants import Mutant, mutant_of, mutants
from onceproof.scenario_files.shipped import names

ENTRY = """
[[bug]]
name = "one"
wrong = "It is broken."
belief = "It is not."
fault = "crash driver"
anomaly = "duplicate"
batches = [2]
scenario = "naive-append"
remedy = "driver-crash-postgres"
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    text = ENTRY
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "bugs-own.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def planted() -> list[PlantedBug]:
    """All planted bugs: each of their scenarios is valid."""
    return catalogue.load(catalogue.read().values())


def test_there_are_many_planted_bugs(planted: list[PlantedBug]) -> None:
    assert len(planted) == len(catalogue.read()) > 40


def test_every_remedy_runs_under_the_faults_of_its_bug(planted: list[PlantedBug]) -> None:
    for each in planted:
        assert each.remedy.scenario.chaos == each.loaded.scenario.chaos, each.bug.name


def test_every_planted_scenario_is_used(planted: list[PlantedBug]) -> None:
    """By a bug, or as a base."""
    loaded = [scenario for each in planted for scenario in (each.loaded, each.remedy)]
    used = {file.file for scenario in loaded for file in scenario.source.files}
    there = {path.resolve() for path in catalogue.folder().rglob("*.yaml")}
    assert there - {Path(file).resolve() for file in used} == set()


def test_every_named_batch_is_reached(planted: list[PlantedBug]) -> None:
    for each in planted:
        last = each.loaded.scenario.guaranteed_batches()
        assert all(1 <= batch <= last for batch in each.bug.batches), each.bug.name


def test_planted_scenarios_are_not_among_the_shipped_ones() -> None:
    assert not {path.stem for path in catalogue.folder().glob("*.yaml")} & set(names())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('anomaly = "duplicate"', 'anomaly = "duplicates"'),
            "one: unknown anomaly 'duplicates'; did you mean 'duplicate'?",
        ),
        (("batches = [2]", "batches = []"), "one: name either batches or, if there is none, the reason as no_batch"),
        (("batches = [2]", 'batches = ["2"]'), "one: batches.0: Input should be a valid integer"),
        (('fault = "crash driver"', 'fault = "crash"'), "one: fault 'crash' is not 'KIND TARGET' or 'none'"),
        (('remedy = "driver-crash-postgres"', ""), "one: name either a mutant or, for another scenario, its remedy"),
        (('wrong = "It is broken."', ""), "one: wrong: Field required"),
        (('name = "one"', 'name = "One bug"'), "One bug: name: String should match pattern"),
        (("[[bug]]", "[bug]"), "bug is not a list of tables"),
        (("[[bug]]", "[[bugs]]"), "unknown table 'bugs'"),
        (("[[bug]]", "[[bug]"), "is not TOML"),
    ],
)
def test_what_is_wrong_in_an_entry_is_said(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        catalogue.read(written(tmp_path, change))
    assert message in wrong.value.message
    assert "bugs-own.toml" in wrong.value.message


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "bugs-more.toml").write_text(ENTRY)
    with pytest.raises(UsageError, match="one is there twice"):
        catalogue.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('fault = "crash driver"', 'fault = "crash broker"'), "naive-append.yaml has no fault 'crash broker'"),
        (('scenario = "naive-append"', 'scenario = "naive-apend"'), "unknown scenario 'naive-apend'"),
        (('remedy = "driver-crash-postgres"', 'remedy = "nothing"'), "unknown scenario 'nothing'"),
        (('remedy = "driver-crash-postgres"', 'mutant = "kafka:none"'), "unknown mutant 'kafka:none'"),
    ],
)
def test_what_is_wrong_with_its_scenarios_is_said(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    bugs = catalogue.read(written(tmp_path, change))
    with pytest.raises(UsageError) as wrong:
        catalogue.load(bugs.values(), tmp_path)
    assert message in wrong.value.message


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="naive-append"):
        catalogue.chosen(catalogue.read(), ["naive-apend"])


def test_a_remedy_gets_the_faults_of_the_bug(tmp_path: Path) -> None:
    bugs = catalogue.read(
        written(
            tmp_path,
            ('scenario = "naive-append"', 'scenario = "lost-ack-naive"'),
            ('"crash driver"', '"lost-ack postgres"'),
        )
    )
    (planted,) = catalogue.load(bugs.values(), tmp_path)
    assert [fault.fault for fault in planted.remedy.scenario.chaos] == ["lost-ack"]
    assert planted.remedy.scenario.pipeline.command[1].endswith("flights_to_postgres.py")


@pytest.mark.parametrize("mutant", mutants().values(), ids=lambda mutant: mutant.title)
def test_a_mutants_text_is_in_its_file_once(mutant: Mutant, tmp_path: Path) -> None:
    mutant.copy_sinks(tmp_path / "sinks")


def test_a_mutant_whose_text_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kafka:x: kafka.py holds 0 times the text 'never there'"):
        Mutant("x", "kafka", "kafka.py", "never there", "", "").copy_sinks(tmp_path / "sinks")


def test_a_job_imports_the_changed_sinks_from_its_python_path(tmp_path: Path) -> None:
    path = mutant_of("kafka:transactional-id-random").make_path(tmp_path / "changed")
    script = (
        "import inspect, onceproof.sinks.kafka_transaction as k;"
        " print(k.__file__); print('time_ns()}' in inspect.getsource(k))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(path)}
    )
    where, changed = done.stdout.split()
    assert Path(where).is_relative_to(path) and changed == "True"


def test_the_broken_scenario_of_a_mutant_has_its_python_path(tmp_path: Path) -> None:
    bug = catalogue.read()["kafka-random-id"]
    (planted,) = catalogue.load([bug])
    broken = planted.broken(tmp_path)
    assert broken.scenario.pipeline.env["PYTHONPATH"] == str(tmp_path / bug.name)
    assert "PYTHONPATH" not in planted.remedy.scenario.pipeline.env
    assert (tmp_path / bug.name / "onceproof" / "sinks" / "kafka.py").is_file()


def test_a_bug_that_shows_in_any_run_names_no_fault() -> None:
    assert [bug.name for bug in catalogue.read().values() if bug.shows_without_fault and bug.mutant] == []
    assert isinstance(catalogue.read()["two-actions"], Bug)
