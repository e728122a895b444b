"""Options of a streaming format, which Spark passes as text, as the settings of its sink."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import SinkError

Kinds = Mapping[str, Callable[[str], Any]]
"""Option -> what makes its value from text, and raises `ValueError` for a text that has another form."""

#: Of every format. Spark passes it on if it is an option of the query.
CHECKPOINT = "checkpointLocation"


def settings_of(name: str, options: Mapping[str, str], needed: Iterable[str], kinds: Kinds) -> dict[str, Any]:
    """The values of the options, whose names count in any case. Raises `SinkError` for one that is missing, unknown or wrong."""
    known = {each.lower(): each for each in kinds}
    made: dict[str, Any] = {}
    for option, text in options.items():
        if option.lower() not in known:
            near = difflib.get_close_matches(option.lower(), known, n=1)
            raise SinkError(
                f"format {name!r} has no option {option!r}",
                hint=f"did you mean {known[near[0]]!r}?" if near else f"it has {', '.join(kinds)}",
            )
        own = known[option.lower()]
        try:
            made[own] = kinds[own](text)
        except ValueError:
            wanted = "true or false" if kinds[own] is truth else "a number"
            raise SinkError(f"option {own!r} of format {name!r} is {text!r}, not {wanted}") from None
    if missing := [each for each in (CHECKPOINT, *needed) if each not in made]:
        raise SinkError(
            f"format {name!r} lacks the option {missing[0]!r}",
            hint="set it as an option of the query: the session's setting does not reach the sink"
            if missing[0] == CHECKPOINT
            else f"it needs {', '.join(needed)}",
        )
    return made


def truth(text: str) -> bool:
    """Raises `ValueError`."""
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return found


def names(text: str) -> list[str]:
    """``a, b``: the names of columns."""
    return [name.strip() for name in text.split(",")]
