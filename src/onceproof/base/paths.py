"""Checks of paths that users wrote. They never raise, even for an impossible path (too long, with a NUL, an unknown ~user).

`temporary` is the exception: nothing runs without such a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem


def expanded(written: str | Path) -> Path:
    """The path with ``~`` expanded to the home folder; ``~nosuchuser`` stays as it is."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        return Path(written)


def absolute(path: Path) -> Path:
    """The path, absolute and without ``..``; other links in it stay as they are."""
    return path.resolve() if ".." in path.parts else path.absolute()


def temporary() -> Path:
    """The folder for temporary files: TMPDIR, or the system's. Raises `EnvironmentProblem` if it cannot be used.

    Python would silently take another folder than TMPDIR says, where the user may have no room.
    """
    if (wanted := os.environ.get("TMPDIR")) and not (os.path.isdir(wanted) and os.access(wanted, os.W_OK | os.X_OK)):  # noqa: PTH112
        raise EnvironmentProblem(
            f"TMPDIR is {wanted!r}, which is not a folder that can be written",
            hint="create it, set TMPDIR to a folder of yours, or unset it",
        )
    try:
        return Path(tempfile.gettempdir()).absolute()
    except OSError as none_usable:
        raise EnvironmentProblem(
            f"no folder for temporary files can be used: {none_usable.strerror or none_usable}",
            hint="free some space, or set TMPDIR to a folder that you can write",
        ) from None


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
