"""How often does a late abort remove the next transaction's data (KAFKA-17754)? Many late requests in one run, and its twin.

``python benchmarks/late_endtxn.py`` aborts an attempt at each of 20 batches, delivers that abort in the middle of the next attempt,
and counts the batches of which committed rows are missing: all of them with one reused producer, none with one producer per
transaction. It counts in the history, as a read_committed reader found it, and does not use the verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
from measure import machine, measure
from ruamel.yaml import YAML

from onceproof.scenario_files.load import resolved
from onceproof.scenario_files.shipped import find

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--times", type=int, default=20)
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")

_ROWS_A_BATCH = 150

#: batch -> how many rows it must have written, and how many of them a read_committed reader found
_COUNT = """
    WITH wanted AS (
      SELECT b.batch, i.partition, i."offset" FROM '{history}/batches.parquet' b JOIN '{history}/input.parquet' i
        ON (i.topic, i.partition) = (b.topic, b.partition) AND i."offset" >= b.start_offset AND i."offset" < b.end_offset
      WHERE decode(i.value) ->> 'dep_time' IS NOT NULL),
    found AS (
      SELECT DISTINCT CAST(content ->> 'src_partition' AS INT) AS partition, CAST(content ->> 'src_offset' AS BIGINT) AS "offset"
      FROM '{history}/output.parquet' WHERE visibility = 'committed' AND output = 'departures_topic')
    SELECT batch, count(*), count(found."offset") FROM wanted LEFT JOIN found USING (partition, "offset") GROUP BY 1 ORDER BY 1
"""


def main() -> int:
    args = parser.parse_args()
    print(machine(), flush=True)
    right = True
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        runs = args.runs or Path(scratch)
        runs.mkdir(parents=True, exist_ok=True)
        for name, loses in (("late-endtxn-reused-producer", True), ("late-endtxn", False)):
            path = runs / f"{name}.many.yaml"
            _write(path, name, args.times)
            done = measure(path, runs)
            hit = {fault.batch for fault in done.verdict.faults if fault.hit}
            counts = duckdb.execute(_COUNT.format(history=done.run_dir / "history")).fetchall()
            lost = {batch for batch, wanted, found in counts if found < wanted}
            print(
                f"{name}: {len(hit)} of {args.times} late requests hit; {len(lost & hit)} of these batches lost rows, "
                f"{len(lost - hit)} others did; {done.verdict.outcome} {done.verdict.anomalies() or ''}, {done.seconds:.0f} s"
            )
            for fault in done.verdict.faults:
                if not fault.hit:
                    print(f"  batch {fault.batch}: {fault.evidence}")
            right = right and len(hit) == args.times and lost == (hit if loses else set())
    return 0 if right else 1


def _write(path: Path, name: str, times: int) -> None:
    """Write the shipped scenario with a late request in batches 1 to ``times``."""
    document: dict[str, Any] = YAML(typ="safe").load(resolved(find(name)))
    chunks = times + 2
    document["input"][0] |= {"chunks": chunks, "rows": chunks * _ROWS_A_BATCH}
    (fault,) = document["chaos"]
    document["chaos"] = [fault | {"at": fault["at"] | {"batch": batch}} for batch in range(1, times + 1)]
    del document["pipeline"]["args"]["give-up-in"]
    document["pipeline"]["command"] += ["--give-up-in", *(str(batch) for batch in range(1, times + 1))]
    document["limits"] = {"deadline_s": 7200, "stuck_s": 600}
    document.pop("expect", None)
    path.write_text(json.dumps(document))  # JSON is YAML


if __name__ == "__main__":
    sys.exit(main())
