"""How many schedules does the warm tier execute per minute, and what do they cost? And how long do all singles and pairs take?

``python benchmarks/warm.py`` starts one session for a shipped sink, executes all single faults of three batches in rounds, and
prints for each round the schedules per minute and the CPU time of a schedule (of the session, and of the services), and the
session's memory. With ``--pairs`` it then executes all ordered pairs once. CPU time hardly depends on what else the machine does;
schedules per minute do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from measure import machine

from onceproof.base import signals
from onceproof.base.timeline import Timeline
from onceproof.explore import schedules
from onceproof.explore.outcome import reduced
from onceproof.history.execution import Execution
from onceproof.history.run_directory import RunDir
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.processes.owner import Service
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import AT_ONCE, WarmTier

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scenario", default="callable-append")
parser.add_argument("--rounds", type=int, default=8)
parser.add_argument("--at-once", type=int, default=AT_ONCE)
parser.add_argument("--pairs", action="store_true", help="also execute all ordered pairs once")

_BATCHES = (1, 2, 3)
_ROWS = 30


def cpu_seconds(services: Iterable[Service]) -> float:
    """CPU time of these services so far."""
    total = 0.0
    for process in (member for service in services for member in service.members()):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rss_mib(service: Service) -> float:
    """Resident memory of a service's processes."""
    return float(sum(process.memory_info().rss for process in service.members() if process.is_running()) / 2**20)


def measured(tier: WarmTier, todo: Sequence[tuple[Strike, ...]]) -> tuple[float, float, float]:
    """Execute these schedules; return seconds, and CPU ms of one in the session and in the services."""
    session, services = tier.processes()
    before, began = (cpu_seconds([session]), cpu_seconds(services)), time.monotonic()
    done = list(tier.execute(todo))
    seconds, after = time.monotonic() - began, (cpu_seconds([session]), cpu_seconds(services))
    missed = [executed for executed in done if not (executed.reached and executed.ended)]
    assert not missed, f"{len(missed)} schedules were not exercised, the first: {missed[0].strikes} {missed[0].errors}"
    of_session, of_services = (1000 * (last - first) / len(done) for first, last in zip(before, after, strict=True))
    return seconds, of_session, of_services


def main() -> None:
    args = parser.parse_args()
    loaded = load_file(find(args.scenario))
    scenario = reduced(loaded.scenario, _ROWS, len(_BATCHES))
    everywhere = schedules.places(schedules.ORDER, _BATCHES)
    singles = list(map(schedules.strikes_of, schedules.singles(everywhere)))
    found = [schedules.scheduled(faults) for faults in schedules.pairs(everywhere)]
    pairs = [schedule for schedule in found if not isinstance(schedule, str)]
    print(
        f"{machine()}; load {os.getloadavg()[0]:.1f}; {args.at_once} schedules at once, {scenario.input[0].partitions} partitions"
    )
    with TemporaryDirectory(prefix="warm.") as folder, signals.interruptible():
        directory = RunDir.below(Path(folder) / "run")
        execution = Execution(scenario, loaded.path, directory, Timeline(directory.events))
        began = time.monotonic()
        with WarmTier(execution, last_batch=max(_BATCHES), at_once=args.at_once) as tier:
            print(f"services and session: {time.monotonic() - began:.1f} s")
            rates, costs = [], []
            for number in range(args.rounds):
                seconds, session, services = measured(tier, singles)
                rates.append(60 * len(singles) / seconds)
                costs.append(session + services)
                print(
                    f"round {number + 1}: {rates[-1]:4.0f} per minute, CPU {session:4.0f} ms in the session and {services:3.0f} ms in "
                    f"the services per schedule; session {rss_mib(tier.processes()[0]):.0f} MiB; load {os.getloadavg()[0]:.1f}"
                )
            warm = costs[len(costs) // 2 :]
            print(
                f"best {max(rates):.0f} per minute; CPU of a schedule, median of the later half: {statistics.median(warm):.0f} ms"
            )
            print(f"from CPU alone, two free cores would give {120_000 / statistics.median(warm):.0f} per minute")
            if args.pairs:
                seconds, session, services = measured(tier, pairs)
                print(
                    f"{len(pairs)} pairs in {seconds:.0f} s: {60 * len(pairs) / seconds:.0f} per minute, "
                    f"CPU {session + services:.0f} ms each; load {os.getloadavg()[0]:.1f}"
                )


if __name__ == "__main__":
    main()
