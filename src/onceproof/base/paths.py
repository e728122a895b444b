"""Checks of paths that users wrote. They never raise, even for an impossible path (too long, with a NUL, an unknown ~user)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def expanded(written: str | Path) -> Path:
    """The path with ``~`` expanded to the home folder; ``~nosuchuser`` stays as it is."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        return Path(written)


def is_file(path: Path) -> bool:
    return _holds(path.is_file)


def is_folder(path: Path) -> bool:
    return _holds(path.is_dir)


def exists(path: Path) -> bool:
    return _holds(path.exists)


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (OSError, ValueError):
        return False
