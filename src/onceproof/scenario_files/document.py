"""A scenario's YAML, with the line and column of every key and value for error messages."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Never

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.parser import RoundTripParser

from onceproof.base.errors import Place, Problem, ScenarioError, UsageError
from onceproof.scenario.problem import Loc

#: Far more than a scenario needs; a file within these limits is read and checked within two seconds.
MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
MAX_VALUES = 5_000
MAX_ALIASES = 100

_TAG = "tag:yaml.org,2002:"
#: The YAML tags that a scenario may use: those of plain values.
_TAGS = frozenset(f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))


@dataclass(frozen=True)
class Extent:
    """How much one file, or several, hold. The limits apply to a file together with its bases."""

    bytes: int = 0
    values: int = 0
    aliases: int = 0

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.bytes + other.bytes, self.values + other.values, self.aliases + other.aliases)

    @property
    def allowed(self) -> bool:
        """Whether so many values and aliases are within the limits. (Bytes are limited when a file is read.)"""
        return self.values <= MAX_VALUES and self.aliases <= MAX_ALIASES


_NOTHING = Extent()


@dataclass(frozen=True)
class Document:
    file: str
    tree: CommentedMap
    """As parsed, with comments. Shared by all documents with this text: copy it before changing it."""
    data: dict[str, Any]
    """The tree as plain values: dict, list, str, int, float, bool, None."""
    extent: Extent

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Line and column of the value at ``loc``, or of its key. If it is absent, those of the nearest mapping or list above it."""
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


def read(path: Path, read_before: Extent = _NOTHING, *, only: Collection[str] = ()) -> Document:
    """Read and parse ``path``. ``read_before`` is the extent of the files that are based on it.

    ``only``: the top-level keys that are wanted, if not all of them are. In the file each top-level key begins a line.

    Raises `UsageError` if it cannot be read, `ScenarioError` if it is not one YAML mapping of a sensible size.
    """
    file = str(path)
    text = _read_text(path, read_before)
    if only:
        text = _with_keys(text, only)
    try:
        tree, extent = _within_limits(text, read_before)
    except _Refused as refused:
        raise ScenarioError([Problem(_place(file, refused.mark), refused.message, refused.hint)]) from None
    except MarkedYAMLError as error:
        raise ScenarioError([_syntax_problem(file, error)]) from None
    except (YAMLError, AttributeError, TypeError, ValueError, LookupError) as error:  # the parser raises all of these
        raise ScenarioError([Problem(Place(file), f"not YAML: {error}")]) from None
    if not isinstance(tree, CommentedMap):
        found = "the file is empty" if tree is None else f"found {_kind(tree)}"
        raise ScenarioError([Problem(Place(file), f"a scenario is a mapping of keys to values; {found}")])
    return Document(file, tree, _plain(tree), extent)


