"""Scenario files of a qualification: the user's own, with other faults and chunks, in another folder."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap

from onceproof.base.paths import is_file
from onceproof.scenario.model import Limits
from onceproof.scenario_files import whole
from onceproof.scenario_files.load import read

_HERE = re.compile(r"\{here\}/(.+)")
#: What stands in it for the file alone: the name is the file's, and expectations are of the user's own faults.
_OF_THE_FILE = ("name", "expect", "chaos")


class Template:
    """The user's scenario as read from its file, comments included; gives the texts of others like it.

    ``{here}`` becomes the folder of the original, so that its job is found from anywhere, and bases are merged in. Raises as `load.read`.
    """

    def __init__(self, path: Path) -> None:
        self._tree = whole.tree(read(path))
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
        return whole.text(tree)

    @property
    def deadline_s(self) -> float:
        """What the user allows for a run's feed and drain."""
        limits = self._tree.get("limits") or {}
        return float(limits.get("deadline_s", Limits().deadline_s))


def files_beside(path: Path) -> dict[str, Path]:
    """What the scenario names by ``{here}/...``, as far as it is a file there: its job, data, functions; and its bases. Raises as `load.read`."""
    folder = path.resolve().parent
    first, *bases = read(path).files
    found = {base.file: Path(base.file) for base in bases}
    for file in (first, *bases):
        here = Path(file.file).resolve().parent
        for text in _texts(file.tree):
            for named in _HERE.finditer(text):
                # A file of a command's argument; or `FILE:function`, and what else a text goes on with.
                for name in (named[1], re.split(r"[\s:;,'\"]", named[1], maxsplit=1)[0]):
                    if name and is_file(here / name):
                        found[name if here == folder else str(here / name)] = here / name
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
