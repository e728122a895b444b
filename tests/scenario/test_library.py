"""The list of shipped scenarios parses only what each file says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.scenario_files import document
from onceproof.scenario_files.library import entries
from onceproof.scenario_files.shipped import names, paths

KEYS = ("about", "phenomena", "expect")


def test_every_shipped_scenario_is_listed() -> None:
    assert [one.name for one in entries()] == names()


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_part_of_a_file_says_what_the_whole_file_says(path: Path) -> None:
    whole, part = document.read(path).data, document.read(path, only=KEYS).data
    assert part == {key: value for key, value in whole.items() if key in KEYS}


def test_the_places_in_a_part_are_those_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "# a comment\npipeline:\n  args: {about: 1}\nabout: >-\n  Two\n\n  lines.\nexpect: {verdict: held}\n"
    )
    part = document.read(path, only=KEYS)
    assert part.data == {"about": "Two\nlines.", "expect": {"verdict": "held"}}
    assert (part.place(("expect", "verdict")).line, part.place(("about",)).line) == (8, 4)


def test_a_mistake_in_a_part_is_reported_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("pipeline: {}\nexpect: {verdict: held\n")
    with pytest.raises(ScenarioError, match=r"mine\.yaml:3"):
        document.read(path, only=KEYS)
