"""JSON with a schema: values are JSON objects, and each must be valid under JSON Schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
import referencing.jsonschema

from onceproof.base.errors import UsageError
from onceproof.formats import values
from onceproof.formats.registry import Schema


def _exact(kind: Any) -> Any:
    """The types of a version of JSON Schema, for numbers that are `Decimal`: 1.0 is an integer too."""

    def is_integer(_checker: Any, value: Any) -> bool:
        if isinstance(value, Decimal):
            return value.is_finite() and value == value.to_integral_value()
        return isinstance(value, int) and not isinstance(value, bool)

    return kind.TYPE_CHECKER.redefine("integer", is_integer)


class JsonSchema:
    """One schema. References outside it are never fetched: they must be among the registry's references."""

    def __init__(self, schema: Schema) -> None:
        """Raises `UsageError` if the text is not a JSON Schema."""
        place = schema.file or "from the registry"
        try:
            parsed = json.loads(schema.text, parse_float=Decimal)
            kind: Any = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
            kind.check_schema(parsed)
            known: Any = referencing.Registry().with_resources(
                (name, referencing.Resource.from_contents(json.loads(text), referencing.jsonschema.DRAFT202012))
                for name, text in schema.references
            )
        except (ValueError, jsonschema.SchemaError, TypeError, AttributeError) as error:
            why = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
            raise UsageError(f"schema {place!r} is not a JSON Schema: {why}", hint="correct the schema") from None
        validators: Any = jsonschema.validators
        self._validator: Any = validators.extend(kind, type_checker=_exact(kind))(parsed, registry=known)

    def decode(self, body: bytes) -> Any:
        """The value, its fractions as `Decimal`. Raises `ValueError` for a value that is not JSON, or not valid."""
        value = values.parse(body)
        try:
            # One error, the same one on every machine: the first by its place.
            errors = sorted(
                self._validator.iter_errors(value), key=lambda error: (list(map(str, error.path)), error.message)
            )
        except referencing.exceptions.Unresolvable as error:
            raise ValueError(f"the schema refers to {error.ref!r}, which is not among its references") from None
        if errors:
            place = ".".join(map(str, errors[0].path)) or "(the value)"
            raise ValueError(f"field {place}: {errors[0].message[:200]}")
        return value

    def encode(self, body: bytes) -> bytes:
        """The bytes as they are, if they are valid. Raises `ValueError`."""
        self.decode(body)
        return body
