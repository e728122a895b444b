"""Writes the pages and tables that are made from the code, and the names in ``onceproof/__init__.py`` for type checkers.

``python tools/generate.py`` writes what is out of date; with ``--check`` it only lists those files (exit code 1 if there are any).
"""

from __future__ import annotations

import sys

from pages import anomalies, faults, phenomena, python_api, selftest, stacks, whats_here
from pages.page import ROOT


def main() -> int:
    files = {
        path: text
        for page in (anomalies, faults, phenomena, python_api, selftest, stacks, whats_here)
        for path, text in page.files().items()
    }
    old = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    names = ", ".join(str(path.relative_to(ROOT)) for path in old)
    if "--check" in sys.argv[1:]:
        print(f"out of date: {names}; run python tools/generate.py" if old else "up to date")
        return 1 if old else 0
    for path in old:
        path.write_text(files[path], encoding="utf-8")
    print(f"written: {names}" if old else "up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
