"""Opens a stored history, and refuses one that is missing, damaged or of another version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import AGAIN, RunRecord
from onceproof.history.schema import LATER, TABLES, VERSION, VERSION_KEY
from onceproof.history.version import JUDGE_THERE


@dataclass(frozen=True)
class History:
    """A stored run whose files are all there. Only their footers have been read."""

    run_dir: Path
    run: RunRecord
    tables: Mapping[str, Path]
    """Table of `onceproof.history.schema` -> its Parquet file."""
    static: Mapping[str, Path]
    """Static table of a data set -> its Parquet file."""
    footers: Mapping[str, pq.FileMetaData]
    """Table of `onceproof.history.schema` -> the footer of its file, as it was when the history was opened."""


def open_history(run_dir: Path) -> History:
    """Find every file and check its footer. Raises `HistoryError` with the file and a hint."""
    run = RunRecord.read(run_dir)
    folder = run_dir / "history"
    tables = {name: folder / f"{name}.parquet" for name in TABLES}
    footers = {name: _check(path, TABLES[name]) for name, path in tables.items()}
    static = {path.stem: path for path in sorted((folder / "tables").glob("*.parquet"))}
    for path in static.values():
        _footer(path)
    return History(run_dir, run, tables, static, footers)


def _check(path: Path, expected: pa.Schema) -> pq.FileMetaData:
    footer, schema = _footer(path)
    found = (schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if found != str(VERSION):
        raise HistoryError(
            f"{path} has history version {found}; this onceproof reads version {VERSION}", hint=JUDGE_THERE
        )
    earlier = pa.schema([field for field in expected if field.name not in LATER])
    if not any(schema.equals(known, check_metadata=False) for known in (expected, earlier)):
        theirs, ours = set(map(str, schema)), set(map(str, expected))
        difference = f"it lacks {sorted(ours - theirs)} and has {sorted(theirs - ours)} instead"
        raise HistoryError(f"{path} has other columns than a history of version {VERSION}: {difference}", hint=AGAIN)
    return footer


def _footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    try:
        footer = pq.read_metadata(path)
        return footer, footer.schema.to_arrow_schema()
    except FileNotFoundError:
        raise HistoryError(f"the history is incomplete: {path} is missing", hint=_incomplete(path)) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} is damaged or cut off: {error}", hint=AGAIN) from error


def _incomplete(path: Path) -> str:
    if path.with_name(path.name + ".part").exists():
        return "the run was killed before it had collected its history; run the scenario again"
    return AGAIN
