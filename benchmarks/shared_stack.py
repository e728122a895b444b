"""What does a shared stack save? The same scenario on services of its own and on shared ones, in turns, in one session. Linux only.

``python benchmarks/shared_stack.py [SCENARIO] --pairs 3`` runs SCENARIO (default: effectively-once) in pairs: once with new services,
once with services that stay up and are cleaned after each run. For each run it prints seconds, CPU seconds of all processes (harness,
job and services), and the verdict; then the medians, and their ratio for the pairs after the first, in which the shared services were
started. The CPU that shared services use while the other run of a pair has its turn is printed by itself. The exit code is 1 if two
verdicts differ.

Processes are sampled five times a second: what a process does in the last fifth of a second before it is killed is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from measure import machine

from onceproof.faults.contract import reads_frames
from onceproof.judge.findings import Verdict
from onceproof.run import run
from onceproof.scenario_files.load import LoadedScenario, load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.processes import procfs
from onceproof.stack.sharing.shared import SharedStack

_EVERY_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("scenario", nargs="?", default="effectively-once", help="default: %(default)s")
parser.add_argument("--pairs", type=int, default=3, help="how many pairs of runs (default: %(default)s)")
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")


class CpuMeter:
    """Counts the CPU seconds of all processes that this one starts, and of shared services by themselves."""

    def __init__(self, shared: SharedStack) -> None:
        self._shared = shared
        self._sessions: set[int] = set()
        self._ticks: dict[tuple[int, int], int] = {}
        self._of_services: set[tuple[int, int]] = set()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="cpu meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def seconds(self) -> tuple[float, float]:
        """Return the CPU seconds until now: of the shared services, and of everything else, this process included."""
        self._sample()
        with self._lock:
            services = sum(ticks for key, ticks in self._ticks.items() if key in self._of_services) / _TICKS
            return services, sum(self._ticks.values()) / _TICKS - services + time.process_time()

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            own = os.getpid()
            self._sessions |= {one.session for one in procfs.table().values() if one.parent == own}
            self._sessions.discard(os.getsid(own))
            roots = {service.pid for service in self._shared.services()}
            self._of_services |= {(one.pid, one.start_ticks) for one in procfs.family(roots)} if roots else set()
            for one in procfs.family(self._sessions):
                key = (one.pid, one.start_ticks)
                self._ticks[key] = max(self._ticks.get(key, 0), _ticks(one.pid))


def _ticks(pid: int) -> int:
    """User and system time of the process, in clock ticks; 0 if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = line[line.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


@dataclass(frozen=True)
class Row:
    kind: str
    pair: int
    seconds: float
    cpu_s: float
    idle_cpu_s: float
    """CPU of the shared services during a run that does not use them."""
    verdict: Verdict

    def __str__(self) -> str:
        found = ", ".join(f"{name} {count}" for name, count in sorted(self.verdict.anomalies().items()))
        hit = sum(fault.hit for fault in self.verdict.faults)
        words = f"{self.verdict.outcome.value}{f' ({found})' if found else ''}, {hit} faults hit"
        idle = f"{self.idle_cpu_s:.1f}" if self.kind == "fresh" else ""
        return f"| {self.pair} | {self.kind} | {self.seconds:.1f} | {self.cpu_s:.1f} | {idle} | {words} |"

    def result(self) -> object:
        """What must not depend on the stack."""
        faults = [(fault.fault, fault.target, fault.hit) for fault in self.verdict.faults]
        return self.verdict.outcome, sorted(self.verdict.anomalies()), self.verdict.counts.get("input"), faults


def measured(
    kind: str, pair: int, loaded: LoadedScenario, runs: Path, meter: CpuMeter, shared: SharedStack | None
) -> Row:
    services, others = meter.seconds()
    began = time.monotonic()
    verdict = run(loaded, runs_dir=runs, shared=shared).verdict
    took = time.monotonic() - began
    services_then, others_then = meter.seconds()
    of_services, of_others = services_then - services, others_then - others
    if shared is None:
        return Row(kind, pair, took, of_others, of_services, verdict)
    return Row(kind, pair, took, of_others + of_services, 0.0, verdict)


def main() -> int:
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error(f"--pairs {args.pairs}: the first pair starts the shared services, so two are needed to compare")
    loaded = load_file(find(args.scenario))
    print(f"{machine()}\n\n| pair | services | s | CPU s | idle CPU s | verdict |\n{'| --- ' * 6}|", flush=True)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch,
        SharedStack(protocol_proxy=reads_frames(loaded.scenario.chaos)) as shared,
        CpuMeter(shared) as meter,
    ):
        runs = args.runs or Path(scratch)
        for pair in range(1, args.pairs + 1):
            for kind in ("fresh", "shared"):
                rows.append(measured(kind, pair, loaded, runs, meter, shared if kind == "shared" else None))
                print(rows[-1], flush=True)
        print(f"\nshared services: {shared.starts} start(s), {shared.start_s:.1f} s in total")
    later = [row for row in rows if row.pair > 1]
    for name in ("seconds", "cpu_s"):
        fresh, reused = ([getattr(row, name) for row in later if row.kind == kind] for kind in ("fresh", "shared"))
        ratios = [after / before for before, after in zip(fresh, reused, strict=True)]
        print(
            f"{name}: fresh {statistics.median(fresh):.1f}, shared {statistics.median(reused):.1f}, "
            f"median ratio of {len(ratios)} pairs {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    same = all(row.result() == rows[0].result() for row in rows)
    print("verdicts: all equal" if same else "verdicts: NOT all equal")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
