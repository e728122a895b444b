"""Scenarios for Python code: load one, and change its faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onceproof.base.errors import UsageError
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.problem import Complaint
from onceproof.scenario_files.assemble import assemble
from onceproof.scenario_files.checks import crosscheck, external
from onceproof.scenario_files.load import LoadedScenario, load_file
from onceproof.scenario_files.shipped import find

__all__ = ["LoadedScenario", "load", "with_chaos"]


def load(scenario: str | Path) -> LoadedScenario:
    """The scenario in a YAML file, or the shipped one of that name; its values are in ``.scenario``.

    Raises `ScenarioError` with every problem of the file, each with its line, and `UsageError` if there is no such file.
    """
    return load_file(find(scenario))


def with_chaos(loaded: LoadedScenario, chaos: Sequence[AnyFaultSpec]) -> LoadedScenario:
    """The scenario with these faults instead of its own. What its file expects is about its own faults, and is dropped.

    Raises `UsageError` that names each fault which cannot work in this scenario, and why.
    """
    faults = [_plain(spec) for spec in chaos]
    unchanged = {key: value for key, value in loaded.scenario.to_json().items() if key not in ("chaos", "expect")}
    scenario, complaints = assemble({**unchanged, "chaos": faults})
    if scenario is not None and not complaints:
        complaints = [*crosscheck.of_schedule(scenario), *external.control(scenario, loaded.profile)]
    if scenario is None or complaints:
        lines = [_line(complaint, chaos) for complaint in complaints]
        raise UsageError("\n".join(lines), hint=f"the scenario is {loaded.path}")
    return replace(loaded, scenario=scenario.model_copy(update={"base": loaded.scenario.base}))


def _plain(spec: AnyFaultSpec) -> dict[str, Any]:
    if not isinstance(spec, AnyFaultSpec):
        raise UsageError(
            f"{spec!r} in chaos is not a fault", hint='write for example onceproof.Crash("driver", batch=2, point=...)'
        )
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _line(complaint: Complaint, chaos: Sequence[AnyFaultSpec]) -> str:
    where, rest = ".".join(map(str, complaint.loc)), ""
    if complaint.loc[:1] == ("chaos",) and len(complaint.loc) > 1 and isinstance(index := complaint.loc[1], int):
        rest = "".join(f".{step}" for step in complaint.loc[2:])
        where = f"chaos[{index}] ({chaos[index].fault} {chaos[index].target})"
    message = f"{where}{rest}: {complaint.message}"
    return message if complaint.hint is None else f"{message} ({complaint.hint})"
