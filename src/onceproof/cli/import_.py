"""The command `import`: parses its NAME=FILE options and prints the run directory."""

from __future__ import annotations

import json
from pathlib import Path

from onceproof.api.histories import import_history
from onceproof.base.errors import UsageError
from onceproof.base.paths import expanded


def import_run(
    scenario: Path,
    inputs: list[str] | None,
    outputs: list[str] | None,
    tables: list[str] | None,
    kafka: str | None,
    postgres_env: str | None,
    not_drained: bool,
    runs: Path,
    as_json: bool,
) -> str:
    """Import, and return a message with the run directory and how to judge it. Raises as `import_history`."""
    run = import_history(
        scenario,
        inputs=_files("--input", inputs),
        outputs=_files("--output", outputs),
        tables=_files("--table", tables),
        kafka=kafka,
        postgres_env=postgres_env,
        drained=not not_drained,
        runs_dir=runs,
    )
    return json.dumps({"run": str(run)}) if as_json else f"run: {run}\njudge it: onceproof check {run}"


def _files(option: str, given: list[str] | None) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for text in given or []:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UsageError(f"{option} {text!r} is not NAME=FILE")
        if name in files:
            raise UsageError(f"{option} {name!r} is given twice", hint="name one file for each")
        files[name] = expanded(file)
    return files
