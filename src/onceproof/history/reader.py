"""Opens a stored history and refuses one that cannot be judged: missing, damaged or of another version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError, NotARun
from onceproof.history import run_files
from onceproof.history import run_record as record
from onceproof.history.not_a_run import what_it_is
from onceproof.history.schema import LATER, TABLES, VERSION, VERSION_KEY


@dataclass(frozen=True)
class History:
    """A stored run whose files were all found whole. Nothing is read yet but their footers."""

    run_dir: Path
    document: Mapping[str, Any]
    """``run.json``."""
    tables: Mapping[str, Path]
    """Table of `onceproof.history.schema` -> its Parquet file."""
    static: Mapping[str, Path]
    """Static table of a data set -> its Parquet file."""


def open_history(run_dir: Path) -> History:
    """Find and check every file. Raises `HistoryError` naming the file and what to do."""
    document = read_document(run_dir)
    folder = run_dir / "history"
    tables = {name: folder / f"{name}.parquet" for name in TABLES}
    for name, path in tables.items():
        _check(path, TABLES[name])
    static = {path.stem: path for path in sorted((folder / "tables").glob("*.parquet"))}
    for path in static.values():
        _footer(path)
    return History(run_dir, document, tables, static)


def read_document(run_dir: Path) -> dict[str, Any]:
    """``run.json`` alone, which is there from a run's beginning, long before its history is.

    Raises `NotARun` where there is none, and `HistoryError` for one that is damaged, has values of the wrong type, or has
    links among its files (`onceproof.history.run_files`).
    """
    path = run_dir / "run.json"
    if not path.is_symlink() and not path.exists():
        what, hint = what_it_is(run_dir)
        raise NotARun(f"{run_dir} is not a run: {what}", hint=hint)
    run_files.refuse_links(run_dir)
    try:
        document = json.loads(run_files.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryError(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    if not isinstance(document, dict) or "scenario" not in document:
        raise HistoryError(f"{path} does not describe a run: it names no scenario", hint=_AGAIN)
    record.check(document, path)
    return document


def _check(path: Path, expected: pa.Schema) -> None:
    schema = _footer(path)
    found = (schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if found != str(VERSION):
        hint = "judge it with the onceproof that wrote it, or run the scenario again"
        raise HistoryError(f"{path} has history version {found}; this onceproof reads version {VERSION}", hint=hint)
    earlier = pa.schema([field for field in expected if field.name not in LATER])
    if not any(schema.equals(known, check_metadata=False) for known in (expected, earlier)):
        theirs, ours = set(map(str, schema)), set(map(str, expected))
        difference = f"lacks {sorted(ours - theirs)}, has instead {sorted(theirs - ours)}"
        raise HistoryError(f"{path} has other columns than a history of version {VERSION}: {difference}", hint=_AGAIN)


def _footer(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except FileNotFoundError:
        raise HistoryError(f"the history is incomplete: there is no {path}", hint=_incomplete(path)) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} is damaged or cut off: {error}", hint=_AGAIN) from error


def _incomplete(path: Path) -> str:
    if path.with_name(path.name + ".part").exists():
        return "the run was killed before it had collected its history; run the scenario again"
    return _AGAIN


_AGAIN = "copy the whole run directory again, or run the scenario again"
