"""Finds scenario files: by path, or by the name of a shipped one. Reads none of them, and imports little: commands start with it."""

from __future__ import annotations

import shlex
from importlib.resources import files as resources
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.paths import expanded, is_file, is_folder
from onceproof.base.registry import suggest
from onceproof.scenario.problem import shortened


def folder() -> Path:
    """The folder of the shipped scenarios."""
    return Path(str(resources("onceproof"))) / "scenarios"


def paths() -> list[Path]:
    """The files of the shipped scenarios, by name."""
    return sorted(folder().glob("*.yaml"), key=lambda path: path.stem)


def names() -> list[str]:
    """Names of the shipped scenarios."""
    return [path.stem for path in paths()]


def find(name_or_path: str | Path) -> Path:
    """The file of a scenario: a path to a YAML file, or the name of a shipped one. Raises `UsageError`."""
    text = str(name_or_path)
    path = expanded(name_or_path)
    if is_file(path) and path.suffix == ".py":
        hint = f"write a scenario for this job: onceproof init -- python {shlex.quote(text)}"
        raise UsageError(f"{shortened(text)!r} is a Python file, not a scenario", hint=hint)
    if is_file(path):
        return path
    if is_path(text):
        near = sorted(entry.name for entry in path.parent.glob("*.y*ml")) if is_folder(path.parent) else []
        hint = suggest(path.name, near) if near else f"there is no YAML file in {path.parent.absolute()}"
        raise UsageError(f"scenario file {shortened(text)!r} does not exist", hint=hint)
    if (shipped := find_shipped(text)) is None:
        raise UsageError(
            f"unknown scenario {shortened(text)!r}; {suggest(text, names())}", hint="`onceproof list` shows all of them"
        )
    return shipped


def find_shipped(name: str) -> Path | None:
    """The file of the shipped scenario of that name, which has no slash. Looks at one file: listing the folder takes longer."""
    path = folder() / f"{name}.yaml"
    return path if is_file(path) else None


def is_path(text: str) -> bool:
    """Whether a scenario is named by the path of a file. Else it is the name of a shipped one."""
    return text.endswith((".yaml", ".yml")) or "/" in text
