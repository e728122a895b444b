"""The run record, ``run.json``: the types of what judging reads in it. Keys that are not known are passed over.

A value of the wrong type is an error with its name and the file's: ``"drained": "false"`` would otherwise count as true.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onceproof.base.errors import HistoryError

Check = Callable[[Any], bool]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_count(value: Any) -> bool:
    return _is_whole(value) and bool(value >= 0)


def _is_time(value: Any) -> bool:
    """Seconds within what a clock of microseconds in 64 bits can say."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**43
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


_BOOL = (_is_bool, "true or false")
_TEXT_OR_NULL = (_or_null(_is_text), "a string or null")
_OBJECT_OR_NULL = (_or_null(_is_object), "an object or null")

#: Key, dots between levels -> whether a value is right, and what is.
_FIELDS: Mapping[str, tuple[Check, str]] = {
    "scenario": (_is_object, "an object"),
    "scenario.name": (_is_text, "a string"),
    "scenario.claim": (_is_object, "an object"),
    "scenario.chaos": (_or_null(_is_objects), "a list of objects"),
    "scenario_path": (_is_text, "a string"),
    "observed": _BOOL,
    "schema": (_is_whole, "a whole number"),
    "drained": _BOOL,
    "drain_note": _TEXT_OR_NULL,
    "stuck": _BOOL,
    "nudged": _BOOL,
    "never_reads": _BOOL,
    "imported": _BOOL,
    "interrupted": _BOOL,
    "error": _TEXT_OR_NULL,
    "seed": (_is_whole, "a whole number"),
    "seconds": (_is_time, "a number of seconds"),
    "wall_start": (_is_time, "a number of seconds since 1970"),
    "job": _OBJECT_OR_NULL,
    "job.starts": (_is_count, "a whole number from 0 on"),
    "job.died_before_fault": _BOOL,
    "job.traceback": _TEXT_OR_NULL,
    "job.log_tail": _TEXT_OR_NULL,
    "job.exits": (_or_null(_is_objects), "a list of objects"),
    "job.failure": _OBJECT_OR_NULL,
    "open_watermarks": _OBJECT_OR_NULL,
    "open_watermarks.*": _OBJECT_OR_NULL,
    "outputs": _OBJECT_OR_NULL,
    "expectation": _OBJECT_OR_NULL,
    "expectation.failed": _TEXT_OR_NULL,
    "decoded": _OBJECT_OR_NULL,
    "decoded.failed": _TEXT_OR_NULL,
    "decoded.inputs": (_is_object, "an object"),
    "decoded.inputs.*": _OBJECT_OR_NULL,
    "decoded.inputs.*.undecodable": (_is_count, "a whole number from 0 on"),
    "decoded.outputs": (_is_object, "an object"),
    "decoded.outputs.*": _OBJECT_OR_NULL,
    "decoded.outputs.*.undecodable": (_is_count, "a whole number from 0 on"),
    "slice": (_is_object, "an object"),
}


def check(document: Mapping[str, Any], path: Path) -> None:
    """Raises `HistoryError` naming the field, its value and the file."""
    for field, (is_right, wanted) in _FIELDS.items():
        for name, value in _found(document, field.split(".")):
            if not is_right(value):
                raise HistoryError(
                    f"{path}: {name} is {_shown(value)}, and must be {wanted}",
                    hint="it breaks the format in docs/history.md: fix the program that wrote it, or copy the run again",
                )
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        name, value = next(_unpaired(document, ""))
        raise HistoryError(
            f"{path}: {name} is {_shown(value)}, which holds half of a surrogate pair: that is no text",
            hint="it breaks the format in docs/history.md: fix the program that wrote it, or copy the run again",
        ) from None


def _found(document: Any, field: list[str], above: str = "") -> Iterator[tuple[str, Any]]:
    """What is there under this name; ``*`` stands for every name."""
    if not isinstance(document, dict):
        return
    first, *rest = field
    for key in document if first == "*" else [first] if first in document else []:
        name = f"{above}{key}"
        if rest:
            yield from _found(document[key], rest, f"{name}.")
        else:
            yield name, document[key]


def _unpaired(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The texts that cannot be written as UTF-8, keys among them."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield name or "it", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _unpaired(key, f"a key of {name}" if name else "a key")
            yield from _unpaired(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unpaired(inner, f"{name}[{index}]")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
