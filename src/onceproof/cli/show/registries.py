"""``list WHAT``: what scenarios are made of, from the registries."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.cli.options import LISTS
from onceproof.cli.show.layout import hanging, table
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.judge.checker import checkers
from onceproof.kinds.contract import pipelines
from onceproof.oracle import oracles
from onceproof.oracle.contract.decoders import listed
from onceproof.reports.report import reports
from onceproof.scenario.points import LEFT_BEHIND
from onceproof.scenario_files import document
from onceproof.scenario_files.explain import validate
from onceproof.scenario_files.schema import fields
from onceproof.scenario_files.shipped import paths
from onceproof.stores.contract import stores


def listing(what: str, as_json: bool) -> str:
    """The items of a registry, or the points: each name with a description. Raises `UsageError` for another list."""
    _must_be_a_list(what)
    entries = _entries(what)
    if as_json:
        return json.dumps({what: [{"name": name, "about": about} for name, about in entries]})
    return table(entries) if entries else f"no {what}"


def listing_of(what: str, name: str, as_json: bool) -> str:
    """The fields of one fault, oracle, data set or store. Raises `UsageError` for an unknown name, or a list without fields."""
    _must_be_a_list(what)
    with_fields: dict[str, list[tuple[str, str, type[BaseModel]]]] = {
        "faults": [
            (f"{each}{kind.fault_label}", fault.about, fault.Spec)
            for pipeline, kind in pipelines.items()
            for each, fault in faults.of(pipeline).items()
        ],
        "oracles": [(each, kind.about, kind.Spec) for each, kind in oracles.items()],
        "datasets": [(each, kind.about, kind.Options) for each, kind in datasets.items()],
        "stores": [(each, store.about, store.Spec) for each, store in stores.items()],
    }
    if what not in with_fields:
        hint = f"these have fields: {', '.join(with_fields)}"
        raise UsageError(f"{what} have no fields to list: remove {name!r}", hint=hint)
    found = [entry for entry in with_fields[what] if name in (entry[0], entry[0].partition(" (")[0])]
    if not found:
        near = suggest(name, list(dict.fromkeys(each.partition(" (")[0] for each, _, _ in with_fields[what])))
        raise UsageError(f"there is no {name!r} among the {what}; {near}", hint=f"list them: onceproof list {what}")
    examples = [_example(name, model) if what == "faults" else None for _, _, model in found]
    if as_json:
        entries = [
            {"name": each, "about": about, "fields": dict(fields(model))}
            | ({} if shown is None else {"example": shown[0]})
            for (each, about, model), shown in zip(found, examples, strict=True)
        ]
        return json.dumps({what: entries})
    blocks = []
    for (each, about, model), shown in zip(found, examples, strict=True):
        rows = fields(model)
        lines = [hanging(each, about, len(each) + 2), table(rows) if rows else "no fields"]
        blocks.append(
            "\n".join(lines if shown is None else [*lines, f"for example, in scenario {shown[1]}:", f"  - {shown[0]}"])
        )
    return "\n\n".join(blocks)


def _example(fault: str, model: type[BaseModel]) -> tuple[str, str] | None:
    """A fault of this model as a shipped scenario has it, on one line, and the scenario's name."""
    for path in paths():
        if f"fault: {fault}" in path.read_text(encoding="utf-8"):
            for one in document.read(path, only=("chaos",)).data.get("chaos") or ():
                if one.get("fault") == fault and validate(model, one)[0] is not None:
                    return _flow(one), path.stem
    return None


def _flow(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*( [A-Za-z][\w.-]*)*", value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def _must_be_a_list(what: str) -> None:
    if what not in LISTS:
        hint = f"these can be listed: {', '.join(LISTS)}"
        raise UsageError(f"there is no list of {what!r}; {suggest(what, [*LISTS])}", hint=hint)


def _entries(what: str) -> list[tuple[str, str]]:
    match what:
        case "points":
            return [(point.value, left) for point, left in LEFT_BEHIND.items()]
        case "faults":
            return [
                (f"{name}{kind.fault_label}", "; ".join(fault.about for fault in faults.of(pipeline).all(name)))
                for pipeline, kind in pipelines.items()
                for name in faults.of(pipeline).names()
            ]
        case "checkers":
            return [(name, checker.meaning) for name, checker in checkers.items()]
        case "oracles":
            return [(name, oracle.about) for name, oracle in oracles.items()]
        case "datasets":
            return [(name, dataset.about) for name, dataset in datasets.items()]
        case "stores":
            return [(name, f"{store.field}: {store.about}") for name, store in stores.items()]
        case "decoders":
            return listed()
        case _:
            return [(name, report.about) for name, report in reports.items()]
