"""The NAME=FILE options of the command `import`."""

from __future__ import annotations

from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.paths import expanded


def files(option: str, given: list[str] | None) -> dict[str, Path]:
    """Name -> file of each NAME=FILE that was given to ``option``. Raises `UsageError`."""
    found: dict[str, Path] = {}
    for text in given or []:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UsageError(f"{option} {text!r} is not NAME=FILE")
        if name in found:
            raise UsageError(f"{option} {name!r} is given twice", hint="name one file for each")
        found[name] = expanded(file)
    return found
