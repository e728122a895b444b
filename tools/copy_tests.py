"""Copy the tests, and only them, to a folder: what they then import is what is installed, not what lies beside them.

``python tools/copy_tests.py FOLDER``. Tests of the sources themselves (``pytest.mark.sources``) stay behind.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def stay_behind(folder: str, names: list[str]) -> set[str]:
    """What `shutil.copytree` is to leave out of ``folder``."""
    tests = (name for name in names if name.startswith("test_"))
    sources = {name for name in tests if "pytest.mark.sources" in (Path(folder) / name).read_text(encoding="utf-8")}
    return sources | ({"__pycache__", ".pytest_cache"} & set(names))


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder / "tests", ignore_errors=True)
    shutil.copytree(
        ROOT / "tests",
        folder / "tests",
        ignore=stay_behind,
    )
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings


if __name__ == "__main__":
    main()
