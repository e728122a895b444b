"""Does a crash hit its point on a busy machine? One run in which the driver is killed at many batches, next to busy loops.

``python benchmarks/crash_points.py`` kills the driver at ``after-sink-commit`` of batches 1 to 20 and prints how many of these hit.
For comparison, ``--watched`` gives the job Spark's own manager of checkpoint files, so that faults are placed by watching.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from measure import machine, measure

from onceproof.instruments.checkpoint_gate import FILE_MANAGER

SCENARIO = """
about: many crashes of the driver at one point
stack: {{kafka: {{brokers: 1}}, postgres: {{}}}}
input:
  - {{topic: numbers, dataset: numbers, chunks: {chunks}, rows: {rows}, options: {{rows: {rows}, keys: 10, payload_bytes: 10}}}}
pipeline:
  command:
    - "{{python}}"
    - "{jobs}/numbers_to_postgres.py"
    - --kafka={{kafka}}
    - --postgres={{postgres}}
    - --topic={{topic.numbers}}
    - --table=copied
    - --checkpoint={{checkpoint}}/numbers
  env: {{{env}}}
  prepare:
    sql: CREATE TABLE copied (id bigint, key text, seq bigint, payload text)
chaos:
{chaos}
outputs:
  copied: {{table: copied, identity: [id]}}
oracle:
  kind: sql
  queries:
    copied: SELECT id, key, seq, payload, _topic, _partition, _offset, _key FROM numbers
claim: {{delivery: effectively-once, order: per-key}}
limits: {{deadline_s: 7200, stuck_s: 600}}
"""

FAULT = "  - {{fault: crash, target: driver, at: {{batch: {batch}, point: {point}}}}}"
OF_SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--crashes", type=int, default=20)
parser.add_argument("--point", default="after-sink-commit")
parser.add_argument("--busy", type=int, default=4, help="busy loops next to the run")
parser.add_argument("--watched", action="store_true", help="place the faults by watching the checkpoint")
parser.add_argument("--runs", type=Path, help="where the run directory is kept (default: nowhere)")


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        scenario = Path(scratch) / "many-crashes.yaml"
        scenario.write_text(
            SCENARIO.format(
                chunks=args.crashes + 2,
                rows=100 * (args.crashes + 2),
                jobs=files("onceproof") / "scenarios" / "jobs",
                env=f'SPARK_SUBMIT_OPTS: "-D{FILE_MANAGER}={OF_SPARK}"' if args.watched else "",
                chaos="\n".join(FAULT.format(batch=n, point=args.point) for n in range(1, args.crashes + 1)),
            )
        )
        with busy(args.busy):
            print(f"{machine()}, {args.busy} busy loops")
            done = measure(scenario, args.runs or Path(scratch))
    faults = done.verdict.faults
    for fault in faults:
        if not fault.hit:
            print(f"  batch {fault.batch}: {fault.evidence}")
    how = "watched" if args.watched else "checkpoint file system"
    hit = sum(fault.hit for fault in faults)
    print(f"{how}: {hit} of {len(faults)} hit {args.point}; {done.verdict.outcome}, {done.seconds:.0f} s")


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many processes busy while the block runs."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
