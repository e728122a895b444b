"""A damaged scenario file is reported as wrong usage, with its place and quickly, never with a traceback."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.scenario_files.load import resolved
from onceproof.scenario_files.shipped import find, folder

#: A guard against hanging; a usual answer takes a few tenths of it, on a busy machine too.
_PATIENCE_S = 10.0
#: The gate tries every third mutation, `tox -e full` all. This third has each of `_VALUES` and `_LINES`.
_PARTS, _OF_THE_GATE = 3, 1

_SHIPPED = (
    "effectively-once",
    "foreign-jdbc-append",
    "hourly-delays",
    "speculation",
    "amqp-redelivery-reorders",
    "retry-topic-reorders",
)
#: Texts that replace a value.
_VALUES = (
    "2013-02-30",
    "!!int abc",
    "!!timestamp 1",
    "!!binary '$'",
    "!!python/object:os.system x",
    "!nothing {}",
    "1" * 5000,
    "0x" + "f" * 5000,
    "1e999",
    ".nan",
    "-.inf",
    "-1",
    "1e9",
    "&y {<<: *y}",
    "&z [*z]",
    "*nobody",
    "{<<: 1}",
    "[" * 300 + "]" * 300,
    "{a: " * 60 + "1" + "}" * 60,
    "~nosuchuser/x",
    "x" * 5000,
    '"{here}/' + "x" * 300 + '.py"',
    '"a\\0b"',
    '"\\ud800"',
    '"\\U0010ffff\\u202e"',
    "null",
    "''",
    "' '",
    "true",
    "[]",
    "{}",
    "{? [a, b] : c}",
    "{1: a, null: b, 2013-01-01: c}",
    '"../up"',
    '"{kafkaa}"',
    "SELECT",
    "|",
    "%",
    "@",
    "`",
)
_LINES = (
    "",
    "- ",
    "  - x",
    "\tx: 1",
    "? ",
    ": ",
    "...",
    "---",
    "%YAML 9.9",
    "x: &a *a",
    "<<: *b",
    "\x07",
    "\ufeff",
    "x",
)
_VALUE = re.compile(r"^(\s*(?:- )?[\w-]+: )\S.*$")
_INNER = re.compile(r"([{,] ?[\w-]+: )([^{}\[\],]+)")


def mutations() -> Iterator[tuple[str, str]]:
    """Name and text of each mutation: values are replaced by some of `_VALUES`; lines are repeated, cut, indented or replaced by `_LINES`."""
    number = 0
    whole = {name: resolved(find(name)) for name in _SHIPPED}
    for name, text in {**whole, "based": find("effectively-once").read_text()}.items():
        lines = text.splitlines()
        for index, line in enumerate(lines):
            changes = [line + "\n" + line, _LINES[number // 4 % len(_LINES)], line[: len(line) // 2], f"  {line}"]
            new = [changes[number % len(changes)]]
            if _VALUE.match(line):
                new += [_VALUE.sub(lambda m, v=value: m[1] + v, line) for value in _next(number, 3)]
            for inner in _INNER.finditer(line):
                number += 1
                new.append(line[: inner.start(2)] + _next(number, 1)[0] + line[inner.end(2) :])
            for changed in new:
                number += 1
                yield f"{name}-{index + 1}-{number}", "\n".join([*lines[:index], changed, *lines[index + 1 :]]) + "\n"


def _next(number: int, count: int) -> list[str]:
    return [_VALUES[(number * 7 + step * 13) % len(_VALUES)] for step in range(count)]


def answer(path: Path) -> str:
    """What `validate` prints for the file, if it refuses it; it must answer quickly and without a traceback."""
    begun = time.monotonic()
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert time.monotonic() - begun < _PATIENCE_S
    assert done.exit_code in (0, 2), done.output
    assert "Traceback" not in done.output
    assert len(done.output) < 20_000
    done.output.encode()
    return done.stderr if done.exit_code else ""


@pytest.fixture
def scenarios(tmp_path: Path) -> Path:
    """A folder with links to all that is next to the shipped scenarios."""
    for entry in folder().iterdir():
        if entry.suffix != ".yaml":
            (tmp_path / entry.name).symlink_to(entry.resolve())
    return tmp_path


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=() if part == _OF_THE_GATE else pytest.mark.full) for part in range(_PARTS)]
)
def test_mutated_scenarios_are_answered_quickly_and_mostly_refused(scenarios: Path, part: int) -> None:
    path = scenarios / "mutated.yaml"
    refused = 0
    some = list(mutations())[part::_PARTS]
    wrong = []
    for name, text in some:
        path.write_text(text, encoding="utf-8")
        try:
            refused += bool(answer(path))
        except AssertionError as problem:
            wrong.append(f"{name}: {str(problem)[-400:]}")
    assert not wrong, "\n".join(wrong)
    assert len(some) >= 100 and refused > len(some) * 0.6
