"""Writes the exact version of every Python package into pyproject.toml. Run it to upgrade, then review the difference.

``python tools/pin_python.py`` resolves again, as if nothing were pinned, and replaces ``constraint-dependencies``. Only
names and versions are kept: a lock file would hold the addresses of the registry that was used.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"

_BLOCK = re.compile(r"^constraint-dependencies = \[\n.*?^\]\n", re.MULTILINE | re.DOTALL)

_EXPORT = [
    "uv",
    "export",
    "--quiet",
    "--all-groups",
    "--no-emit-project",
    "--no-hashes",
    "--no-annotate",
    "--no-header",
]


def main() -> None:
    text = PYPROJECT.read_text()
    if not _BLOCK.search(text):
        raise SystemExit(f"{PYPROJECT}: no constraint-dependencies to replace")
    pins = "".join(f'  "{line}",\n' for line in resolve(_BLOCK.sub("", text)))
    PYPROJECT.write_text(_BLOCK.sub(lambda _: f"constraint-dependencies = [\n{pins}]\n", text))


def resolve(unpinned: str) -> list[str]:
    """Return ``name==version; marker`` of each package, as uv resolves this pyproject.toml for every platform and Python."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(unpinned)
        for name in ("README.md", "LICENSE"):
            shutil.copy(PYPROJECT.parent / name, folder)
        exported = subprocess.run(_EXPORT, cwd=folder, check=True, capture_output=True, text=True).stdout
    return [line.replace(" ; ", "; ") for line in exported.splitlines()]


if __name__ == "__main__":
    main()
