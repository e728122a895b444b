"""A scenario's YAML, with the line and column of every key and value: what error messages point at."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from onceproof.errors import Place, Problem, ScenarioError, UsageError

Loc = tuple[str | int, ...]
"""Path of keys and list indexes from the top of the document."""


@dataclass(frozen=True)
class Document:
    file: str
    tree: CommentedMap
    data: dict[str, Any]
    """The same as plain values: dict, list, str, int, float, bool, None."""

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Where ``loc`` stands: its value, or its key. What is absent is placed at the nearest thing above it."""
        node: Any = self.tree
        line, column = self.tree.lc.line or 0, self.tree.lc.col or 0
        for depth, step in enumerate(loc):
            last = depth == len(loc) - 1
            if isinstance(node, CommentedMap) and step in node:
                line, column = node.lc.key(step) if key and last else node.lc.value(step)
            elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
                line, column = node.lc.item(step)
            else:
                break
            node = node[step]
        return Place(self.file, line + 1, column + 1)


def read(path: Path) -> Document:
    """Read and parse ``path``.

    Raises `UsageError` if it cannot be read, `ScenarioError` if it is not one YAML mapping.
    """
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the scenario {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None
    try:
        tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        raise ScenarioError([_syntax_problem(file, error)]) from None
    except YAMLError as error:
        raise ScenarioError([Problem(Place(file), f"not YAML: {error}")]) from None
    if not isinstance(tree, CommentedMap):
        found = "the file is empty" if tree is None else f"found {_kind(tree)}"
        raise ScenarioError([Problem(Place(file), f"a scenario is a mapping of keys to values; {found}")])
    return Document(file, tree, _plain(tree))


def _syntax_problem(file: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = Place(file) if mark is None else Place(file, mark.line + 1, mark.column + 1)
    if isinstance(error, DuplicateKeyError):
        what = (error.problem or "a key stands twice").splitlines()[0]
        return Problem(place, what, "keep one of them: only one can count")
    context = f" {error.context}" if error.context else ""
    hint = "indent with spaces" if "'\\t'" in (error.problem or "") else None
    return Problem(place, f"not YAML: {error.problem}{context}", hint)


def _plain(node: Any) -> Any:
    """ruamel's node as a plain value; dates, which YAML makes of unquoted text, become text again."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str | bytes):
        return [_plain(item) for item in node]
    if node is None or isinstance(node, bool):
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node.isoformat() if isinstance(node, datetime.date) else str(node)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {str(value)[:60]!r}"
