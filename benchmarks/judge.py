"""How fast is the judge, and how much memory does it take? Stored runs of generated records, some of them damaged.

``python benchmarks/judge.py`` writes a run of each size for a Kafka output and for a Postgres output, damages some records
of each (lost, duplicated, wrong, reordered), judges it in a process of its own, and prints a table. The judge must name each
damaged record.

The baseline is what a user would write by hand, ``judge_baseline.sql``: it runs in a process of its own over the same Parquet
files, after they were read once, with the threads and the memory of the judge. Compare the ratios, not the seconds, which
depend on the machine and on what else runs on it. Both processes find their Python modules compiled, as after an installation, and
neither counts what it imports before it begins.

``--seeds N`` places the damage at random, once per seed, also each kind alone with a single record, and reports what is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from judge_runs import PARTITIONS, Damage, keys_of, write_run
from measure import machine, mib

from onceproof.judge.findings import Verdict

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--sizes",
    type=int,
    nargs="+",
    default=[1_000_000, 10_000_000],
    help="records, one run each (100_000_000 takes long)",
)
parser.add_argument("--clean", action="store_true", help="also judge the same runs without damage")
parser.add_argument(
    "--seeds", type=int, default=0, help="instead: how many placements of the damage, in the first size"
)
parser.add_argument("--outputs", nargs="+", choices=["kafka", "postgres"], default=["kafka", "postgres"])
parser.add_argument(
    "--runs", type=Path, help="where the runs are kept; those that exist are used again (default: nowhere)"
)


@dataclass(frozen=True)
class Judged:
    seconds: float
    cpu_seconds: float
    peak_rss_kib: int
    found: set[tuple[str, str]]
    totals: dict[str, int]
    verdict: Verdict


JUDGE = """
import json, resource, sys, time
from pathlib import Path
from onceproof.judge.verdict import judge
started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
verdict = judge(Path(sys.argv[1]))
seconds = time.monotonic() - started
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
print()
json.dump({"seconds": seconds, "cpu": cpu, "peak": peak, "verdict": verdict.to_json()}, sys.stdout, default=str)
"""


def judge_run(folder: Path) -> Judged:
    command = [sys.executable, "-c", JUDGE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment(folder.parent))
    got = json.loads(done.stdout.splitlines()[-1])
    verdict = Verdict.from_json(got["verdict"])
    found = {(f.anomaly, str(w.cause)) for f in verdict.findings for w in f.witnesses}
    totals = Counter[str]()
    for f in verdict.findings:
        totals[f.anomaly] += f.total
    return Judged(got["seconds"], got["cpu"], got["peak"], found, totals, verdict)


BASELINE = """
import json, resource, sys, time
from pathlib import Path
import duckdb
from onceproof.history.database import memory_mb
from onceproof.history.reader import open_history
run, scratch = Path(sys.argv[1]), Path(sys.argv[3])
files = {f":{name}": "'" + str(run / "history" / f"{name}.parquet") + "'" for name in ("input", "output")}
lines = Path(sys.argv[2]).read_text().splitlines()
text = "\\n".join(line for line in lines if not line.startswith("--"))
for name, file in files.items():
    text = text.replace(name, file)
settings = {"threads": 2, "preserve_insertion_order": False, "temp_directory": str(scratch)}
settings["memory_limit"] = f"{memory_mb(open_history(run))}MB"
started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
with duckdb.connect(str(scratch / "baseline.duckdb"), config=settings) as db:
    found = [len(db.execute(one).fetchall()) for one in text.split(";") if one.strip()]
seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "rows": found[2:]}))
"""


@dataclass(frozen=True)
class Baseline:
    seconds: float
    cpu_seconds: float
    peak_rss_kib: int


def run_baseline(folder: Path) -> Baseline:
    """Run the hand-written SQL over a run with a Kafka output."""
    sql = Path(__file__).with_name("judge_baseline.sql")
    with tempfile.TemporaryDirectory(prefix="baseline-", dir=folder.parent) as scratch:
        command = [sys.executable, "-c", BASELINE, str(folder), str(sql), scratch]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment(folder.parent))
    got = json.loads(done.stdout)
    return Baseline(got["seconds"], got["cpu"], got["peak"])


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a process that stores compiled modules below the folder, also where this one may not store any."""
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    return {
        **{name: value for name, value in os.environ.items() if name not in unwanted},
        "PYTHONPYCACHEPREFIX": str(folder / "modules"),
    }


