"""What does it cost to judge a small history? In CPU seconds per judgement, in a process that has judged before.

``python benchmarks/judge_small.py`` writes a small run of generated records for a Kafka output and for a Postgres output, judges
each many times in a process of its own, and prints the least and the median CPU time. ``--run DIR`` takes a stored run instead.

With ``--slices`` the judgement is that of ``onceproof check``, which also cuts a slice for each finding.

``--against PYTHON`` names the interpreter of another checkout's environment: both judge the same run in turns, so that
whatever else the machine does meets both, and the last column compares the medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from judge_runs import Damage, write_run
from measure import machine

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--records", type=int, default=600)
parser.add_argument("--times", type=int, default=10, help="judgements in one process")
parser.add_argument("--turns", type=int, default=3, help="processes of each interpreter")
parser.add_argument("--run", type=Path, help="a stored run, instead of generated ones")
parser.add_argument("--slices", action="store_true", help="cut the findings' slices too")
parser.add_argument("--against", help="another interpreter")

JUDGE = """
import json, resource, sys
from pathlib import Path
from onceproof.judge.verdict import check, judge

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

run, found = Path(sys.argv[1]), []
for n in range(int(sys.argv[2]) + 2):
    before = used()
    verdict = check(run) if sys.argv[3:] else judge(run)
    found.append(used() - before)
print(json.dumps([verdict.outcome.value, found[2:]]))
"""


def judged(python: str, run: Path, times: int, *, slices: bool) -> tuple[str, list[float]]:
    """The outcome, and the CPU seconds of each judgement; the first two are left out."""
    command = [python, "-c", JUDGE, str(run), str(times), *(["slices"] if slices else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome, seconds = json.loads(done.stdout.splitlines()[-1])
    return outcome, seconds


def measure(name: str, run: Path, args: argparse.Namespace) -> None:
    pythons = [sys.executable, *([args.against] if args.against else [])]
    seconds: dict[str, list[float]] = {python: [] for python in pythons}
    outcomes = set()
    for _ in range(args.turns):
        for python in pythons:
            outcome, some = judged(python, run, args.times, slices=args.slices)
            outcomes.add(outcome)
            seconds[python] += some
    here = seconds[pythons[0]]
    line = f"{name}: {' and '.join(sorted(outcomes))}, {min(here):.3f} CPU s at least, median {statistics.median(here):.3f}"
    for other in pythons[1:]:
        ratio = statistics.median(here) / statistics.median(seconds[other])
        line += f"; the other: {min(seconds[other]):.3f}, {statistics.median(seconds[other]):.3f}; {ratio:.2f}x"
    print(line, flush=True)


def main() -> None:
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        if args.run is not None:
            run = Path(scratch) / args.run.name
            shutil.copytree(args.run, run)  # ``check`` writes its verdict and slices into it
            measure(run.name, run, args)
            return
        for kind in ("kafka", "postgres"):
            for name, damage in (("no damage", Damage()), ("damaged", Damage(lost={(1, 7)}, doubled={(2, 9)}))):
                run = Path(scratch) / f"{kind} {name}"
                write_run(run, args.records, kind, damage, keys=20, batches=5)
                measure(run.name, run, args)


if __name__ == "__main__":
    main()
