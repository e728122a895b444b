"""Runs a tool that fetches or builds a component, with an end also if it hangs or the user interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.progress import Progress

#: A cold build of toxiproxy-server takes 25 s to a minute, a wheel of 50 MB seconds; the rest is for slow downloads.
_TIMEOUT_S = 600.0
_STOP_POLL_S = 0.2


def run_tool(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], progress: Progress, hint: str) -> None:
    """Run the tool in ``cwd``, where its output becomes the file ``log``; if ``progress`` is stopped, kill it.

    Raises `EnvironmentProblem` with its last output and ``hint`` if it fails.
    """
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
                if waited > _TIMEOUT_S:
                    raise EnvironmentProblem(f"{' '.join(argv)} did not end within {_TIMEOUT_S:.0f} s") from None
    except BaseException:
        # Also ends the compilers that go started: they are in its session and process group.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code != 0:
        last_lines = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise EnvironmentProblem(
            f"`{' '.join(argv)}` failed with exit code {code}:\n{last_lines}",
            hint=hint,
        )
