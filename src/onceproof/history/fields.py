"""The types of the run record's fields: what a stored value must be, and what is refused or counts as unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, PydanticUseDefault


def must(is_right: Callable[[Any], bool], wanted: str, *, null: bool = False) -> BeforeValidator:
    """Refuse any other value, and report what it must be. Nothing is converted: a number as text is refused."""
    words = f"{wanted} or null" if null else wanted

    def check(value: Any) -> Any:
        if not (is_right(value) or (null and value is None)):
            raise PydanticCustomError("wrong", "must be {wanted}", {"wanted": words})
        return value

    return BeforeValidator(check)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_time(value: Any) -> bool:
    """Whether the value is a number of seconds that a 64-bit clock of microseconds can represent."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**43
    )


def is_object(value: Any) -> bool:
    return isinstance(value, dict | BaseModel)


def are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_object, value))


def texts_of(value: Any) -> list[str]:
    """The texts in a list, so that the names of secrets are known even if other items are wrong."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def or_default(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return validate(value)
    except ValidationError:
        if info.context is not None:
            raise
        raise PydanticUseDefault from None


#: For fields that decide nothing: a stored value of another type counts as unknown.
Loose = WrapValidator(or_default)

a_bool = must(lambda value: isinstance(value, bool), "true or false")
a_text = must(lambda value: isinstance(value, str), "a string")
text_or_null = must(lambda value: isinstance(value, str), "a string", null=True)
a_whole = must(is_whole, "a whole number")
a_count = must(lambda value: is_whole(value) and value >= 0, "a whole number from 0 on")
an_object = must(is_object, "an object")
object_or_null = must(is_object, "an object", null=True)
objects_or_null = must(lambda value: value is None or are_objects(value), "a list of objects")

Bool = Annotated[bool, a_bool]
MaybeBool = Annotated[bool | None, a_bool]
"""None: the record lacks the key. Null is refused."""
MaybeText = Annotated[str | None, a_text]
TextOrNull = Annotated[str | None, text_or_null]
LooseText = Annotated[str | None, Loose]
LooseInt = Annotated[int | None, Loose]
LooseBool = Annotated[bool | None, Loose]


class Part(BaseModel):
    """A part of the record: frozen, and open to keys that other programs add."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_json(self) -> dict[str, Any]:
        """The fields that were set. No default is written."""
        return self.model_dump(by_alias=True, exclude_unset=True)
