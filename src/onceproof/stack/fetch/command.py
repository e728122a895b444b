"""Runs a tool that fetches or builds a component, with an end also if it hangs or the user interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.progress import Progress

#: A cold build of toxiproxy-server takes 25 s to a minute, a wheel of 50 MB seconds; the rest is for slow downloads.
_TIMEOUT_S = 600.0


def run_tool(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], progress: Progress, hint: str) -> None:
    """Run the tool in ``cwd``, where its output becomes the file ``log``; if ``progress`` is stopped, kill it.

    Raises `EnvironmentProblem` with its last output and ``hint`` if it fails.
    """
    code, lines = run(argv, cwd=cwd, env=env, progress=progress, timeout_s=_TIMEOUT_S)
    words = " ".join(argv)
    if code is None:
        raise EnvironmentProblem(f"{words} did not end within {_TIMEOUT_S:.0f} s")
    if code != 0:
        last_lines = "\n".join(lines[-15:])
        raise EnvironmentProblem(f"`{words}` failed with exit code {code}:\n{last_lines}", hint=hint)


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], progress: Progress, timeout_s: float
) -> tuple[int | None, list[str]]:
    """The exit code of a tool, None if it had to be killed after ``timeout_s``; and the lines of its output."""
    log = cwd / "log"
    with log.open("wb") as opened:
        process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, start_new_session=True
        )
    code = None
    try:
        wait_until("the tool to end", lambda: process.poll() is not None, deadline_s=timeout_s, abandon=progress.check)
        code = process.returncode
    except WaitTimeout:
        pass
    finally:
        if process.poll() is None:
            # Also ends the compilers that go started: they are in its session and process group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text(encoding="utf-8", errors="replace").splitlines()
