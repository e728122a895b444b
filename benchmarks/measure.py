"""Runs a scenario in a process of its own and measures the memory of all processes that it starts. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import VERDICT_FILE, Verdict
from onceproof.stack.processes import procfs

_EVERY_S = 0.5
"""Seconds between two samples. A sample reads a page-table summary per process, which delays a JVM by some milliseconds."""


@dataclass(frozen=True)
class Measured:
    """The result of one run. Memory is in KiB."""

    verdict: Verdict
    run: RunRecord
    run_dir: Path
    seconds: float
    harness_peak_rss_kib: int
    """High-water mark of the harness's own process, including the judge, as the kernel records it."""
    all_peak_pss_kib: int
    """Highest sampled sum over all processes of the run; shared pages count once."""
    peak_processes: int


def measure(scenario: Path | str, runs_dir: Path) -> Measured:
    """Run ``onceproof run SCENARIO --json`` and sample until it ends. Its progress goes to standard error."""
    started = time.monotonic()
    command = [sys.executable, "-m", "onceproof", "run", str(scenario), "--json", "--runs", str(runs_dir)]
    with tempfile.TemporaryFile("w+") as out:  # not a pipe: it would not be read before the harness has ended
        harness = subprocess.Popen(command, stdout=out, start_new_session=True)
        try:
            rss, pss, processes = _watch(harness)
        finally:
            harness.terminate()  # it cleans up after itself, also when this script is interrupted
            harness.wait()
        out.seek(0)
        printed = out.read()
    try:
        run_dir = Path(json.loads(printed)["run"])
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"exit code {harness.returncode}, and no run: {printed!r}") from None
    verdict = Verdict.from_json(run_dir / VERDICT_FILE)
    return Measured(verdict, RunRecord.read(run_dir), run_dir, time.monotonic() - started, rss, pss, processes)


def _watch(harness: subprocess.Popen[bytes]) -> tuple[int, int, int]:
    """Wait until the harness ends; return its high-water mark, the highest sum of PSS, and the number of processes in that sum."""
    sessions = {harness.pid}
    rss, pss, processes = 0, 0, 0
    while True:
        rss = max(rss, _high_water_kib(harness.pid))
        family = procfs.family(sessions)
        total = sum(_pss_kib(member.pid) for member in family)
        if total > pss:
            pss, processes = total, len(family)
        with contextlib.suppress(subprocess.TimeoutExpired):
            harness.wait(_EVERY_S)
            return rss, pss, processes


def _high_water_kib(pid: int) -> int:
    """Return ``VmHWM``; ``ru_maxrss`` would begin with the size of the process that forked it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def _pss_kib(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_full_info().pss) // 1024
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return 0  # it has ended, or belongs to another user (which does not matter to root)


def mib(kib: int) -> str:
    return f"{kib / 1024:,.0f} MiB"


def machine() -> str:
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    return f"{os.cpu_count()} cores, load {load}, Python {sys.version.split()[0]}"
