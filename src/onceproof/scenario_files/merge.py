"""Merges a scenario file with the bases it names, and remembers which file each value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onceproof.base.errors import Place
from onceproof.scenario.model import DRIVER, WORKER
from onceproof.scenario.problem import Loc
from onceproof.scenario_files.document import Document

#: Keys that describe one file alone. They need not be true of a file that is based on it.
NOT_INHERITED = frozenset(("name", "about", "phenomena", "expect", "base"))
#: Mappings in which one key decides which other keys are allowed. If a file changes that key, it replaces the whole mapping.
_TAGS: dict[Loc, str] = {("oracle",): "kind"}


@dataclass
class _Origin:
    """The file that a value comes from, and likewise for each value below it."""

    file: Document
    below: dict[str, _Origin] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """A scenario file with its bases merged in."""

    files: tuple[Document, ...]
    """The file itself, its base, its base's base, ..."""
    data: dict[str, Any]
    changes: tuple[tuple[int, Loc], ...]
    """What each file changes in its bases: its number in ``files``, and the deepest path at which both are mappings."""
    _origin: _Origin

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """The place of the value at ``loc``, or of its key. If it is absent, that of the nearest mapping or list above it."""
        loc = self._as_written(loc)
        origin = self._origin
        for step in loc:
            if not isinstance(step, str) or step not in origin.below:
                break
            origin = origin.below[step]
        return origin.file.place(loc, key=key)

    def _as_written(self, loc: Loc) -> Loc:
        """``loc``, or the path of an ``args`` entry if ``loc`` is in the part of the command that was made of ``args``."""
        if loc[:2] != ("pipeline", "command") or len(loc) < 3 or not isinstance(loc[2], int):
            return loc
        pipeline = self.data.get("pipeline", {})
        own = [*DRIVER, ""] if "callable" in pipeline else WORKER
        command, args = pipeline.get("command", own), pipeline.get("args", {})
        extra = loc[2] - len(command)
        return ("pipeline", "args", list(args)[extra]) if 0 <= extra < len(args) else loc


def merge(files: Sequence[Document]) -> Merged:
    """Merge ``files``: a file, its base, its base's base, ..."""
    origin = _Origin(files[0])
    data: dict[str, Any] = {}
    changes: list[tuple[int, Loc]] = []
    for number, file in reversed(list(enumerate(files))):
        values = {key: value for key, value in file.data.items() if number == 0 or key not in NOT_INHERITED}
        changed = _overlay(values, data, file, origin, ())
        if file is not files[-1]:
            changes = [*((number, loc) for loc in changed if loc[0] not in NOT_INHERITED), *changes]
    return Merged(tuple(files), data, tuple(changes), origin)


def _overlay(values: dict[str, Any], data: dict[str, Any], file: Document, origin: _Origin, above: Loc) -> list[Loc]:
    """Merge ``values`` of ``file`` into ``data``. Mappings merge, null removes, anything else replaces. Returns what changed."""
    changed: list[Loc] = []
    for key, value in values.items():
        loc = (*above, key)
        inherited = data.get(key)
        if isinstance(value, dict) and isinstance(inherited, dict) and not _changes_kind(loc, value, inherited):
            data[key] = dict(inherited)
            origin.below[key].file = file
            changed += _overlay(value, data[key], file, origin.below[key], loc)
            continue
        changed.append(loc)
        if value is None and key in data:
            del data[key], origin.below[key]
        else:
            data[key] = value
            origin.below[key] = _origin_of(file, value)
    return changed


def _changes_kind(loc: Loc, value: dict[str, Any], inherited: dict[str, Any]) -> bool:
    tag = _TAGS.get(loc)
    return tag is not None and value.get(tag, inherited.get(tag)) != inherited.get(tag)


def _origin_of(file: Document, value: Any) -> _Origin:
    below = {key: _origin_of(file, inner) for key, inner in value.items()} if isinstance(value, dict) else {}
    return _Origin(file, below)
