"""Refuses or describes a path that was given as a run directory but is not one, with a hint at what was meant."""

from __future__ import annotations

from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.timeline import EVENTS
from onceproof.base.words import times

_NAME_ONE = "name the directory of a run, as printed by `onceproof run`"
_SAMPLE = 200


def check_exists(path: Path) -> None:
    """Raise `UsageError` if nothing is at the path that was given as a run directory."""
    if not path.exists():
        raise UsageError(
            f"run directory {str(path)!r} does not exist", hint="the report of each run names its directory"
        )


def describe_path(path: Path) -> tuple[str, str]:
    """What is at ``path``, and a hint. Looks at names only, and opens no file."""
    try:
        if not path.is_dir():
            return _file(path)
        names = sorted(entry.name for entry in path.iterdir())[:_SAMPLE]
    except OSError as error:
        return f"it cannot be opened: {error.strerror}", _NAME_ONE
    if not names:
        return "it is an empty folder", _NAME_ONE
    if "qualification.json" in names:
        return "it is the directory of a qualification", f"its runs are in {path / 'runs'}: name one of them"
    if (path.parent / "run.json").is_file() and path.name in ("history", "logs", "checkpoint", "slices"):
        return f"it is a folder inside the run {path.parent}", f"onceproof check {path.parent}"
    if runs := [name for name in names if (path / name / "run.json").is_file()]:
        shown = "latest" if "latest" in runs else runs[-1]
        return f"it is a folder that holds {times(len(runs), 'run')}", f"name one, for example {path / shown}"
    if "offsets" in names and "commits" in names:
        return "it is the checkpoint of a Spark query", _NAME_ONE
    if any(name.endswith((".parquet", ".jsonl", ".ndjson")) for name in names):
        return "it is a folder of data files", "`onceproof import` makes a run from your files"
    return f"there is no run.json in it; it holds {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}", _NAME_ONE


def _file(path: Path) -> tuple[str, str]:
    if not path.exists():
        what = "it is a link to nothing" if path.is_symlink() else "it does not exist"
        return what, "the report of a run names its directory"
    if path.suffix in (".yaml", ".yml"):
        return "it is a YAML file", f"if it is a scenario, `onceproof run {path}` runs it"
    if path.suffix in (".parquet", ".jsonl", ".ndjson"):
        return "it is a data file", "`onceproof import` makes a run from your files"
    if path.name in ("run.json", "verdict.json", EVENTS):
        return "it is a file of a run", f"onceproof check {path.parent}"
    return "it is a file, but a run is a directory", _NAME_ONE