def _read_text(path: Path, read_before: Extent) -> str:
    most = MAX_BYTES - read_before.bytes
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        return content.decode() if len(content) <= most else _refuse_size(path, read_before)
    except OSError as error:
        raise UsageError(f"cannot read the scenario {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None


def _with_keys(text: str, keys: Collection[str]) -> str:
    """``text`` with only these top-level keys. The lines of the others become empty, so that places stay right."""
    lines = []
    wanted = False
    for line in text.split("\n"):
        if line[:1] not in ("", " ", "#"):
            wanted = line.partition(":")[0] in keys
        lines.append(line if wanted else "")
    return "\n".join(lines)


def _refuse_size(path: Path, read_before: Extent) -> Never:
    others = f", the files based on it {read_before.bytes:,}" if read_before.bytes else ""
    message = f"the file has {path.stat().st_size:,} bytes{others}; a scenario may have {MAX_BYTES:,}"
    hint = "move records and long code to files of their own: {dataset: file}, {here}/FILE"
    raise ScenarioError([Problem(Place(str(path)), message, hint)])


class _Refused(Exception):  # not a ValueError, which means bad YAML
    """The text holds something that no scenario may hold, or too much. ``mark``: where, as ruamel counts."""

    def __init__(self, event: Any, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.mark, self.message, self.hint = event.start_mark, message, hint


def _within_limits(text: str, read_before: Extent) -> tuple[Any, Extent]:
    """The tree of ``text`` and its extent, which is within the limits together with the files read before. Raises as `_parse`."""
    with suppress(_Refused):  # is raised again, by a count that includes the other files
        tree, extent = _parsed(text)
        if (read_before + extent).allowed:
            return tree, extent
    return _parse(text, read_before)


@lru_cache(maxsize=512)
def _parsed(text: str) -> tuple[Any, Extent]:
    """What `_parse` returns for a file alone. Kept: parsing is slow, and a command may read a base for many scenarios."""
    return _parse(text, _NOTHING)


def _parse(text: str, read_before: Extent) -> tuple[Any, Extent]:
    """The tree of ``text`` and its extent. Raises `_Refused`, or one of the parser's errors."""
    reader = YAML(typ="rt")
    reader.Parser = partial(_Parser, read_before=read_before)
    reader.Constructor = _Constructor
    tree = reader.load(text)
    counted: _Parser = reader.parser
    values, aliases = counted.values - read_before.values, counted.aliases - read_before.aliases
    return tree, Extent(len(text.encode()), values, aliases)


class _Parser(RoundTripParser):
    """Counts the values and aliases in the text; an alias counts as all the values that it repeats.

    Looks at each event before any value is built. Raises `_Refused` for more than the limits allow, and for tags and
    characters that no scenario may hold.
    """

    def __init__(self, loader: Any, read_before: Extent) -> None:
        super().__init__(loader)
        self.values, self.aliases = read_before.values, read_before.aliases
        self._whole = "the file and those based on it have" if self.values else "the file has"
        # anchor -> number of values that it names; None while its collection is open
        self._sizes: dict[str, int | None] = {}
        # per open collection: its anchor, and the number of values before it
        self._open: list[tuple[str | None, int]] = []

    def get_event(self) -> Any:
        event = super().get_event()
        if isinstance(event, CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor is not None:
                self._sizes[anchor] = self.values - before
        elif isinstance(event, AliasEvent):
            self._alias(event)
        elif isinstance(event, NodeEvent):
            self._node(event)
        return event

    def _alias(self, event: Any) -> None:
        self.aliases += 1
        size = self._sizes.get(event.anchor, 0)  # the composer refuses an alias of an unknown anchor
        if size is None:
            raise _Refused(event, f"*{event.anchor} is inside &{event.anchor}: it would repeat itself without end")
        self.values += size
        if self.aliases > MAX_ALIASES:
            raise _Refused(event, f"more than {MAX_ALIASES} aliases", "write the values out, or use fewer")
        if self.values > MAX_VALUES:
            message = f"with all aliases written out {self._whole} more than {MAX_VALUES:,} values"
            raise _Refused(event, message, f"{self.values:,} up to *{event.anchor}")

    def _node(self, event: Any) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            hint = "move records to a file of their own: {dataset: file}"
            raise _Refused(event, f"{self._whole} more than {MAX_VALUES:,} values", hint)
        written = getattr(event, "tag", None)
        if written is not None and str(written) not in _TAGS:
            tag = str(written).replace(_TAG, "!!")[:60]
            raise _Refused(event, f"tag {tag!r} has no meaning in a scenario", "remove it")
        if isinstance(event, CollectionStartEvent):
            self._open.append((event.anchor, self.values - 1))
            if event.anchor is not None:
                self._sizes[event.anchor] = None
            if len(self._open) > MAX_DEPTH:
                raise _Refused(event, f"nested more than {MAX_DEPTH} levels deep", "a scenario needs about six")
        elif isinstance(event, ScalarEvent):
            if event.anchor is not None:
                self._sizes[event.anchor] = 1
            if "\0" in event.value:
                raise _Refused(event, "the text has a NUL character", "no name, path or argument may contain one")
            if any("\ud800" <= c <= "\udfff" for c in event.value):
                raise _Refused(event, "the text has half a surrogate pair, which is not a character")


class _Constructor(RoundTripConstructor):
    """Reports the place of a value that cannot be built, and keeps dates as text."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
        except (ValueError, TypeError, ArithmeticError) as error:
            written = str(node.value)[:60]
            raise ConstructorError(None, None, f"{written!r} is not a value: {error}", node.start_mark) from None
        if isinstance(made, int) and made.bit_length() > 64:
            problem = f"the whole number needs {made.bit_length()} bits; it may have 64"
            raise ConstructorError(None, None, problem, node.start_mark)
        if isinstance(made, float) and not math.isfinite(made):
            raise ConstructorError(None, None, f"{node.value[:60]!r} is not a finite number", node.start_mark)
        return made


_Constructor.add_constructor(f"{_TAG}timestamp", lambda self, node: self.construct_scalar(node))


def _syntax_problem(file: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = Place(file) if mark is None else _place(file, mark)
    if isinstance(error, DuplicateKeyError):
        message = (error.problem or "a key occurs twice").splitlines()[0][:300]
        return Problem(place, message, "remove one of them")
    context = f" {error.context}" if error.context else ""
    hint = "indent with spaces" if "'\\t'" in (error.problem or "") else None
    return Problem(place, f"not YAML: {(error.problem or '')[:300]}{context}", hint)


def _place(file: str, mark: Any) -> Place:
    return Place(file, mark.line + 1, mark.column + 1)


def _plain(node: Any) -> Any:
    """ruamel's ``node`` as a plain value."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str | bytes):
        return [_plain(item) for item in node]
    if node is None or isinstance(node, bool):
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {str(value)[:60]!r}"
