"""Paths as a user wrote them: looking one up never raises, however impossible it is (too long, a NUL, an unknown ~user)."""

from __future__ import annotations

from pathlib import Path


def expanded(written: str | Path) -> Path:
    """With ``~`` as the home folder; ``~nosuchuser`` is left as it is written."""
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
