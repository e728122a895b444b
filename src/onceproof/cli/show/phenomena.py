"""``list --by row``: the phenomena, the scenarios that show each, and the last results of these."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onceproof.base.errors import UsageError
from onceproof.base.paths import is_folder
from onceproof.cli.show.layout import hanging
from onceproof.judge.findings import VERDICT_FILE, Verdict
from onceproof.scenario_files.library import Entry
from onceproof.scenario_files.rows import Row, rows

#: Room for the name of a row.
_ROW = 20
#: The directory of a run: scenario, time, random letters.
_RUN_NAME = re.compile(r"(.+)-(\d{8}T\d{6})-[0-9a-f]+", re.ASCII)


def listing_by_row(what: str, name: str | None, by: str, runs: Path, as_json: bool) -> str:
    """The phenomena: the naive scenarios and the remedies of each, and the last result of each in the folder ``runs``.

    Raises `UsageError` unless ``what`` is the scenarios, without a ``name``, and ``by`` is ``row``.
    """
    if by != "row":
        raise UsageError(f"--by: there is no order {by!r}", hint="onceproof list --by row")
    if what != "scenarios" or name is not None:
        raise UsageError(f"--by row lists scenarios, not {name or what!r}", hint="onceproof list --by row")
    found, last = rows(), _last_results(runs)
    if as_json:
        return json.dumps({"rows": [_row_document(row, last) for row in found]})
    lines = [
        "What the shipped scenarios show: each phenomenon with its naive scenarios, and the remedies under the same fault."
    ]
    for group, members in itertools.groupby(found, key=lambda row: row.phenomenon.group):
        lines += ["", f"{group}:"]
        for row in members:
            lines.append(f"  {row.name:<{_ROW}}{row.phenomenon.title}")
            lines += _scenario_lines("naive", row.naive, last) + _scenario_lines("remedy", row.remedies, last)
            lines += [hanging(f"{'':<{_ROW}}  not yet", row.case.missing, _ROW + 12)] if row.case.missing else []
    complete = sum(not row.lacks for row in found)
    return "\n".join([*lines, "", f"{complete} of {len(found)} are shown; what happens in each: docs/phenomena.md"])


def _scenario_lines(label: str, scenarios: Sequence[Entry], last: dict[str, Verdict]) -> list[str]:
    return [
        f"{'':<{_ROW}}  {label:<9} {one.name}" + (f" (last run: {_result(last[one.name])})" if one.name in last else "")
        for one in scenarios
    ]


def _row_document(row: Row, last: dict[str, Verdict]) -> dict[str, Any]:
    def listed(scenarios: Sequence[Entry]) -> list[dict[str, Any]]:
        return [{"name": one.name, "last": _result(last[one.name]) if one.name in last else None} for one in scenarios]

    return {
        "row": row.name,
        "group": row.phenomenon.group,
        "title": row.phenomenon.title,
        "about": row.phenomenon.about,
        "limit": row.phenomenon.limit,
        "anomalies": row.case.anomalies,
        "naive": listed(row.naive),
        "remedies": listed(row.remedies),
        "missing": row.case.missing,
    }


def _result(verdict: Verdict) -> str:
    return f"{verdict.word}{': ' if verdict.anomalies() else ''}{', '.join(verdict.anomalies())}"


def _last_results(runs: Path) -> dict[str, Verdict]:
    """Scenario -> the verdict of its newest run in the folder ``runs`` that has one. Only verdicts are read, no history."""
    found = [(match[2], match[1], match[0]) for path in _in_folder(runs) if (match := _RUN_NAME.fullmatch(path.name))]
    newest: dict[str, Verdict] = {}
    for _, scenario, name in sorted(found, reverse=True):
        if scenario not in newest:
            with suppress(OSError, ValueError):  # it was never judged, or by another version
                newest[scenario] = Verdict.from_json(runs / name / VERDICT_FILE)
    return newest


def _in_folder(runs: Path) -> list[Path]:
    return list(runs.iterdir()) if is_folder(runs) else []