def compile_modules(folder: Path) -> None:
    """Judge a small run once, so that all modules are compiled."""
    small = folder / "small"
    if not small.exists():
        write_run(small, 6_000, "kafka", Damage(), 100)
    judge_run(small)
    run_baseline(small)


def warm(folder: Path) -> None:
    """Read the files once, so that they are in the page cache."""
    for file in sorted((folder / "history").glob("*.parquet")):
        with file.open("rb") as content:
            while content.read(1 << 22):
                pass


HEAD = f"{'output':>8} {'records':>11} {'damaged':>8} {'named':>6} {'seconds':>8} {'CPU s':>7} {'peak RSS':>11}  against the baseline"


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        runs = args.runs or Path(scratch)
        print(machine())
        runs.mkdir(parents=True, exist_ok=True)
        compile_modules(runs)
        if args.seeds:
            for kind in args.outputs:
                _seeds(runs, args.sizes[0], kind, args.seeds)
            return
        print(HEAD)
        for kind in args.outputs:
            done = [
                _measure(runs, size, kind, clean) for size in args.sizes for clean in (True, False)[not args.clean :]
            ]
            first, last = done[0], done[-1]
            print(
                f"{kind}: {args.sizes[-1]:,} against {args.sizes[0]:,}: {last.seconds / first.seconds:.1f}x the time, "
                f"{last.peak_rss_kib / first.peak_rss_kib:.2f}x the peak RSS"
            )


def _measure(runs: Path, size: int, kind: str, clean: bool) -> Judged:
    folder = runs / f"{kind}-{size}{'-clean' if clean else ''}"
    damage = Damage() if clean else Damage.spread(size // PARTITIONS, keys_of(size))
    if not folder.exists():
        write_run(folder, size, kind, damage)
    warm(folder)
    got = judge_run(folder)
    wanted = damage.named()
    ratios = ""
    if kind == "kafka":
        base = run_baseline(folder)
        ratios = (
            f"{got.seconds / base.seconds:.2f}x its {base.seconds:.1f} s, {got.cpu_seconds / base.cpu_seconds:.2f}x its "
            f"{base.cpu_seconds:.1f} CPU s, {got.peak_rss_kib / base.peak_rss_kib:.2f}x its {mib(base.peak_rss_kib)}"
        )
    totals = ", ".join(f"{name} {total}" for name, total in sorted(got.totals.items()))
    print(
        f"{kind:>8} {size:>11,} {len(wanted):>8} {len(wanted & got.found):>6} {got.seconds:>8.1f} {got.cpu_seconds:>7.1f} "
        f"{mib(got.peak_rss_kib):>11}  {ratios}\n{'':>9}{got.verdict.outcome}: {totals or 'no finding'}",
        flush=True,
    )
    if os.environ.get("VERBOSE"):
        print(json.dumps(got.verdict.to_json(), indent=1)[:6000])
    return got


def _seeds(scratch: Path, size: int, kind: str, seeds: int) -> None:
    """Judge one run per seed with all kinds of damage, and one per kind with a single damaged record."""
    keys = max(size // PARTITIONS // 100, 2)
    for seed in range(seeds):
        for only in (None, "lost", "doubled", "wrong", "late"):
            damage = Damage.at_random(size // PARTITIONS, keys, seed, only=only)
            folder = scratch / f"{kind}-{seed}-{only}"
            write_run(folder, size, kind, damage, keys)
            got = judge_run(folder)
            wanted = damage.named()
            # A record that changes places with one of another batch is also late, and apart from its batch.
            found = {(what, who) for what, who in got.found if what not in ("commit-ahead-of-effect", "torn-batch")}
            right = found == wanted and sum(got.totals[what] for what in {what for what, _ in found}) == len(wanted)
            print(
                f"{kind} seed {seed}, {only or 'all kinds'}: {len(wanted & found)} of {len(wanted)} named, "
                f"{len(found - wanted)} others{'' if right else '  WRONG'}",
                flush=True,
            )
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
