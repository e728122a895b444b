"""Validates a part of a scenario with its model, and turns pydantic's errors into messages for the scenario's author."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from onceproof.base.registry import suggest
from onceproof.scenario import kinds
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.kinds import COMPLAINT
from onceproof.scenario.model import OracleSpec, kind_of_pipeline
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, Loc, shown

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: Any, above: Loc = ()) -> tuple[M | None, list[Complaint]]:
    """``data`` as ``model``, or what is wrong with it. ``above`` is the path of ``data`` in the document.

    The data goes through JSON for JSON's strictness: text is not a number and ``true`` is not 1, but lists become tuples and
    names become enum members.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True), []
    except ValidationError as error:
        return None, [_complaint(model, data, detail, above) for detail in error.errors(include_url=False)]


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "at least {} entry"),
    "too_long": ("max_length", "at most {} entries"),
}


def _complaint(model: type[BaseModel], data: Any, detail: ErrorDetails, above: Loc) -> Complaint:
    below: Loc = detail["loc"]
    loc, kind, value = above + below, detail["type"], detail["input"]
    if kind == COMPLAINT:
        return Complaint(loc, **detail["ctx"])
    if kind == "extra_forbidden":
        key, owner = str(below[-1]), _annotation_at(model, data, below[:-1])
        if isinstance(owner, type) and issubclass(owner, AnyFaultSpec):
            item = reduce(getitem, below[:-1], data)
            if ways := kinds.ways_to_set(key, kinds.faults.of(owner.pipeline), item):
                message = f"{key} does not apply to this {item['fault']} of {item['target']}"
                return Complaint(loc, message, f"remove {key}, or set {', or '.join(ways)}", at_key=True)
        return Complaint(loc, f"unknown key {key!r}", suggest(key, list(_fields(owner))), at_key=True)
    if kind == "missing":
        field = _fields(_annotation_at(model, data, below[:-1])).get(below[-1])
        hint = f"{below[-1]}: {field.description}" if field is not None and field.description else None
        return Complaint(loc[:-1], f"key {below[-1]!r} is missing", hint, at_key=True)
    name = next((step for step in reversed(loc) if isinstance(step, str)), "value")
    if kind in ("literal_error", "enum"):
        choices = _choices(_annotation_at(model, data, below))
        if isinstance(value, str):
            return Complaint(loc, f"unknown {name} {value!r}", suggest(value, [str(choice) for choice in choices]))
        return Complaint(loc, f"{name}: {shown(value)} is not allowed; want {' or '.join(map(str, choices))}")
    if kind == "too_long":
        return Complaint(loc, f"{name}: want {_BOUNDS[kind][1].format(detail['ctx']['max_length'])}", at_key=True)
    if kind in _BOUNDS:
        bound, wanted = _BOUNDS[kind]
        return Complaint(loc, f"{name}: {shown(value)} is not allowed; want {wanted.format(detail['ctx'][bound])}")
    kind_wanted = _WANTED.get(kind.split("_")[0])
    if kind_wanted is None or not kind.endswith(("_type", "_parsing", "_from_float")):
        why = detail["msg"].removeprefix("Value error, ")
        return Complaint(loc, f"{name}: {shown(value)}: {why}")
    hint = f'quote it: "{value}"' if kind_wanted == "text" and isinstance(value, bool | int | float) else None
    return Complaint(loc, f"{name}: {shown(value)} is not {kind_wanted}", hint)


def _annotation_at(model: Any, data: Any, loc: Loc) -> Any:
    """The type at ``loc`` below ``model``, given its ``data``; None if the path leaves the known fields."""
    here, value = _bare(model), data
    for step in loc:
        try:
            value = value[step]
        except (IndexError, KeyError, TypeError):
            value = None
        if fields := _fields(here):
            here = _bare(fields[step].annotation) if step in fields else None
        elif get_origin(here) in (list, tuple, dict, Mapping):
            here = _bare(next(arg for arg in reversed(get_args(here)) if arg is not Ellipsis))
        else:
            return None
        if here is AnyFaultSpec and isinstance(value, dict):
            registry = kinds.faults.of(kind_of_pipeline(data.get("pipeline") if isinstance(data, dict) else None))
            here = kinds.model_of(registry, "fault", value) or here
        elif here is OracleSpec and isinstance(value, dict):
            here = kinds.model_of(kinds.oracles, "kind", value) or here
        elif here is OutputSpec and isinstance(value, dict):
            here = kinds.output_model(value) or here
    return here


def _bare(annotation: Any) -> Any:
    """``annotation`` without ``Annotated`` and ``| None``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            rest = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(rest) != 1:
                return annotation
            annotation = rest[0]
        else:
            return annotation


def _fields(model: Any) -> dict[Any, FieldInfo]:
    """Key in a document -> the field, of a model; empty for anything else."""
    is_model = isinstance(model, type) and issubclass(model, BaseModel)
    return {field.alias or name: field for name, field in model.model_fields.items()} if is_model else {}


def _choices(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [member.value for member in annotation]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []
