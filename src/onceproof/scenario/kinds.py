"""Registries of the faults, stores and oracles that a scenario can name, and the parsing of an item by the model of its kind.

Each kind has a model, its ``Spec``. A registry imports its package when a kind is first looked up.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from onceproof.base.registry import Registry, suggest
from onceproof.scenario.problem import shown

#: Faults of Spark jobs; `Registry.of` returns those of other kinds of pipelines.
faults: Registry[Any] = Registry("fault", "onceproof.chaos", "onceproof.faults", part="command")
oracles: Registry[Any] = Registry("oracle", "onceproof.oracle", "onceproof.oracles")
stores: Registry[Any] = Registry("store", "onceproof.stores", "onceproof.stores", module="store")

#: The type of an error whose context has a ``message`` and a ``hint`` for the author of the scenario.
COMPLAINT = "complaint"


def spec_of(registry: Registry[Any], field: str, item: Any, info: ValidationInfo) -> BaseModel:
    """Parse ``item`` with the model of the kind that its ``field`` names."""
    if isinstance(item, BaseModel):
        return item
    if not isinstance(item, dict):
        raise complaint(f"{shown(item)} is not a mapping", f"write '{field}: NAME' and its settings below it")
    model = model_of(registry, field, item)
    if model is not None:
        return _validated(model, item, info)
    noun, known = registry.noun, registry.names()
    if item.get(field) in known:
        field, noun, known = "target", "target", targets_of(registry, item[field])
    if item.get(field) is None:
        raise complaint(f"key {field!r} is missing", f"known: {', '.join(known)}", at_key=True)
    unknown = complaint(f"unknown {noun} {item[field]!r}", suggest(str(item[field]), known))
    raise ValidationError.from_exception_data(noun, [InitErrorDetails(type=unknown, loc=(field,), input=item[field])])


def _validated(model: type[BaseModel], item: dict[str, Any], info: ValidationInfo) -> BaseModel:
    # A value from a file arrives as JSON and is checked as strictly: text is not a number, and a name becomes an enum member.
    return (
        model.model_validate_json(json.dumps(item), strict=True) if info.mode == "json" else model.model_validate(item)
    )


def model_of(registry: Registry[Any], field: str, item: dict[str, Any]) -> type[Any] | None:
    """The model of the kind that the item names; None if there is no such kind, or if none of it has the item's target.

    Some kinds of faults have a model per target, or for a target at a point.
    """
    at = item.get("at")
    point = at.get("point") if isinstance(at, dict) else None
    kind = registry.find(*map(str, (item.get(field), item.get("target"), point)))
    return None if kind is None else kind.Spec


def targets_of(registry: Registry[Any], kind: str) -> list[str]:
    """The targets of a kind of fault that has an implementation per target."""
    return sorted({variant[0] for variant in registry.variants(kind) if variant})


def ways_to_set(key: str, registry: Registry[Any], item: dict[str, Any]) -> list[str]:
    """What to set in the item so that its kind of fault has the setting ``key``: another target, perhaps another point."""
    having: dict[str, tuple[str, ...]] = {}
    for variant, fault in registry.variants(item["fault"]).items():
        if variant and key in fault.Spec.model_fields:
            having.setdefault(variant[0], variant)  # the first one is the most general: perhaps without a point
    own = (item["target"],)
    return ["another point" if one == own else f"target: {' and point: '.join(one)}" for one in having.values()]


def store_fields() -> list[str]:
    """The fields of an output that say where it is stored: one per store."""
    return sorted(store.field for _, store in stores.items())


def stores_of(output: Any) -> list[Any]:
    """The stores that an output names, as a mapping or as a model. A valid output names exactly one."""
    get = output.get if isinstance(output, dict) else partial(getattr, output)
    return [store for _, store in stores.items() if get(store.field, None) is not None]


def output_of(item: Any, info: ValidationInfo, otherwise: type[BaseModel]) -> Any:
    """Parse ``item`` with the model of the store that it names. `in_one_store` refuses an item that names none or several."""
    if not isinstance(item, dict):
        return item
    model = output_model(item)
    if model is None:
        _only_known_keys(item, otherwise)
    return _validated(model or otherwise, item, info)


def _only_known_keys(item: dict[str, Any], model: type[BaseModel]) -> None:
    """Raises `ValidationError` for unknown keys of an output that names no store: one of them may be meant to name it."""
    known = {*model.model_fields, *(field.alias for field in model.model_fields.values() if field.alias is not None)}
    hint = f"(an output needs one of {', '.join(store_fields())})"
    wrong = [
        InitErrorDetails(
            type=complaint(
                f"unknown key {key!r}", f"{suggest(str(key), sorted({*known, *store_fields()}))} {hint}", at_key=True
            ),
            loc=(key,),
            input=item[key],
        )
        for key in item
        if key not in known
    ]
    if wrong:
        raise ValidationError.from_exception_data("output", wrong)


def output_model(item: dict[str, Any]) -> type[BaseModel] | None:
    """The model of the first store that the item names."""
    return next((store.Spec for store in stores_of(item)), None)


def in_one_store(outputs: dict[str, Any]) -> None:
    """Raises `ValidationError` for outputs that are in no store, or in several."""
    wrong = []
    for name, output in outputs.items():
        found = sorted(store.field for store in stores_of(output))
        if len(found) != 1:
            message = (
                f"output {name!r} needs one of {', '.join(store_fields())}, and has {' and '.join(found) or 'none'}"
            )
            wrong.append(InitErrorDetails(type=complaint(message, None, at_key=True), loc=(name,), input=output))
    if wrong:
        raise ValidationError.from_exception_data("outputs", wrong)


def complaint(message: str, hint: str | None, *, at_key: bool = False) -> PydanticCustomError:
    """An error of a model's validator that is shown with a hint, and without the whole value."""
    words = "{message}" if hint is None else "{message} ({hint})"
    return PydanticCustomError(COMPLAINT, words, {"message": message, "hint": hint, "at_key": at_key})
