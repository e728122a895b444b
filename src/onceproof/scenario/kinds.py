"""The kinds of faults and oracles that a scenario can name: their registries, and how an item becomes the model of its kind.

A kind is a class with a ``Spec``. Its package is imported when a kind is first asked for.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from onceproof.base.registry import Registry, suggest
from onceproof.scenario.problem import shown

faults: Registry[Any] = Registry("fault", "onceproof.chaos", "onceproof.faults")
consumer_faults: Registry[Any] = Registry(
    "fault of consumers", "onceproof.chaos.consumers", "onceproof.consumer-faults"
)
oracles: Registry[Any] = Registry("oracle", "onceproof.oracle", "onceproof.oracles")

#: The type of an error whose context has a ``message`` and a ``hint`` for the author of the scenario.
COMPLAINT = "complaint"


def spec_of(registry: Registry[Any], field: str, item: Any, info: ValidationInfo) -> BaseModel:
    """``item`` as the model of the kind that its ``field`` names."""
    if isinstance(item, BaseModel):
        return item
    if not isinstance(item, dict):
        raise _complaint(f"{shown(item)} is not a mapping", f"write '{field}: NAME' and its settings below it")
    model = model_of(registry, field, item)
    if model is None and item.get(field) is None:
        raise _complaint(f"key {field!r} is missing", f"known: {', '.join(registry.names())}", at_key=True)
    if model is None:
        kind = item[field]
        unknown = _complaint(f"unknown {registry.noun} {kind!r}", suggest(str(kind), registry.names()))
        raise ValidationError.from_exception_data(
            registry.noun, [InitErrorDetails(type=unknown, loc=(field,), input=kind)]
        )
    # What comes from a file is JSON by now, and strictness is JSON's: text is no number, and a name is an enum's member.
    return (
        model.model_validate_json(json.dumps(item), strict=True) if info.mode == "json" else model.model_validate(item)
    )


def model_of(registry: Registry[Any], field: str, item: dict[str, Any]) -> type[BaseModel] | None:
    """The model of the kind that the item names; None where that is none."""
    kind = item.get(field)
    if kind not in registry.names():
        return None
    model: type[BaseModel] = registry.get(kind).Spec
    return model


def _complaint(message: str, hint: str, *, at_key: bool = False) -> PydanticCustomError:
    return PydanticCustomError(COMPLAINT, "{message} ({hint})", {"message": message, "hint": hint, "at_key": at_key})
