"""The distribution onceproof-sinks: builds its wheel and installs it into a new environment, as a user does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
SINKS = ROOT / "sinks"


def build(folder: Path) -> Path:
    """The wheel, made from the sdist as for a release. In a copy, because a build leaves files next to the sources."""
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    left_by_builds = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(SINKS, folder / "sinks", symlinks=True, ignore=left_by_builds)
    uv("build", "--quiet", "--out-dir", folder / "dist", folder / "sinks")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def make_environment(folder: Path) -> Path:
    """A new virtual environment with nothing in it. Returns its Python."""
    uv("venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    # uv takes a wheel of the same name and version from its cache, even if the file has changed.
    uv("pip", "install", "--quiet", "--refresh-package", "onceproof-sinks", "--python", python, *what)


def uv(*words: str | Path) -> str:
    """What the command prints. It runs in the repository, whose exact versions it uses."""
    done = subprocess.run([find_uv_bin(), *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(python: Path, script: str, *words: str, **environment: str) -> str:
    """What the script prints, in a Python that knows nothing but its own environment."""
    command = [str(python), "-I", "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
