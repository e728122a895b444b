"""Reads the log of a Delta table, ``_delta_log/N.json``: which files each version adds and removes.

The log alone decides what the table holds and which commit added it: a data file that no version names was never committed.
Tables that need more than the plain content of their files are refused (deletion vectors, mapped columns, a cleaned-up log).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from onceproof.base.errors import HistoryError

LOG = "_delta_log"
_VERSION = re.compile(r"(\d{20})\.json")
_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True)
class DataFile:
    path: Path
    partition: dict[str, str | None]
    """The values of the partition columns, which the rows in the file lack."""


@dataclass
class Version:
    number: int
    time_us: int
    """When the log entry was written."""
    adds: list[DataFile] = field(default_factory=list)
    removes: list[DataFile] = field(default_factory=list)
    txn: dict[str, int] = field(default_factory=dict)
    """``txnAppId`` -> ``txnVersion``, as set by the writer."""


def numbers(table: Path) -> list[int]:
    return [number for number, _ in _entries(table)]


def versions(table: Path, active: dict[str, DataFile]) -> Iterator[Version]:
    """All versions, from the first. Raises `HistoryError` for a log that cannot be read.

    ``active``: empty, and filled with the files of the version that was yielded last.
    """
    for expected, (number, entry) in enumerate(_entries(table)):
        if number != expected:
            raise HistoryError(f"{table / LOG} lacks version {expected}: the log was cleaned up")
        version = Version(number, entry.stat().st_mtime_ns // 1000)
        for action in _actions(entry):
            _refuse(entry, action)
            if "txn" in action:
                version.txn[str(action["txn"]["appId"])] = int(action["txn"]["version"])
            # dataChange is false where rows only moved from one file to another.
            if "add" in action:
                added = action["add"]
                found = DataFile(table / unquote(added["path"]), _partition(added))
                active[added["path"]] = found
                if added.get("dataChange", True):
                    version.adds.append(found)
            elif "remove" in action:
                gone = active.pop(action["remove"]["path"], None)
                if gone is not None and action["remove"].get("dataChange", True):
                    version.removes.append(gone)
        yield version


def _partition(action: Mapping[str, Any]) -> dict[str, str | None]:
    return {column: value or None for column, value in (action.get("partitionValues") or {}).items()}


def _entries(table: Path) -> list[tuple[int, Path]]:
    found = ((_VERSION.fullmatch(path.name), path) for path in (table / LOG).glob("*.json"))
    return sorted((int(match[1]), path) for match, path in found if match is not None)


def _actions(entry: Path) -> Iterator[dict[str, Any]]:
    for line in entry.read_text(encoding="utf-8").split("\n"):
        if not line.strip():
            continue
        try:
            action = json.loads(line)
        except ValueError as error:
            raise HistoryError(f"{entry} cannot be read: {error}: {line[:100]!r}") from error
        if isinstance(action, dict):
            yield action


def _refuse(entry: Path, action: Mapping[str, Any]) -> None:
    if (action.get("add") or {}).get("deletionVector"):
        raise HistoryError(
            f"{entry} deletes rows by a deletion vector, which onceproof does not read",
            hint="set delta.enableDeletionVectors=false on the table",
        )
    mode = ((action.get("metaData") or {}).get("configuration") or {}).get(_MAPPING, "none")
    if mode != "none":
        raise HistoryError(f"{entry} maps columns ({_MAPPING}={mode}), which onceproof does not read")
