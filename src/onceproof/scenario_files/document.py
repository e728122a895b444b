"""A scenario's YAML, with the line and column of every key and value for error messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


_NOTHING = Extent()


@dataclass(frozen=True)
class Document:
    file: str
    tree: CommentedMap
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


def read(path: Path, read_before: Extent = _NOTHING) -> Document:
    """Read and parse ``path``. ``read_before`` is the extent of the files that are based on it.

    Raises `UsageError` if it cannot be read, `ScenarioError` if it is not one YAML mapping of a sensible size.
    """
    file = str(path)
    text = _read_text(path, read_before)
    try:
        extent = _check_extent(file, text, read_before)
        reader = YAML(typ="rt")
        reader.Constructor = _Constructor
        tree = reader.load(text)
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


def _refuse_size(path: Path, read_before: Extent) -> Never:
    others = f", the files based on it {read_before.bytes:,}" if read_before.bytes else ""
    message = f"the file has {path.stat().st_size:,} bytes{others}; a scenario may have {MAX_BYTES:,}"
    hint = "move records and long code to files of their own: {dataset: file}, {here}/FILE"
    raise ScenarioError([Problem(Place(str(path)), message, hint)])


def _check_extent(file: str, text: str, read_before: Extent) -> Extent:
    """Count the values and aliases in ``text``; an alias counts as all the values that it repeats.

    Works on parser events, before any value is built. Raises `ScenarioError` for more than the limits allow, and for tags
    and characters that no scenario may hold.
    """
    sizes: dict[str, int | None] = {}  # anchor -> number of values that it names; None while its collection is open
    open_: list[tuple[str | None, int]] = []  # per open collection: its anchor, and the number of values before it
    values, aliases = read_before.values, read_before.aliases
    whole = "the file and those based on it have" if values else "the file has"

    def refuse(event: Any, message: str, hint: str | None = None) -> Never:
        mark = event.start_mark
        raise ScenarioError([Problem(Place(file, mark.line + 1, mark.column + 1), message, hint)])

    for event in YAML(typ="rt").parse(text):
        if isinstance(event, CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, AliasEvent):
            aliases += 1
            size = sizes.get(event.anchor, 0)  # the parser refuses an alias of an unknown anchor
            if size is None:
                refuse(event, f"*{event.anchor} is inside &{event.anchor}: it would repeat itself without end")
            values += size
            if aliases > MAX_ALIASES:
                refuse(event, f"more than {MAX_ALIASES} aliases", "write the values out, or use fewer")
            if values > MAX_VALUES:
                message = f"with all aliases written out {whole} more than {MAX_VALUES:,} values"
                refuse(event, message, f"{values:,} up to *{event.anchor}")
        elif isinstance(event, NodeEvent):
            values += 1
            if values > MAX_VALUES:
                hint = "move records to a file of their own: {dataset: file}"
                refuse(event, f"{whole} more than {MAX_VALUES:,} values", hint)
            written = getattr(event, "tag", None)  # an alias has none
            if written is not None and str(written) not in _TAGS:
                tag = str(written).replace(_TAG, "!!")[:60]
                refuse(event, f"tag {tag!r} has no meaning in a scenario", "remove it")
            if isinstance(event, CollectionStartEvent):
                open_.append((event.anchor, values - 1))
                if event.anchor is not None:
                    sizes[event.anchor] = None
                if len(open_) > MAX_DEPTH:
                    refuse(event, f"nested more than {MAX_DEPTH} levels deep", "a scenario needs about six")
            elif isinstance(event, ScalarEvent):
                if event.anchor is not None:
                    sizes[event.anchor] = 1
                if "\0" in event.value:
                    refuse(event, "the text has a NUL character", "no name, path or argument may contain one")
                if any("\ud800" <= c <= "\udfff" for c in event.value):
                    refuse(event, "the text has half a surrogate pair, which is not a character")
    return Extent(len(text.encode()), values - read_before.values, aliases - read_before.aliases)


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
    place = Place(file) if mark is None else Place(file, mark.line + 1, mark.column + 1)
    if isinstance(error, DuplicateKeyError):
        message = (error.problem or "a key occurs twice").splitlines()[0][:300]
        return Problem(place, message, "remove one of them")
    context = f" {error.context}" if error.context else ""
    hint = "indent with spaces" if "'\\t'" in (error.problem or "") else None
    return Problem(place, f"not YAML: {(error.problem or '')[:300]}{context}", hint)


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
