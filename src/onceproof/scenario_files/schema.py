"""The JSON Schema of a scenario file, made from the models and the registries, for editors: `onceproof schema`.

It checks each value alone. Only `onceproof validate` checks values against each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.judge.checker import checkers
from onceproof.kinds.contract import pipelines
from onceproof.oracle import oracles
from onceproof.oracle.contract import decoders
from onceproof.scenario.model import ExpectedVerdict, InputSpec, PipelineSpec, Scenario
from onceproof.stores.contract import stores

# The oracle of stored slices: onceproof writes it, not an author.
_NOT_WRITTEN = {"slice"}


@cache
def schema_text() -> str:
    """`schema` as JSON text. Made once per process: it takes a tenth of a second, and does not change after the first call."""
    return json.dumps(schema(), indent=2)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a scenario, with the description of every field."""
    kinds: dict[str, Sequence[type[BaseModel]]] = {
        "faults": [fault.Spec for kind in pipelines.names() for _, fault in faults.of(kind).items()],
        "oracles": [kind.Spec for name, kind in oracles.items() if name not in _NOT_WRITTEN],
        "datasets": [dataset.Options for _, dataset in datasets.items()],
    }
    outputs = list(dict.fromkeys(store.Spec for _, store in stores.items()))
    everything: list[type[BaseModel]] = [
        Scenario,
        *outputs,
        *dict.fromkeys(model for some in kinds.values() for model in some),
    ]
    references, document = models_json_schema([(model, "validation") for model in everything])
    definitions = document["$defs"]
    refs = {model: references[model, "validation"] for model in everything}
    for model in everything:
        _inherit(model, definitions[_name(refs[model])])
    scenario = definitions.pop(_name(refs[Scenario]))
    scenario["required"] = [name for name in scenario["required"] if name != "name"]  # the file's name
    scenario["title"] = "onceproof scenario"
    scenario["properties"]["chaos"]["items"] = {"anyOf": [refs[model] for model in kinds["faults"]]}
    scenario["properties"]["outputs"]["additionalProperties"] = {"anyOf": [refs[model] for model in outputs]}
    scenario["properties"]["oracle"] = {
        "description": Scenario.model_fields["oracle"].description,
        "anyOf": [refs[model] for model in kinds["oracles"]],
    }
    definitions[InputSpec.__name__]["allOf"] = [
        {"if": {"properties": {"dataset": {"const": name}}}, "then": {"properties": {"options": refs[dataset.Options]}}}
        for name, dataset in datasets.items()
    ]
    definitions[InputSpec.__name__]["properties"]["dataset"]["enum"] = datasets.names()
    definitions[ExpectedVerdict.__name__]["properties"]["anomalies"]["items"]["enum"] = checkers.names()
    for definition in definitions.values():
        if "decode" in definition.get("properties", {}):
            decode = definition["properties"]["decode"]
            decode["anyOf"] = [{"enum": [name for name, _ in decoders.listed()]}, {"pattern": ":"}]
    # Consumers need no command: onceproof has a worker for them.
    pipeline = definitions[PipelineSpec.__name__]
    pipeline["required"] = [name for name in pipeline["required"] if name != "command"]
    pipeline["anyOf"] = [{"required": ["command"]}, {"required": ["consumers"]}]
    definitions |= {_SCENARIO: scenario, _based(_SCENARIO): {}}
    _add_based(_SCENARIO, definitions)
    definitions[_based(_SCENARIO)]["description"] = "a scenario with a base: only what it changes; null removes a value"
    document = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "if": {"required": ["base"]},
        "then": {"$ref": f"#/$defs/{_based(_SCENARIO)}"},
        "else": {"$ref": f"#/$defs/{_SCENARIO}"},
    }
    return {**document, "$defs": {name: definitions[name] for name in sorted(_used(document, definitions))}}


_SCENARIO = Scenario.__name__


def _based(name: str) -> str:
    return f"{name}-based"


def _add_based(name: str, definitions: dict[str, Any]) -> None:
    """Define the mapping ``name`` as a scenario with a base may write it: no key is required, and null removes one."""
    made = {key: value for key, value in definitions[name].items() if key != "required"}
    if name == PipelineSpec.__name__:
        del made["anyOf"]
    definitions[_based(name)] = made  # before its properties, which may refer back to it
    made["properties"] = {
        key: {**_mergeable(value, definitions), "description": value.get("description", "")}
        for key, value in made.get("properties", {}).items()
    }


def _mergeable(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of ``value`` or null, its mappings as `_add_based` defines them. Lists stay: a file replaces a list as a whole."""
    if "$ref" in value and "properties" in definitions[_name(value)]:
        if _based(_name(value)) not in definitions:
            _add_based(_name(value), definitions)
        value = {"$ref": f"#/$defs/{_based(_name(value))}"}
    elif isinstance(value.get("additionalProperties"), dict):
        value = {**value, "additionalProperties": _mergeable(value["additionalProperties"], definitions)}
    elif "anyOf" in value:
        return {"anyOf": [*(_mergeable(each, definitions) for each in value["anyOf"]), {"type": "null"}]}
    return {"anyOf": [value, {"type": "null"}]}


def fields(model: type[BaseModel]) -> list[tuple[str, str]]:
    """Each field of a kind of fault, oracle or data set: its name, and its description with the values that it takes."""
    described = model.model_json_schema()
    _inherit(model, described)
    required = described.get("required", [])
    found = []
    for name, field in described.get("properties", {}).items():
        values = _values(field, described.get("$defs", {}))
        default = "" if field.get("default") is None else f"; default: {field['default']}"
        note = "; required" if name in required else default
        found.append((name, f"{field.get('description', '')} ({values}{note})".strip()))
    return found


def _inherit(model: type[BaseModel], described: dict[str, Any]) -> None:
    """Describe the fields that a kind only narrows (its name, its targets) with the description of its base class."""
    for name, field in described.get("properties", {}).items():
        if "description" not in field:
            inherited = (getattr(base, "model_fields", {}).get(name) for base in model.__mro__)
            known = next((info.description for info in inherited if info is not None and info.description), None)
            if known is not None:
                field["description"] = known


def _name(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).removeprefix("#/$defs/")


def _used(tree: Any, definitions: dict[str, Any]) -> set[str]:
    """Names of the definitions that ``tree`` refers to, directly or through others."""
    found: set[str] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str) and (name := _name(node)) not in found:
                found.add(name)
                todo.append(definitions[name])
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return found


def _values(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The values that a field takes, in a few words."""
    if "$ref" in field:
        inner = definitions[_name(field)]
        return (
            _values(inner, definitions) if "enum" in inner else f"a mapping of {', '.join(inner.get('properties', {}))}"
        )
    if "const" in field:
        return str(field["const"])
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(_values(each, definitions) for each in field["anyOf"] if each.get("type") != "null")
    if field.get("type") == "array":
        return f"a list of {_values(field.get('items', {}), definitions)}"
    return {"object": "a mapping", "string": "text", "boolean": "true or false"}.get(
        str(field.get("type")), str(field.get("type", "any"))
    )
