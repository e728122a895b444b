"""A scenario file as one YAML text without a base, valid in any folder: the output of `onceproof validate --resolved`."""

from __future__ import annotations

import copy
import io
import itertools
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, FoldedScalarString, LiteralScalarString

from onceproof.scenario.model import PipelineSpec, Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario_files.merge import Merged

_WIDTH = 120
#: A mapping or list of at most so many characters is written on one line.
_ONE_LINE = 110


def filled(node: Any, here: Path) -> Any:
    """Fill in ``{here}`` in every text of ``node``, in place. A text keeps its style (a literal block stays one)."""
    if isinstance(node, dict):
        for key, value in node.items():
            node[key] = filled(value, here)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            node[index] = filled(value, here)
    elif isinstance(node, str) and "{here}" in node:
        return type(node)(node.replace("{here}", str(here)))
    return node


def tree(source: Merged) -> CommentedMap:
    """A valid scenario with ``{here}`` filled in. A file without a base keeps its comments; a merged one has none."""
    here = Path(source.files[0].file).resolve().parent
    return (
        tree_of(source.data, here)
        if len(source.files) > 1
        else _for_any_folder(copy.deepcopy(source.files[0].tree), here)
    )


def tree_of(scenario: dict[str, Any], here: Path) -> CommentedMap:
    """A valid scenario, given as plain values, in the order of its model and with ``{here}`` filled in."""
    data = _in_order(scenario, Scenario)
    data["pipeline"] = _in_order(data["pipeline"], PipelineSpec)
    data["outputs"] = {name: _in_order(spec, OutputSpec) for name, spec in data["outputs"].items()}
    return _for_any_folder(CommentedMap({key: styled(value) for key, value in data.items()}), here)


def _for_any_folder(whole: CommentedMap, here: Path) -> CommentedMap:
    for key in ("name", "base"):
        whole.pop(key, None)
    filled(whole, here)
    return whole


def _in_order(data: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    names = list(model.model_fields)
    return {name: data[name] for name in sorted(data, key=lambda name: names.index(name) if name in names else 0)}


def text(whole: CommentedMap) -> str:
    out = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.width = _WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(whole, out)
    return out.getvalue()


def styled(value: Any, *, in_list: bool = False) -> Any:
    """Plain values styled as people write them: short ones on one line, long texts as blocks."""
    if isinstance(value, dict):
        made = CommentedMap({_key(key): styled(inner, in_list=in_list) for key, inner in value.items()})
        nested = not in_list and any(isinstance(inner, dict) and inner for inner in value.values())
        return _on_one_line(made) if _is_short(value) and not nested else made
    if isinstance(value, list):
        items = CommentedSeq([styled(inner, in_list=True) for inner in value])
        of_mappings = any(isinstance(inner, dict) for inner in value)
        return _on_one_line(items) if _is_short(value) and not of_mappings else items
    if isinstance(value, str):
        return LiteralScalarString(value) if _is_block(value) else _folded(value) or _quoted(value)
    return value


def _is_short(value: Any) -> bool:
    return len(str(value).replace("'", "")) <= _ONE_LINE and not _has_blocks(value)


def _on_one_line(made: Any) -> Any:
    made.fa.set_flow_style()
    return made


def _has_blocks(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_blocks, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _is_block(value)


def _is_block(text: str) -> bool:
    """Whether it has several lines that a literal block reproduces unchanged."""
    lines = text.split("\n")
    return (
        len(lines) > 1 and not text[0].isspace() and all(line.isprintable() and line == line.rstrip() for line in lines)
    )


def _folded(text: str) -> Any:
    """``text`` folded over several lines if it is prose longer than one line, else None."""
    if len(text) <= _ONE_LINE or not text.isprintable() or " ".join(text.split()) != text:
        return None
    made: Any = FoldedScalarString(text)
    lines = textwrap.wrap(text, _ONE_LINE, break_long_words=False, break_on_hyphens=False)
    made.fold_pos = list(itertools.accumulate((len(line) + 1 for line in lines[:-1]), initial=-1))[1:]
    return made


def _key(name: str) -> str | int:
    return int(name) if name.isdecimal() and len(name) < 10 and str(int(name)) == name else _quoted(name)


def _quoted(text: str) -> str:
    """``text``, in quotes if it holds a template, a character to escape, or one that YAML may read as syntax."""
    plain = text.isprintable() and "{" not in text and (text[:1].isalnum() or text[:1] in ("-", "_", "/", "."))
    return text if plain else DoubleQuotedScalarString(text)
