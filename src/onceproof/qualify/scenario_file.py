"""Writes the scenario files of a qualification: the user's own, with other faults and chunks, in another folder."""

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
#: Keys that are removed: the name is that of the file, and expectations are about the user's own faults.
_REMOVED = ("name", "expect", "chaos")


class Template:
    """The user's scenario as read from its file, comments included, from which other scenarios are made.

    ``{here}`` becomes the folder of the original, so that its job is found from any folder, and bases are merged in. Raises as
    `load.read`.
    """

    def __init__(self, path: Path) -> None:
        self._tree = whole.tree(read(path))
        for key in _REMOVED:
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
        """Return the scenario with only these faults. ``chunks``: input topic -> number of chunks; default: the user's own."""
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
        """How long the user's scenario allows a run to feed and drain."""
        limits = self._tree.get("limits") or {}
        return float(limits.get("deadline_s", Limits().deadline_s))


def named_files(path: Path) -> dict[str, Path]:
    """Return the files that the scenario names by ``{here}/...`` (its job, data, functions), and its bases. Raises as `load.read`."""
    folder = path.resolve().parent
    first, *bases = read(path).files
    found = {base.file: Path(base.file) for base in bases}
    for file in (first, *bases):
        here = Path(file.file).resolve().parent
        for text in _texts(file.tree):
            for named in _HERE.finditer(text):
                # The whole text may be a file; or it goes on after the file, as `FILE:function` does.
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
    """Return the value in YAML's flow style: on one line, as a person writes a fault."""
    if isinstance(value, Mapping):
        made = CommentedMap({key: _flow(inner) for key, inner in value.items()})
        made.fa.set_flow_style()
        return made
    return value
