"""Checks of paths that users wrote. They never raise, even for an impossible path (too long, with a NUL, an unknown ~user)."""

from __future__ import annotations

from pathlib import Path


def expanded(written: str | Path) -> Path:
    """The path with ``~`` expanded to the home folder; ``~nosuchuser`` stays as it is."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        return Path(written)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
