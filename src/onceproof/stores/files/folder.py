"""The files in a folder that Spark writes to, and which of them are committed.

Spark's file sink lists the files of each batch in ``_spark_metadata/N``, and a Spark reader of the folder reads only
listed files: a file that is not listed was never committed. (Every tenth entry, ``N.compact``, repeats all entries
before it.) Without that log, as after ``df.write.mode("append")``, every file counts. Readers ignore names that begin
with ``_`` or ``.``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from onceproof.base.errors import HistoryError

LOG = "_spark_metadata"
_ENTRY = re.compile(r"(\d+)(\.compact)?")
#: All files of one ``df.write`` have the same id in their names.
_WRITE = re.compile(r"-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b")


@dataclass(frozen=True)
class Write:
    """Files that became visible in one step."""

    number: int
    """The number of the log's entry; without a log, from 1 in order of time."""
    time_us: int
    files: tuple[Path, ...]


def data_files(folder: Path) -> list[Path]:
    """Every file that a reader without the log finds, sorted by name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(map(_is_hidden, path.relative_to(folder).parts))
    )


def _is_hidden(name: str) -> bool:
    """Whether Spark's readers pass over a file or folder of this name. They read the folder of a partition by ``_day``."""
    return (name[0] == "_" and "=" not in name) or name[0] == "." or name.endswith("._COPYING_")


def has_log(folder: Path) -> bool:
    return (folder / LOG).is_dir()


def logged(folder: Path) -> list[Write]:
    """The files that each log entry adds, in order of the entries. Raises `HistoryError` for an invalid entry."""
    known: set[Path] = set()
    writes = []
    for number, entry in _entries(folder):
        new = tuple(path for path in _listed(folder, entry) if path not in known)
        known.update(new)
        writes.append(Write(number, entry.stat().st_mtime_ns // 1000, new))
    return writes


def unlogged(files: list[Path]) -> list[Write]:
    """The files, grouped by the write that made them, according to their names, in order of time."""
    found: dict[str, list[Path]] = {}
    for path in files:
        match = _WRITE.search(path.name)
        found.setdefault(match[1] if match else path.name, []).append(path)
    timed = sorted((max(path.stat().st_mtime_ns for path in group) // 1000, group) for group in found.values())
    return [Write(number, at, tuple(group)) for number, (at, group) in enumerate(timed, start=1)]


def _entries(folder: Path) -> Iterator[tuple[int, Path]]:
    """Number and path of each log entry in order; ``N`` comes before ``N.compact``."""
    found = [
        (int(match[1]), match[2] is not None, path)
        for path in (folder / LOG).iterdir()
        if (match := _ENTRY.fullmatch(path.name))
    ]
    yield from ((number, path) for number, _, path in sorted(found))


def _listed(folder: Path, entry: Path) -> Iterator[Path]:
    version, *lines = entry.read_text(encoding="utf-8").split("\n")
    if not version:
        hint = (
            "an entry is empty if the machine stopped before its content was on disk; restore it, or remove the output"
        )
        raise HistoryError(f"{entry} is empty: it does not say which files the write added", hint=hint)
    if version != "v1":
        raise HistoryError(f"{entry} has version {version!r}; this onceproof reads v1")
    for line in filter(None, lines):
        try:
            action = json.loads(line)
            path = Path(unquote(urlparse(action["path"]).path))
            if action["action"] == "add":
                yield folder / path.relative_to(folder.absolute())
        except (ValueError, KeyError, TypeError) as error:
            raise HistoryError(f"{entry} cannot be read: {error}: {line[:100]!r}") from error
