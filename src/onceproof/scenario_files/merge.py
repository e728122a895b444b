"""What `base:` means: what a file says, laid over the file that it is based on; and which file says each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onceproof.base.errors import Place
from onceproof.scenario.model import WORKER
from onceproof.scenario.problem import Loc
from onceproof.scenario_files.document import Document

#: What each file says of itself alone: `list` shows it, and it need not be true of a file based on this one.
NOT_INHERITED = frozenset(("name", "about", "expect", "base"))
#: Mappings in which one key says which others there may be. Another value of it replaces the whole mapping.
_TAGS: dict[Loc, str] = {("oracle",): "kind"}


@dataclass
class _Origin:
    """Which file says a value, and each value below it."""

    file: Document
    below: dict[str, _Origin] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """A scenario file with its bases merged in."""

    files: tuple[Document, ...]
    """The file itself, its base, the base of that one, ..."""
    data: dict[str, Any]
    changes: tuple[tuple[int, Loc], ...]
    """What each file (its number in ``files``) says over its bases, as far down as both are mappings."""
    _origin: _Origin

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Where ``loc`` is written: its value, or its key. What is absent is placed at the nearest thing above it."""
        loc = self._as_written(loc)
        origin = self._origin
        for step in loc:
            if not isinstance(step, str) or step not in origin.below:
                break
            origin = origin.below[step]
        return origin.file.place(loc, key=key)

    def _as_written(self, loc: Loc) -> Loc:
        """``args`` are the end of the command (`onceproof.scenario.model.PipelineSpec`)."""
        if loc[:2] != ("pipeline", "command") or len(loc) < 3 or not isinstance(loc[2], int):
            return loc
        pipeline = self.data.get("pipeline", {})
        command, args = pipeline.get("command", WORKER), pipeline.get("args", {})
        extra = loc[2] - len(command)
        return ("pipeline", "args", list(args)[extra]) if 0 <= extra < len(args) else loc


def merge(files: Sequence[Document]) -> Merged:
    """``files``: a file, its base, the base of that one, ..."""
    origin = _Origin(files[0])
    data: dict[str, Any] = {}
    changes: list[tuple[int, Loc]] = []
    for number, file in reversed(list(enumerate(files))):
        said = {key: value for key, value in file.data.items() if number == 0 or key not in NOT_INHERITED}
        changed = _lay(said, data, file, origin, ())
        if file is not files[-1]:
            changes = [*((number, loc) for loc in changed if loc[0] not in NOT_INHERITED), *changes]
    return Merged(tuple(files), data, tuple(changes), origin)


def _lay(said: dict[str, Any], over: dict[str, Any], file: Document, origin: _Origin, above: Loc) -> list[Loc]:
    """Lay ``said`` over what the bases say. Mappings merge, null removes, all else replaces. Returns what it changed."""
    changed: list[Loc] = []
    for key, value in said.items():
        loc = (*above, key)
        inherited = over.get(key)
        if isinstance(value, dict) and isinstance(inherited, dict) and not _of_another_kind(loc, value, inherited):
            over[key] = dict(inherited)
            origin.below[key].file = file
            changed += _lay(value, over[key], file, origin.below[key], loc)
            continue
        changed.append(loc)
        if value is None and key in over:
            del over[key], origin.below[key]
        else:
            over[key] = value
            origin.below[key] = _of(file, value)
    return changed


def _of_another_kind(loc: Loc, value: dict[str, Any], inherited: dict[str, Any]) -> bool:
    tag = _TAGS.get(loc)
    return tag is not None and value.get(tag, inherited.get(tag)) != inherited.get(tag)


def _of(file: Document, value: Any) -> _Origin:
    below = {key: _of(file, inner) for key, inner in value.items()} if isinstance(value, dict) else {}
    return _Origin(file, below)
