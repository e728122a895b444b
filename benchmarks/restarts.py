"""What does a restart of the job cost? Many kills while the checkpoint gate holds ``commits/N``, the tiers in turn.

``python benchmarks/restarts.py`` runs one scenario per tier and round. Per restart it prints the seconds from the kill to
``commits/N`` of the replay, and the CPU seconds of all processes that the job started, the dead ones included. Each run must
end with every replayed row twice in the appended table and once in the other: the outcomes of the tiers are compared.
``bare`` is the tier *real* for a job that sets SPARK_HOME: Spark's own scripts start each JVM. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crash_points import busy
from measure import machine

from onceproof.api import runs
from onceproof.base.timeline import Event
from onceproof.history.run_record import RunRecord
from onceproof.stack.fetch.driver_archive import spark_home
from onceproof.stack.processes import procfs

SCENARIO = """
about: many restarts of one job
stack: {{kafka: {{brokers: 1}}, postgres: {{}}}}
input:
  - {{topic: numbers, dataset: numbers, chunks: {chunks}, rows: {rows}, options: {{rows: {rows}, keys: 10, payload_bytes: 10}}}}
pipeline:
  command: ["{{python}}", "{job}"]
  args: {{kafka: "{{kafka}}", postgres: "{{postgres}}", topic: "{{topic.numbers}}", checkpoint: "{{checkpoint}}/numbers"}}
  env: {{{env}}}
  prepare:
    sql: |
      CREATE TABLE appended (id bigint, key text, seq bigint, payload text);
      CREATE TABLE once (id bigint, key text, seq bigint, payload text);
      CREATE TABLE progress AS SELECT CAST(-1 AS bigint) AS last;
chaos:
{chaos}
outputs:
  appended: {{table: appended, identity: [id]}}
  once: {{table: once, identity: [id]}}
oracle:
  kind: sql
  queries:
    appended: SELECT id, key, seq, payload, _topic, _partition, _offset, _key FROM numbers
    once: SELECT id, key, seq, payload, _topic, _partition, _offset, _key FROM numbers
claim: {{delivery: effectively-once}}
limits: {{deadline_s: 7200, stuck_s: 600}}
"""
FAULT = "  - {{fault: crash, target: driver, at: {{batch: {batch}, point: after-sink-commit}}}}"
ROWS = 50
"""Records per batch."""

_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2): orphans become children of this process, so that their CPU time can be read."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--restarts", type=int, default=5, help="kills per run")
parser.add_argument("--rounds", type=int, default=1, help="runs per tier")
parser.add_argument("--tiers", default="bare,real,kept", help="names of tiers, separated by commas")
parser.add_argument("--busy", type=int, default=0, help="busy loops next to the runs")
parser.add_argument("--memory", action="store_true", help="also print the memory of the JVM after each restart")
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")


@dataclass
class Restart:
    """One restart: from a kill to ``commits/N`` of the replay."""

    batch: int
    seconds: float
    cpu_s: float
    rss_mib: float = 0.0
    threads: int = 0
    files: int = 0


@dataclass
class Meter:
    """Listens to one run, and measures its restarts."""

    memory: bool
    restarts: list[Restart] = field(default_factory=list)
    services: set[int] = field(default_factory=set)
    """Processes that are not the job's."""
    _began: tuple[float, float] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.kind == "phase" and event.data["name"] == "prepare":
                self.services = {pid for pid, stat in procfs.table().items() if stat.parent == os.getpid()}
            elif event.kind == "job.kill":
                self._began = (time.monotonic(), self.cpu_s())
            elif event.kind == "batch.committed" and self._began is not None:
                began, self._began = self._began, None
                restart = Restart(event.data["batch"], time.monotonic() - began[0], self.cpu_s() - began[1])
                if self.memory:
                    self._measure_jvm(restart)
                self.restarts.append(restart)

    def cpu_s(self) -> float:
        """CPU seconds so far of everything that the job started. Of the rest it has only what has ended, a constant."""
        while True:
            before = _reaped_s()
            alive = sum(_cpu_s(pid) for pid in self._jobs())
            if _reaped_s() == before:
                return before + alive

    def _jobs(self) -> Iterator[int]:
        """The job's processes, zombies included: descendants of this process, except services and theirs."""
        table = procfs.table()
        children: dict[int, list[int]] = {}
        for pid, stat in table.items():
            children.setdefault(stat.parent, []).append(pid)
        left = [pid for pid in children.get(os.getpid(), []) if pid not in self.services]
        while left:
            pid = left.pop()
            left += children.get(pid, [])
            yield pid

    def _measure_jvm(self, restart: Restart) -> None:
        for pid in self._jobs():
            folder = Path("/proc", str(pid))
            try:
                if folder.joinpath("comm").read_text().strip() == "java":
                    status = dict(line.split(":", 1) for line in folder.joinpath("status").read_text().splitlines())
                    restart.rss_mib = int(status["VmRSS"].split()[0]) / 1024
                    restart.threads = int(status["Threads"])
                    restart.files = sum(1 for _ in folder.joinpath("fd").iterdir())
            except (OSError, KeyError):
                continue


