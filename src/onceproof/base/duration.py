"""Durations as people write them."""

from __future__ import annotations

import re

from onceproof.base.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_LEAST_S = 10.0


def seconds(text: str) -> float:
    """``90s``, ``10m``, ``1h30m``, as given to ``--budget``, in seconds. Raises `UsageError`."""
    words = text.strip().lower()
    hint = "a number with s, m or h: 90s, 10m, 1h30m"
    if not _DURATION.fullmatch(words):
        raise UsageError(f"--budget {text!r} is not a duration", hint=f"give {hint}")
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(words))
    if total < _LEAST_S:
        raise UsageError(
            f"--budget {text!r} is too short: a run without faults takes {_LEAST_S:.0f} s or more", hint=f"give {hint}"
        )
    return total
