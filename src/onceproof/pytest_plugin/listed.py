"""The scenarios that ``[tool.onceproof] scenarios`` of pyproject.toml lists as tests."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

_TABLE = ("tool", "onceproof")
_HINT = 'for example: scenarios = ["orders.yaml", {path = "flights/*.yaml", markers = ["slow"]}]'


#: Absolute path of each listed scenario, in the order of the list -> the markers of its test.
Listed = dict[Path, tuple[str, ...]]


def read_listed(root: Path) -> Listed:
    """The scenarios of ``root/pyproject.toml``; none without such a file or table.

    Raises `pytest.UsageError` with the entry that is wrong.
    """
    file = root / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return {}
    if f"[{'.'.join(_TABLE)}" not in text:  # most projects: parsing would cost every pytest some milliseconds
        return {}
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise pytest.UsageError(f"{file} is not TOML: {error}") from None
    for name in _TABLE:
        table = table.get(name, {})
    entries = table.get("scenarios", [])
    if not isinstance(entries, list):
        raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios is {entries!r}, not a list; {_HINT}")
    found: Listed = {}
    for entry in entries:
        pattern, markers = _parsed(file, entry)
        try:
            paths = sorted(root.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        except (ValueError, NotImplementedError) as error:
            raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios: {pattern!r}: {error}; {_HINT}") from None
        # As pytest writes paths: without "..", and with links as they are.
        paths = [Path(os.path.abspath(path)) for path in paths if path.is_file()]  # noqa: PTH100
        if not paths:
            raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios: no file is named {pattern!r} in {root}")
        for path in paths:
            found[path] = (*found.get(path, ()), *markers)
    return found


def check_collected(config: pytest.Config, listed: Iterable[Path], tops: Sequence[Path]) -> None:
    """Raises `pytest.UsageError` for a scenario below ``tops`` in a folder that pytest does not look into: it would never run."""
    patterns = config.getini("norecursedirs")
    for path in listed:
        for top in tops:
            folders = [folder for folder in path.parents if folder != top and folder.is_relative_to(top)]
            for folder in folders if path.is_relative_to(top) else ():
                if pattern := next((one for one in patterns if _is_left_out(folder, one)), None):
                    raise pytest.UsageError(
                        f"[tool.onceproof] scenarios: {path} is in folder {folder.name!r}, which pytest leaves out by "
                        f"norecursedirs ({pattern}): move the file, or set norecursedirs without this pattern"
                    )


def _is_left_out(folder: Path, pattern: str) -> bool:
    """Whether a pattern of ``norecursedirs`` fits the folder: its name, or its path if the pattern has a separator."""
    whole = os.sep in pattern
    return fnmatch.fnmatch(str(folder) if whole else folder.name, f"*{os.sep}{pattern}" if whole else pattern)


def _parsed(file: Path, entry: object) -> tuple[str, tuple[str, ...]]:
    path, markers = (entry.get("path"), entry.get("markers", [])) if isinstance(entry, dict) else (entry, [])
    unknown = set(entry) - {"path", "markers"} if isinstance(entry, dict) else set()
    texts = [path, *markers] if isinstance(markers, list) else [None]
    if unknown or not path or not all(isinstance(text, str) for text in texts):
        raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios: {entry!r} is not a path; {_HINT}")
    return str(path), tuple(map(str, markers))