def _reaped_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that it has waited for; proc(5), fields 14 to 17."""
    try:
        line = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return 0.0
    return sum(map(int, line[line.rindex(")") + 2 :].split()[11:15])) * _TICK_S


def main() -> None:
    args = parser.parse_args()
    if ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("this system does not let a process adopt orphans (prctl PR_SET_CHILD_SUBREAPER)")
    print(f"{machine()}, {args.busy} busy loops")
    tiers = args.tiers.split(",")
    found: dict[str, list[Restart]] = {tier: [] for tier in tiers}
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch, busy(args.busy):
        for _ in range(args.rounds):
            for tier in tiers:
                found[tier] += one_run(tier, args.restarts, Path(scratch), args.runs or Path(scratch), args.memory)
    for tier, restarts in found.items():
        seconds, cpu = [r.seconds for r in restarts], [r.cpu_s for r in restarts]
        print(
            f"{tier:6} {len(restarts)} restarts: median {statistics.median(seconds):.2f} s (min {min(seconds):.2f}), "
            f"{statistics.median(cpu):.2f} CPU s (min {min(cpu):.2f}, mean {statistics.mean(cpu):.2f}), "
            f"{60 / statistics.mean(seconds):.1f} per minute"
        )


def one_run(tier: str, restarts: int, scratch: Path, runs_dir: Path, memory: bool) -> list[Restart]:
    """Run the scenario once in this tier, check its outcome, and return what each restart cost."""
    killed = range(1, restarts + 1)
    chunks = restarts + 2
    scenario = scratch / f"restarts-{tier}.yaml"
    scenario.write_text(
        SCENARIO.format(
            chunks=chunks,
            rows=ROWS * chunks,
            job=Path(__file__).resolve().with_name("restarts_job.py"),
            env=f'SPARK_HOME: "{spark_home(os.environ)}"' if tier == "bare" else "",
            chaos="\n".join(FAULT.format(batch=n) for n in killed),
        )
    )
    meter = Meter(memory)
    done = runs.run(scenario, runs_dir=runs_dir, listeners=[meter], tier="kept" if tier == "kept" else "real")
    missed = [f"batch {fault.batch}: {fault.evidence}" for fault in done.verdict.faults if not fault.hit]
    extra = {finding.output: finding for finding in done.findings}
    for restart in meter.restarts:
        jvm = f", JVM {restart.rss_mib:.0f} MiB, {restart.threads} threads, {restart.files} files" if memory else ""
        print(f"  {tier:6} batch {restart.batch:3}: {restart.seconds:6.2f} s, {restart.cpu_s:5.2f} CPU s{jvm}")
    print(f"  {tier:6} {done.verdict.word}: {[finding.summary for finding in done.findings]}")
    job = RunRecord.read(done.run_dir).job
    print(f"  {tier:6} JVMs: {Counter((one.tier, one.how, one.why) for one in (job.jvms if job else ()))}")
    if missed or set(extra) != {"appended"} or len(meter.restarts) != restarts:
        print(f"  {tier:6} NOT AS EXPECTED: {missed}", file=sys.stderr)
    return meter.restarts


if __name__ == "__main__":
    main()
