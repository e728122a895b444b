"""Build a `Scenario` from a document, validating each part with its own model."""

from __future__ import annotations

from typing import Any

from onceproof.base.registry import suggest
from onceproof.data import datasets
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc
from onceproof.scenario_files.explain import validate

#: Enough for one fault per batch: a run has a few dozen batches.
MAX_FAULTS = 200


def assemble(data: dict[str, Any], *, runs: bool = True) -> tuple[Scenario | None, list[Complaint]]:
    """The scenario in ``data``, or None, and what is wrong with it.

    Faults, oracle and data set options are validated by the kind that they name. Data sets are checked only if the scenario
    ``runs``, not if it only judges.
    """
    complaints = _dataset_options(data.get("input")) if runs else []
    chaos = data.get("chaos")
    if isinstance(chaos, list) and len(chaos) > MAX_FAULTS:
        message = f"chaos: {len(chaos)} faults are too many; a scenario has at most {MAX_FAULTS}"
        complaints.append(Complaint(("chaos",), message, "write several scenarios", at_key=True))
        data = {**data, "chaos": []}
    scenario, found = validate(Scenario, data)
    return scenario, complaints + found


def _dataset_options(inputs: Any) -> list[Complaint]:
    complaints: list[Complaint] = []
    for index, item in enumerate(inputs if isinstance(inputs, list) else []):
        if not isinstance(item, dict) or not isinstance(item.get("dataset"), str):
            continue  # validating the whole reports it
        loc: Loc = ("input", index)
        if item["dataset"] not in datasets.names():
            message = f"unknown dataset {item['dataset']!r}"
            complaints.append(Complaint((*loc, "dataset"), message, suggest(item["dataset"], datasets.names())))
        elif isinstance(options := item.get("options", {}), dict):
            complaints += validate(datasets.get(item["dataset"]).Options, options, (*loc, "options"))[1]
    return complaints
