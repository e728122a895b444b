"""Copies the tests, and nothing else, to a folder, so that they import the installed package and not the sources.

``python tools/copy_tests.py FOLDER``. Tests of the sources themselves (``pytest.mark.sources``) are not copied.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def not_copied(folder: str, names: list[str]) -> set[str]:
    """Return the names in ``folder`` that `shutil.copytree` must not copy."""
    tests = (name for name in names if name.startswith("test_"))
    sources = {name for name in tests if "pytest.mark.sources" in (Path(folder) / name).read_text(encoding="utf-8")}
    return sources | ({"__pycache__", ".pytest_cache"} & set(names))


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder / "tests", ignore_errors=True)
    shutil.copytree(
        ROOT / "tests",
        folder / "tests",
        ignore=not_copied,
    )
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings


if __name__ == "__main__":
    main()
