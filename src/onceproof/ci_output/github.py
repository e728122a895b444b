"""GitHub Actions: a job summary in Markdown, and an annotation at the line of each scenario that did not pass.

Source: the documentation of workflow commands, and `command.ts` of actions/toolkit for the escapes. A step's summary may have
1 MiB; GitHub drops a larger one as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from onceproof.base.visible import visible
from onceproof.ci_output.result import CiResult

MOST_BYTES = 1024 * 1024
_CUT = "\n\nThe summary is cut here: a step may have 1 MiB. The log has all of it.\n"
#: Characters of an annotation; of the note that some are left out; and lines at the end that are kept.
_MESSAGE, _NOTE, _COMMANDS = 2000, 40, 3


def summary(results: Sequence[CiResult], most: int = MOST_BYTES) -> str:
    """A table of all results, then what is wrong with each that did not pass: as many whole rows and findings as fit ``most`` bytes."""
    passed = sum(result.passed for result in results)
    head = f"### onceproof: {passed} of {len(results)} passed\n\n| scenario | result | why |\n| --- | --- | --- |\n"
    rows = [f"| {_cell(one.scenario)} | {_status(one)} | {_cell(one.why)} |\n" for one in results]
    text = ""
    left = most - len(_CUT)
    for piece in (head, *rows, *(_section(one) for one in results if one.detail), "\n"):
        left -= len(piece.encode())
        if left < 0:
            return text + _CUT if text else ""
        text += piece
    return text


def _status(result: CiResult) -> str:
    return _cell(result.status) if result.passed else f"**{_cell(result.status)}**"


def _section(result: CiResult) -> str:
    fence = _fence(result.detail)
    return f"\n#### {_cell(result.scenario)}\n\n{fence}\n{visible(result.detail)}\n{fence}\n"


def annotation_lines(results: Sequence[CiResult], root: Path) -> list[str]:
    """A workflow command for each result that did not pass. A file outside of ``root``, the checkout, cannot be annotated."""
    return [_annotation(result, root) for result in results if not result.passed]


def _annotation(result: CiResult, root: Path) -> str:
    place = result.place(root)
    properties = {} if place is None else {"file": place[0], "line": str(place[1])}
    properties["title"] = f"onceproof: {result.scenario} {result.status}"
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    message = _shortened(visible(result.detail or result.why))
    return f"::error {written}::{_data(message)}"


def _shortened(text: str) -> str:
    """At most `_MESSAGE` characters. The middle is left out: the first lines are the findings, the last ones the commands."""
    if len(text) <= _MESSAGE:
        return text
    end = "\n".join(text.splitlines()[-_COMMANDS:])[-_MESSAGE // 2 :]
    begin = text[: _MESSAGE - len(end) - _NOTE]
    return f"{begin}\u2026 ({len(text) - len(begin) - len(end):,} more characters)\n{end}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """Text in a cell of a table: names and values of users must not become Markdown or HTML."""
    line = " ".join(visible(text).split())
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _fence(text: str) -> str:
    """A fence that the text does not contain."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
