"""Copy the tests, and only them, to a folder: what they then import is what is installed, not what lies beside them.

``python tools/copy_tests.py FOLDER``. Tests of the sources themselves stay behind.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder / "tests", ignore_errors=True)
    shutil.copytree(
        ROOT / "tests",
        folder / "tests",
        ignore=shutil.ignore_patterns("test_tidy.py", "test_docs.py", "__pycache__", ".pytest_cache"),
    )
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings


if __name__ == "__main__":
    main()
