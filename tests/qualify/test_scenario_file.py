from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceproof.qualify.scenario_file import Template, named_files
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find, names

FAULTS = [{"fault": "crash", "target": "driver", "at": {"batch": 2, "point": "after-sink-commit"}}]


@pytest.mark.parametrize("name", [name for name in names() if load(find(name)).pipeline.consumers is None])
def test_every_shipped_scenario_can_be_written_to_another_folder(name: str, tmp_path: Path) -> None:
    original = load(find(name))
    chunks = {spec.topic: 6 for spec in original.input}
    text = Template(find(name)).text(about="of a: test", faults=FAULTS, chunks=chunks, deadline_s=77, seed=5)
    path = tmp_path / "other.yaml"
    path.write_text(text)
    made = load(path)
    assert (made.name, made.about, made.seed, made.limits.deadline_s) == ("other", "of a: test", 5, 77)
    assert [spec.at.batch for spec in made.chaos] == [2]
    assert [spec.chunks for spec in made.input] == [6] * len(original.input)
    here = str(find(name).resolve().parent)
    outputs = {
        key: json.loads(each.model_dump_json().replace("{here}", here)) for key, each in original.outputs.items()
    }
    assert {key: json.loads(each.model_dump_json()) for key, each in made.outputs.items()} == outputs
    assert (made.claim, made.stack) == (original.claim, original.stack)
    assert made.expect.verdict == "held"
    assert "{here}" not in text


def test_comments_and_formatting_of_the_user_are_kept(tmp_path: Path) -> None:
    text = Template(find("foreign-psycopg-upsert")).text(about="x", faults=[])
    assert "# Flights are keyed by their plane" in text
    assert "sql: |\n      CREATE TABLE last_seen (" in text
    assert "chaos" not in text


def test_a_template_is_not_changed_by_making_a_text() -> None:
    template = Template(find("foreign-psycopg-upsert"))
    before = template.text(about="x", faults=[])
    template.text(about="y", faults=FAULTS, chunks={"flights": 2}, deadline_s=1, seed=1)
    assert template.text(about="x", faults=[]) == before


def test_the_files_that_a_scenario_names_are_found(tmp_path: Path) -> None:
    for name in ("job.py", "my data.jsonl", "expected.py", "unnamed.py"):
        (tmp_path / name).touch()
    texts = [
        "{here}/job.py",
        "--files={here}/my data.jsonl",
        "{here}/expected.py:departures",
        "{here}/gone.py",
        "{here}/",
    ]
    (tmp_path / "s.yaml").write_text(f"pipeline: {{command: {texts!r}}}\n")
    assert set(named_files(tmp_path / "s.yaml")) == {"job.py", "my data.jsonl", "expected.py"}
