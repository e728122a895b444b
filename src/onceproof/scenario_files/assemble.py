"""From a document to a `Scenario`, each part by its own model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from onceproof.base.registry import Registry, suggest
from onceproof.consumers.faults import consumer_faults
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.oracle import oracles
from onceproof.scenario.model import FaultSpec, OracleSpec, Scenario
from onceproof.scenario.problem import Complaint, Loc, shown
from onceproof.scenario_files.checks import consumers as consumer_check
from onceproof.scenario_files.explain import validate

T = TypeVar("T")

#: A fault a batch, of which a run has some dozens.
MAX_FAULTS = 200


def assemble(data: dict[str, Any], *, runs: bool = True) -> tuple[Scenario | None, list[Complaint]]:
    """Each part by its own model. Faults, oracle and data set options are validated by the kind that they name."""
    chaos, complaints = _chaos(data.get("chaos"), consumers=consumer_check.has_consumers(data))
    oracle, of_oracle = _oracle(data.get("oracle"))
    complaints += of_oracle + (_dataset_options(data.get("input")) if runs else [])
    frame = dict(data)
    if isinstance(frame.get("chaos"), list):
        frame["chaos"] = []
    if frame.get("oracle") is not None:
        frame["oracle"] = {"kind": "checked above"}
    scenario, of_frame = validate(Scenario, frame)
    complaints += of_frame
    if scenario is None or oracle is None or complaints:
        return None, complaints
    return scenario.model_copy(update={"chaos": chaos, "oracle": oracle}), complaints


def _chaos(items: Any, *, consumers: bool) -> tuple[list[FaultSpec], list[Complaint]]:
    specs: list[FaultSpec] = []
    complaints: list[Complaint] = []
    if isinstance(items, list) and len(items) > MAX_FAULTS:
        message = f"chaos: {len(items)} faults are too many; a scenario has at most {MAX_FAULTS}"
        return [], [Complaint(("chaos",), message, "write several scenarios", at_key=True)]
    for index, item in enumerate(items if isinstance(items, list) else []):
        if consumers:
            spec, found = _of_kind(consumer_faults, "fault", lambda kind: kind.Spec, item, ("chaos", index))
        else:
            spec, found = _of_kind(faults, "fault", lambda kind: kind.Spec, item, ("chaos", index))
        complaints += found
        if isinstance(spec, FaultSpec):
            specs.append(spec)
    return specs, complaints


def _oracle(item: Any) -> tuple[OracleSpec | None, list[Complaint]]:
    if item is None:
        return None, []  # a missing oracle is the frame's complaint
    spec, complaints = _of_kind(oracles, "kind", lambda kind: kind.Spec, item, ("oracle",))
    return (spec if isinstance(spec, OracleSpec) else None), complaints


def _dataset_options(inputs: Any) -> list[Complaint]:
    complaints: list[Complaint] = []
    for index, item in enumerate(inputs if isinstance(inputs, list) else []):
        if not isinstance(item, dict) or not isinstance(item.get("dataset"), str):
            continue  # the frame complains
        loc: Loc = ("input", index)
        if item["dataset"] not in datasets.names():
            message = f"unknown dataset {item['dataset']!r}"
            complaints.append(Complaint((*loc, "dataset"), message, suggest(item["dataset"], datasets.names())))
        elif isinstance(options := item.get("options", {}), dict):
            complaints += validate(datasets.get(item["dataset"]).Options, options, (*loc, "options"))[1]
    return complaints


def _of_kind(
    registry: Registry[T], field: str, model_of: Callable[[T], type[BaseModel]], item: Any, loc: Loc
) -> tuple[BaseModel | None, list[Complaint]]:
    """``item`` as the model of the kind that its ``field`` names."""
    if not isinstance(item, dict):
        hint = f"write '{field}: NAME' and its settings below it"
        return None, [Complaint(loc, f"{shown(item)} is not a mapping", hint)]
    kind = item.get(field)
    if kind is None:
        hint = f"known: {', '.join(registry.names())}"
        return None, [Complaint(loc, f"key {field!r} is missing", hint, at_key=True)]
    if kind not in registry.names():
        hint = suggest(str(kind), registry.names())
        return None, [Complaint((*loc, field), f"unknown {registry.noun} {kind!r}", hint)]
    return validate(model_of(registry.get(kind)), item, loc)
