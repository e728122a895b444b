"""Scenario files of a qualification: the user's own, with other faults and chunks, in another folder."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from onceproof.base.paths import is_file
from onceproof.scenario.model import Limits
from onceproof.scenario_files import document

_WIDTH = 120
_HERE = re.compile(r"\{here\}/(.+)")
#: What stands in it for the file alone: the name is the file's, and expectations are of the user's own faults.
_OF_THE_FILE = ("name", "expect", "chaos")


class Template:
    """The user's scenario as read from its file, comments included; gives the texts of others like it.

    ``{here}`` becomes the folder of the original, so that its job is found from anywhere. Raises as `document.read`.
    """

    def __init__(self, path: Path) -> None:
        self._tree = document.read(path).tree
        _settle(self._tree, str(path.resolve().parent))
        for key in _OF_THE_FILE:
            self._tree.pop(key, None)

    def text(
        self,
        *,
        about: str,
        faults: Sequence[Mapping[str, Any]],
        chunks: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
        seed: int | None = None,
    ) -> str:
        """The scenario with just these faults. ``chunks``: input topic -> parts; default: the user's own."""
        tree = copy.deepcopy(self._tree)
        tree["about"] = about
        if seed is not None:
            tree["seed"] = seed
        for spec in tree["input"]:
            if chunks is not None and spec["topic"] in chunks:
                spec["chunks"] = chunks[spec["topic"]]
        if deadline_s is not None:
            limits = tree.setdefault("limits", CommentedMap())
            limits["deadline_s"] = deadline_s
        if faults:
            tree["chaos"] = [_flow(fault) for fault in faults]
        out = io.StringIO()
        yaml = YAML(typ="rt")
        yaml.width = _WIDTH
        yaml.dump(tree, out)
        return out.getvalue()

    @property
    def deadline_s(self) -> float:
        """What the user allows for a run's feed and drain."""
        limits = self._tree.get("limits") or {}
        return float(limits.get("deadline_s", Limits().deadline_s))


def files_beside(path: Path) -> dict[str, Path]:
    """What the scenario names by ``{here}/...``, as far as it is a file there: its job, data, functions. Raises as `document.read`."""
    here = path.resolve().parent
    found = {}
    for text in _texts(document.read(path).data):
        for whole in _HERE.finditer(text):
            # A file of a command's argument; or `FILE:function`, and what else a text goes on with.
            for name in (whole[1], re.split(r"[\s:;,'\"]", whole[1], maxsplit=1)[0]):
                if name and is_file(here / name):
                    found[name] = here / name
    return found


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)


def _flow(value: Any) -> Any:
    """On one line, as a person writes a fault."""
    if isinstance(value, Mapping):
        made = CommentedMap({key: _flow(inner) for key, inner in value.items()})
        made.fa.set_flow_style()
        return made
    return value


def _settle(node: Any, here: str) -> None:
    """Fill ``{here}`` in, in every text, keeping its style (a literal block stays one)."""
    if isinstance(node, CommentedMap):
        for key, value in node.items():
            if isinstance(value, str):
                node[key] = _filled(value, here)
            else:
                _settle(value, here)
    elif isinstance(node, CommentedSeq):
        for index, value in enumerate(node):
            if isinstance(value, str):
                node[index] = _filled(value, here)
            else:
                _settle(value, here)


def _filled(text: str, here: str) -> str:
    return type(text)(text.replace("{here}", here)) if "{here}" in text else text
