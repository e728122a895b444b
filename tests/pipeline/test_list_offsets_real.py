"""A chunk of two topics is one batch of a query that reads them through two sources, whenever it is sent."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from onceproof.run import run
from onceproof.scenario_files.load import load_file

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(300)]

JOB = Path(__file__).parent / "two_sources_job.py"
CHUNKS = 12

SCENARIO = f"""
stack: {{kafka: {{brokers: 3}}}}
input:
  - {{topic: orders, dataset: numbers, rows: {6 * CHUNKS}, chunks: {CHUNKS}, options: {{rows: {6 * CHUNKS}}}}}
  - {{topic: payments, dataset: numbers, rows: {6 * CHUNKS}, chunks: {CHUNKS}, options: {{rows: {6 * CHUNKS}}}}}
pipeline:
  command: ["{{python}}", "{JOB}", "{{kafka}}", "{{topic.orders}}", "{{topic.payments}}", copies, "{{checkpoint}}/copy"]
  prepare: {{topics: {{copies: {{partitions: 1}}}}}}
outputs: {{copies: {{topic: copies, identity: [id]}}}}
oracle:
  kind: sql
  queries: {{copies: "SELECT id, key, seq, payload FROM orders UNION ALL SELECT id, key, seq, payload FROM payments"}}
limits: {{deadline_s: 150, stuck_s: 30}}
"""


def test_a_query_sees_a_chunk_of_two_topics_in_one_plan(tmp_path: Path) -> None:
    """Without the hold, between one chunk in eight and one in three becomes two batches."""
    file = tmp_path / "two-sources.yaml"
    file.write_text(SCENARIO)
    done = run(load_file(file), runs_dir=tmp_path)
    batches = f"'{done.run_dir / 'history' / 'batches.parquet'}'"
    count = "sum(end_offset - start_offset) FILTER (topic = '{}')".format
    sizes = duckdb.sql(
        f"SELECT {count('orders')}, {count('payments')} FROM {batches} GROUP BY batch ORDER BY batch"
    ).fetchall()
    assert sizes == [(0, 0)] + [(6, 6)] * CHUNKS, done.verdict.reasons
    assert not [name for name in done.run_dir.rglob("events.jsonl") if "frame." in name.read_text()], "no fault"
