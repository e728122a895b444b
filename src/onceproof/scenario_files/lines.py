"""The line of a scenario file at which a verdict on the whole scenario is reported. Found without reading it as YAML."""

from __future__ import annotations

from pathlib import Path

#: Top-level keys, the most informative first: the verdict is about the claim.
_KEYS = ("claim", "expect", "chaos")


def line_of_verdict(path: Path) -> int:
    """The line, from 1, of the claim; else that of what is expected, or of the faults; 1 if the file has none of them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 1
    found = {
        line.partition(":")[0]: number for number, line in reversed(list(enumerate(lines, start=1))) if ":" in line
    }
    return next((found[key] for key in _KEYS if key in found), 1)
