"""``validate``: the problems of scenario files, or the whole text of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from onceproof.base.errors import Problem, UsageError
from onceproof.base.words import times
from onceproof.scenario_files.load import all_warnings, load_all, resolved
from onceproof.scenario_files.shipped import find


def validated(given: list[str], as_json: bool) -> str:
    loaded = load_all(given)
    found = [(each.path, some) for each, some in all_warnings(loaded)]
    if as_json:
        documents = [asdict(warning) for _, some in found for warning in some]
        return json.dumps({"valid": [str(each.path) for each in loaded], "warnings": documents})
    lines = []
    for path, some in found:
        lines += [f"{path}: valid" + (f", with {times(len(some), 'warning')}" if some else ""), *warning_lines(some)]
    return "\n".join(lines)


def whole(given: list[str], as_json: bool) -> str:
    """The given scenario as YAML, with its bases merged in. Raises `UsageError` for several, else as `load`."""
    if len(given) != 1:
        raise UsageError(f"--resolved prints one scenario, and {len(given)} are named", hint="name one of them")
    text = resolved(find(given[0]))
    return json.dumps({"resolved": text}) if as_json else text.rstrip("\n")


def warning_lines(found: Iterable[Problem]) -> list[str]:
    lines = []
    for warning in found:
        lines.append(f"{warning.place}: warning: {warning.message}")
        lines += [] if warning.hint is None else [f"    {warning.hint}"]
    return lines
