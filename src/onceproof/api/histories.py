"""Make a run directory from data that onceproof did not record, for `check` to judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onceproof.api.runs import RUNS
from onceproof.base.paths import expanded
from onceproof.imports import Sources
from onceproof.imports import import_history as import_sources


def import_history(
    scenario: str | Path,
    *,
    inputs: Mapping[str, str | Path] | None = None,
    outputs: Mapping[str, str | Path] | None = None,
    tables: Mapping[str, str | Path] | None = None,
    kafka: str | None = None,
    postgres_env: str | None = None,
    drained: bool = True,
    runs_dir: str | Path = RUNS,
) -> Path:
    """Import a history, and return its run directory.

    ``inputs``, ``outputs`` and ``tables``: name of the topic, output or static table -> file. What has no file is read from
    the Kafka at ``kafka`` and from the Postgres whose URI is in the environment variable ``postgres_env``. ``drained``: the
    job has processed all of the input.

    Raises `UsageError` for a source that cannot be imported, `ScenarioError`, and `HistoryError` for a service that cannot be
    read.
    """
    sources = Sources(_paths(inputs), _paths(outputs), _paths(tables), kafka, postgres_env)
    return import_sources(Path(scenario), sources, runs_dir=Path(runs_dir), drained=drained)


def _paths(given: Mapping[str, str | Path] | None) -> dict[str, Path]:
    return {name: expanded(path) for name, path in (given or {}).items()}
