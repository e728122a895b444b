"""A problem of a scenario, and where in the document it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

Loc = tuple[str | int, ...]
"""Path of keys and list indexes from the top of the document."""
Text = TypeVar("Text", str, str | None)


@dataclass(frozen=True)
class Complaint:
    """Something wrong at ``loc``; ``at_key`` points at the key instead of the value."""

    loc: Loc
    message: str
    hint: str | None = None
    at_key: bool = False


def shown(value: Any) -> str:
    """The user's own value, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 70 else text[:67] + "..."


def shortened(text: Text, longest: int = 200) -> Text:
    """``text``, or only its beginning and end if it is too long for a message."""
    if text is None or len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-(longest // 2) :]}"
