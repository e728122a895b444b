"""The scenarios that ``[tool.onceproof] scenarios`` of pyproject.toml lists as tests."""

from __future__ import annotations

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
        paths = sorted(root.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        paths = [path for path in paths if path.is_file()]
        if not paths:
            raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios: no file is named {pattern!r} in {root}")
        for path in paths:
            found[path] = (*found.get(path, ()), *markers)
    return found


def _parsed(file: Path, entry: object) -> tuple[str, tuple[str, ...]]:
    path, markers = (entry.get("path"), entry.get("markers", [])) if isinstance(entry, dict) else (entry, [])
    unknown = set(entry) - {"path", "markers"} if isinstance(entry, dict) else set()
    texts = [path, *markers] if isinstance(markers, list) else [None]
    if unknown or not path or not all(isinstance(text, str) for text in texts):
        raise pytest.UsageError(f"{file}: [tool.onceproof] scenarios: {entry!r} is not a path; {_HINT}")
    return str(path), tuple(map(str, markers))
