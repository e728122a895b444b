"""Values in JSON for people to read, in dead letters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def readable(value: Any) -> Any:
    """The value in JSON: what JSON lacks is text."""
    if isinstance(value, Mapping):
        return {str(name): readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
