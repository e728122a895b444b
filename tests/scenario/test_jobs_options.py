"""Every scenario passes only options that its job has. Without this test only real runs would notice a removed option."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.scenario.model import DRIVER, WORKER
from onceproof.scenario_files.load import load

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent.parent


def commands() -> Iterator[Any]:
    """Scenario, job and options of each command whose job reads options."""
    for path in sorted([*ROOT.glob("scenarios/*.yaml"), *ROOT.glob("tests/scenarios/*.yaml")]):
        scenario = load(path)
        for at, part in (("pipeline", scenario.pipeline), ("oracle", scenario.oracle)):
            command = getattr(part, "command", WORKER)
            if command != WORKER and command[: len(DRIVER)] != DRIVER:
                _python, job, *options = command
                file = Path(job.replace("{here}", str(path.parent)))
                if "argparse" in file.read_text(encoding="utf-8"):
                    yield pytest.param(file, options, id=f"{path.stem}-{at}")


def parser_of(job: Path) -> argparse.ArgumentParser:
    """The parser of the module, made by running only its statements that name ``parser``, without its imports."""
    source = ast.parse(job.read_text(encoding="utf-8"))
    plain = (ast.Assign, ast.Expr, ast.For)
    building = [part for part in source.body if isinstance(part, plain) and "parser" in _names(part)]
    made: dict[str, Any] = {"argparse": argparse, "__doc__": None}
    for part in building:
        if "parse_args" not in _names(part):
            exec(compile(ast.Module([part], []), str(job), "exec"), made)
    parser: argparse.ArgumentParser = made["parser"]
    return parser


def _names(part: ast.stmt) -> set[str]:
    """The names and attributes in a statement."""
    parts = list(ast.walk(part))
    return {n.id for n in parts if isinstance(n, ast.Name)} | {n.attr for n in parts if isinstance(n, ast.Attribute)}


@pytest.mark.parametrize(("job", "options"), list(commands()))
def test_a_scenario_passes_only_options_that_its_job_has(
    job: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        parser_of(job).parse_args(options)
    except SystemExit:
        pytest.fail(f"{job.name} refuses its options: {capsys.readouterr().err.splitlines()[-1]}")
