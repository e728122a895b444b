"""Does the memory of the harness stay small? The real pipeline with 100,000 and with 1,000,000 generated records.

``python benchmarks/million.py`` runs each size in a process of its own, one after the other, and prints a table. Compare
the ratios, not the seconds, which depend on the machine and on what else runs on it.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path

from measure import Measured, machine, measure, mib

SCENARIO = """
about: generated records to Postgres, with a crash of the driver where a naive sink would duplicate
stack: {{kafka: {{brokers: 1}}, postgres: {{}}}}
input:
  - {{topic: numbers, dataset: numbers, chunks: 10, rows: {rows}, options: {{rows: {rows}, keys: 1000, payload_bytes: 100}}}}
pipeline:
  command:
    - "{{python}}"
    - "{jobs}/numbers_to_postgres.py"
    - --kafka={{kafka}}
    - --postgres={{postgres}}
    - --topic={{topic.numbers}}
    - --table=copied
    - --checkpoint={{checkpoint}}/numbers
  prepare:
    sql: CREATE TABLE copied (id bigint, key text, seq bigint, payload text)
chaos:
  - {{fault: crash, target: driver, at: {{batch: 2, point: after-sink-commit}}}}
outputs:
  copied: {{table: copied, identity: [id]}}
oracle:
  kind: sql
  queries:
    copied: SELECT id, key, seq, payload, _topic, _partition, _offset, _key FROM numbers
claim: {{delivery: effectively-once, order: per-key}}
limits: {{deadline_s: 1800, stuck_s: 180}}
"""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="records, one run each")
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        done = {size: _run(size, Path(scratch), args.runs or Path(scratch)) for size in args.sizes}
    print(machine())
    print(
        f"{'records':>10} {'verdict':>13} {'seconds':>8} {'records/s':>10} {'harness RSS':>12} {'all PSS':>11} {'faults hit':>10}"
    )
    for size, got in done.items():
        hit = sum(fault.hit for fault in got.verdict.faults)
        print(
            f"{size:>10,} {got.verdict.outcome.value:>13} {got.seconds:>8.1f} {size / got.seconds:>10,.0f} "
            f"{mib(got.harness_peak_rss_kib):>12} {mib(got.all_peak_pss_kib):>11} {hit:>10}"
        )
    first, *_, last = args.sizes
    ratio = done[last].harness_peak_rss_kib / done[first].harness_peak_rss_kib
    print(f"harness peak RSS, {last:,} against {first:,}: {ratio:.2f}x")
    noted = [got.run.harness_peak_rss_kib or 0 for got in done.values()]
    print(f"of which before judging (run.json): {', '.join(mib(kib) for kib in noted)}")


def _run(size: int, scratch: Path, runs_dir: Path) -> Measured:
    path = scratch / f"numbers-{size}.yaml"
    path.write_text(SCENARIO.format(rows=size, jobs=files("onceproof") / "scenarios" / "jobs"))
    return measure(path, runs_dir)


if __name__ == "__main__":
    main()
