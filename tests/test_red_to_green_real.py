"""A repository with a job: `init`, a pytest file and the gate are red with a naive sink, and green with the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(1200)]

JOB = """\
import os
import psycopg
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.appName("orders").getOrCreate()
orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), "id BIGINT, amount BIGINT").alias("o"))
    .select("o.*")
)

def write(batch, number):
    rows = [(row.id, row.amount) for row in batch.collect()]
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection, connection.cursor() as cursor:
        SINK

query = orders.writeStream.foreachBatch(write).option("checkpointLocation", os.environ["CHECKPOINT_DIR"]).start()
query.awaitTermination()
"""
INSERT = 'cursor.executemany("INSERT INTO booked VALUES (%s, %s)", rows)'
#: The batch's number is in the same transaction as its rows: a replayed batch finds it, and writes nothing.
REMEDY = f"""\
cursor.execute("INSERT INTO batches VALUES (%s) ON CONFLICT DO NOTHING", (number,))
        if cursor.rowcount:
            {INSERT}"""
SCHEMA = "CREATE TABLE booked (id bigint, amount bigint);\nCREATE TABLE batches (number bigint PRIMARY KEY);\n"
TESTS = """\
from onceproof import Crash

def test_orders_survive_a_crash(onceproof):
    crash = Crash("driver", batch=3, point="after-sink-commit")
    onceproof.run("orders.yaml", chaos=[crash]).assert_held()
"""


def write_job(folder: Path, sink: str) -> None:
    (folder / "orders.py").write_text(JOB.replace("SINK", sink))


def run(folder: Path, *command: str) -> tuple[int, str]:
    """Run a command as its user does, in the repository's folder."""
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=400
    )
    return done.returncode, done.stdout + done.stderr


def test_a_naive_sink_is_red_and_its_remedy_green(tmp_path: Path) -> None:
    write_job(tmp_path, INSERT)
    (tmp_path / "schema.sql").write_text(SCHEMA)
    sample = [{"id": n, "amount": n % 7} for n in range(300)]
    (tmp_path / "orders.jsonl").write_text("".join(f"{json.dumps(order)}\n" for order in sample))
    (tmp_path / "test_orders.py").write_text(TESTS)
    (tmp_path / "onceproof.toml").write_text('[gate]\nscenarios = [{path = "orders.yaml"}]\n')
    code, text = run(
        tmp_path,
        *("onceproof", "init", "--topic", "orders", "--sample", "orders.jsonl", "--table", "booked"),
        *("--schema", "schema.sql", "--", "KAFKA_BOOTSTRAP_SERVERS=kafka:9092", "DATABASE_URL=postgresql://db/shop"),
        *("CHECKPOINT_DIR=/data/orders", "python", "orders.py"),
    )
    assert code == 0, text

    code, text = run(tmp_path, "pytest", "-q")
    assert code == 1 and "violated, expected held" in text and "duplicate in " in text, text
    code, text = run(tmp_path, "onceproof", "gate", "--update")
    assert code == 1 and "regression" in text and "was not written" in text, text

    write_job(tmp_path, REMEDY)
    code, text = run(tmp_path, "pytest", "-q")
    assert code == 0 and "1 passed" in text, text
    code, text = run(tmp_path, "onceproof", "gate", "--update")
    assert code == 0 and "wrote the baseline" in text, text

    write_job(tmp_path, INSERT)
    code, text = run(tmp_path, "onceproof", "gate")
    assert code == 1 and "regression" in text and "duplicate" in text, text
