"""A scenario as one text without a base, for `validate --resolved` and `qualify`; and the shipped files, which repeat nothing of their bases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.comments import CommentedMap
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.qualify.scenario_file import Template, named_files
from onceproof.scenario_files import whole
from onceproof.scenario_files.document import read
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.load import read as read_merged
from onceproof.scenario_files.merge import NOT_INHERITED, merge
from onceproof.scenario_files.shipped import find, folder, names

Write = Callable[..., Path]


@pytest.mark.parametrize("name", names())
def test_the_resolved_text_of_a_shipped_scenario_loads_as_the_same_scenario(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["validate", "--resolved", name])
    path = tmp_path / f"{name}.yaml"
    path.write_text(done.output)
    assert done.exit_code == 0 and "base" not in read(path).data and "{here}" not in done.output
    one, other = (load(each).model_dump_json(by_alias=True) for each in (find(name), path))
    here = str(folder().resolve())  # in the source tree, the package's folder is a link
    assert one.replace("{here}", here).replace(str(folder()), here) == other.replace(str(folder()), here)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
_ODD = st.sampled_from(
    ["null", "~", "0x1f", "1_000", "2013-01-02", "<<", "*a", "&a", "!x", "%", "@", "?0", ":0", "- a"]
)
_PROSE = st.lists(st.text("ab-#:'\"{>|é,.", min_size=1, max_size=30), min_size=1, max_size=30).map(" ".join)
_NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXTS | st.text("ab \n{}:#-'\"|,[]\t", max_size=60) | _ODD | _PROSE
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS | _ODD, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abc"), _VALUES, min_size=1, max_size=3))
def test_any_written_values_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(whole.text(CommentedMap({key: whole.styled(value) for key, value in data.items()})).encode())
    assert read(path).data == data


def test_resolved_takes_one_scenario_and_reports_its_problems(write: Write) -> None:
    done = CliRunner().invoke(app, ["validate", "--resolved", "naive-append", "fan-out"])
    assert done.exit_code == 2 and "--resolved prints one scenario, and 2 are named" in done.stderr
    wrong = write().with_name("child.yaml")
    wrong.write_text("base: ./mine.yaml\nclaim: {order: x}\n")
    done = CliRunner().invoke(app, ["validate", "--resolved", str(wrong)])
    assert done.exit_code == 2 and "child.yaml:2:16: unknown order 'x'" in done.stderr and done.stdout == ""
    done = CliRunner().invoke(app, ["validate", "--resolved", "--json", "naive-append"])
    assert json.loads(done.stdout)["resolved"] == resolved(find("naive-append"))


def test_a_file_without_a_base_keeps_its_comments(write: Write) -> None:
    assert "# Flights are keyed by their plane" in resolved(find("foreign-psycopg-upsert"))


def test_files_with_one_text_are_read_once_and_stay_apart(write: Write) -> None:
    """What is made of one of them changes neither it nor the others, and each reports its own places."""
    one, other = write(("about: a job", "name: one\nabout: a job"), name="one"), write(name="other")
    other.write_text(one.read_text())
    before = read(one)
    assert whole.text(whole.tree(read_merged(one))) == whole.text(whole.tree(read_merged(one)))
    before.data["about"] = "changed"
    again = read(other)
    assert again.tree["name"] == "one" and again.data["about"] == "a job"
    assert [made.place(("stack",)).file for made in (before, again)] == [str(one), str(other)]
    with pytest.raises(ScenarioError, match=r"other\.yaml:1:"):
        load(other)


def test_the_plan_names_the_base() -> None:
    done = CliRunner().invoke(app, ["plan", "naive-append"])
    assert "\nbase        driver-crash-postgres, merged in" in done.output
    for name, base in {"naive-append": "driver-crash-postgres", "fan-out": None}.items():
        assert json.loads(CliRunner().invoke(app, ["plan", name, "--json"]).stdout)["base"] == base


def test_a_qualification_writes_scenarios_without_a_base_and_watches_the_base(write: Write, tmp_path: Path) -> None:
    base = write()
    path = tmp_path / "team" / "child.yaml"
    path.parent.mkdir()
    path.write_text("base: ../mine.yaml\nseed: 4\n")
    text = Template(path).text(about="x", faults=[])
    assert "base:" not in text and "seed: 4" in text
    copied = tmp_path / "copied.yaml"
    copied.write_text(text)
    assert load(copied).pipeline.command[1] == load(path).pipeline.command[1]
    watched = {file.resolve() for file in named_files(path).values()}
    assert watched == {base.resolve(), (tmp_path / "job.py").resolve()}


# What is shipped


def files() -> list[Path]:
    return sorted([*folder().glob("*.yaml"), *folder().glob("base/*.yaml")])


def repeated(own: Any, inherited: Any, loc: str = "") -> Iterator[str]:
    if isinstance(own, dict) and isinstance(inherited, dict):
        for name in own.keys() & inherited.keys():
            yield from repeated(own[name], inherited[name], f"{loc}.{name}")
    elif own == inherited:
        yield loc


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_no_shipped_file_repeats_a_value_of_its_base(path: Path) -> None:
    made = read_merged(path)
    own = {key: value for key, value in made.files[0].data.items() if key not in NOT_INHERITED}
    if len(made.files) > 1:
        assert list(repeated(own, merge(made.files[1:]).data)) == []
        assert len(made.changes) > 0, "the file changes nothing"


def test_the_shipped_files_are_short() -> None:
    assert len(names()) >= 100
    assert sum(len(path.read_text().splitlines()) for path in files()) <= 18 * len(names())


def test_base_files_are_all_used_and_are_not_scenarios_themselves() -> None:
    used = {Path(file.file).resolve() for name in names() for file in read_merged(find(name)).files}
    assert {path.resolve() for path in files()} == used
    for path in folder().glob("base/*.yaml"):
        assert path.stem not in names() and not {"about", "expect", "name"} & read(path).data.keys()
