"""Durations as people write them."""

from __future__ import annotations

import re

from onceproof.base.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_LEAST_S = 10.0
_HINT = "a number with s, m or h: 90s, 10m, 1h30m"


def seconds(text: str, name: str = "--budget") -> float:
    """``90s``, ``10m``, ``1h30m``, as given to the setting ``name``, in seconds. Raises `UsageError`."""
    total = any_seconds(text, name)
    if total < _LEAST_S:
        raise UsageError(
            f"{name} {text!r} is too short: a run without faults takes {_LEAST_S:.0f} s or more", hint=f"give {_HINT}"
        )
    return total


def any_seconds(text: str, name: str) -> float:
    """The same for a time that may be short, down to 0. Raises `UsageError`."""
    words = text.strip().lower()
    if not _DURATION.fullmatch(words):
        raise UsageError(f"{name} {text!r} is not a duration", hint=f"give {_HINT}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(words))


def clock(duration_s: float) -> str:
    """Return minutes and seconds, rounded: ``9:05``."""
    whole = round(duration_s)
    return f"{whole // 60}:{whole % 60:02d}"
