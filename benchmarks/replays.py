"""Does a schedule of consumers have the same findings every time, and how long does a replay take?

``python benchmarks/replays.py`` runs each shipped scenario of consumers once, replays it 100 times as ``onceproof replay`` does, on
one broker start, and prints a table: the named anomaly, how many replays had the same findings, and seconds: the typical and the
longest replay including judging, and the start of the broker. The exit code is 1 if any replay had other findings, or a run was not
what its scenario expects. With a broker start of its own, a replay takes both times together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measure import machine

from onceproof.explore.replay import Replay, replay
from onceproof.judge.findings import Verdict
from onceproof.run import run
from onceproof.scenario_files.load import load, load_file
from onceproof.scenario_files.shipped import find, names

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: each shipped one with consumers")
parser.add_argument("--times", type=int, default=100, help="replays of each (default: %(default)s)")
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")


@dataclass(frozen=True)
class Row:
    scenario: str
    verdict: Verdict
    as_expected: bool
    replays: Replay

    @property
    def is_good(self) -> bool:
        return self.as_expected and self.replays.same == self.replays.times

    def __str__(self) -> str:
        found = ", ".join(sorted(self.verdict.anomalies())) or self.verdict.outcome.value
        named = f"`{found}`" if self.verdict.anomalies() else found
        unlike = "" if self.as_expected else " (not expected)"
        seconds = self.replays.seconds
        took = [statistics.median(seconds), max(seconds), self.replays.start_s]
        times = " | ".join(f"{number:.1f}" for number in took)
        return f"| `{self.scenario}` | {named}{unlike} | {self.replays.same} of {self.replays.times} | {times} |"


def measured(name: str, times: int, runs: Path) -> Row:
    loaded = load_file(find(name))
    expect = loaded.scenario.expect
    result = run(loaded, runs_dir=runs)
    found = result.verdict
    as_expected = found.outcome.value == expect.verdict and sorted(found.anomalies()) == sorted(expect.anomalies)
    return Row(name, found, as_expected, replay(result.run_dir, times=times, report=_tell))


def _tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def main() -> int:
    args = parser.parse_args()
    if args.times < 1:
        parser.error(f"--times {args.times}: at least one replay is needed to show anything")
    print(machine(), flush=True)
    print(
        "| scenario | shows | the same | typical s | longest s | start of the broker s |\n" + "| --- " * 6 + "|",
        flush=True,
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        runs = args.runs or Path(scratch)
        for name in args.scenarios or [name for name in names() if load(find(name)).pipeline.consumers is not None]:
            rows.append(measured(name, args.times, runs))
            print(rows[-1], flush=True)
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
