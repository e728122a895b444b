"""Peak memory of all processes together while a scenario runs: ``python benchmarks/pss.py effectively-once``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measure import machine, measure, mib

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenario", help="name of a shipped scenario, or path of a YAML file")
parser.add_argument("--runs", type=Path, help="where the run directory is kept (default: nowhere)")


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        got = measure(args.scenario, args.runs or Path(scratch))
    print(machine())
    print(f"scenario               {args.scenario}")
    print(f"verdict                {got.verdict.outcome}")
    print(f"seconds                {got.seconds:.1f}")
    print(f"all processes, peak    {mib(got.all_peak_pss_kib)} PSS in {got.peak_processes} processes")
    print(f"the harness, peak      {mib(got.harness_peak_rss_kib)} RSS")


if __name__ == "__main__":
    main()
