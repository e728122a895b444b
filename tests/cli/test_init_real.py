"""A draft of `init` for a foreign job runs unedited: the job takes Postgres' address in parts and its password in JDBC properties."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.judge.findings import Outcome
from onceproof.run import Result

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(300)]

#: The job does not use PGPASSFILE, and names no jar: the driver is on the class path.
JOB = """\
import os, pathlib
from pyspark.sql import SparkSession, functions as F

del os.environ["PGPASSFILE"]
pathlib.Path(os.environ["SEEN"]).write_text(os.environ["DB_PASSWORD"])
spark = SparkSession.builder.appName("bookings").getOrCreate()
read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
read = read.option("subscribe", os.environ["BOOKINGS_TOPIC"]).option("startingOffsets", "earliest")
rows = read.option("includeHeaders", "true").load().select(
    F.from_json(F.col("value").cast("string"), "id BIGINT").alias("v"),
    F.col("key").cast("string").alias("key"),
    F.expr("cast(headers[0].value as string)").alias("trace"),
    F.unix_millis("timestamp").alias("at"),
).select("v.*", "key", "trace", "at")
url = f"jdbc:postgresql://{os.environ['DB_HOST']}:{os.environ['DB_PORT']}/{os.environ['DB_NAME']}"
login = {"user": os.environ["DB_USER"], "password": os.environ["DB_PASSWORD"], "driver": "org.postgresql.Driver"}

def write(batch, number):
    batch.write.jdbc(url, "booked", mode="append", properties=login)

query = rows.writeStream.foreachBatch(write).option("checkpointLocation", os.environ["CHECKPOINT_DIR"]).start()
query.awaitTermination()
"""


def test_a_drafted_job_runs_with_its_password_in_jdbc_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_once: Callable[[str | Path], Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bookings.py").write_text(JOB)
    Path("schema.sql").write_text("CREATE TABLE booked (id bigint, key text, trace text, at bigint);\n")
    sample = [
        {"key": f"k{n % 5}", "headers": {"trace": f"t{n}"}, "timestamp": 1_714_564_800_000 + n, "value": {"id": n}}
        for n in range(300)
    ]
    Path("sample.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in sample))
    seen = tmp_path / "seen"
    done = CliRunner().invoke(
        app,
        [
            *("init", "--records", "--sample", "bookings=sample.jsonl", "--schema", "schema.sql", "--table", "booked"),
            *("--env", f"SEEN={seen}", "--", "KAFKA_BOOTSTRAP_SERVERS=kafka:29092", "BOOKINGS_TOPIC=bookings"),
            *("DB_HOST=db", "DB_PORT=5432", "DB_NAME=shop", "DB_USER=me", "DB_PASSWORD=theirs"),
            *("CHECKPOINT_DIR=/data/cp/booked", "python", "bookings.py"),
        ],
    )
    assert done.exit_code == 0, done.output
    result = run_once(tmp_path / "bookings.yaml")
    assert result.verdict.outcome is Outcome.VIOLATED, result.verdict.reasons
    assert [finding.anomaly for finding in result.verdict.findings if finding.allowed is None] == ["duplicate"]
    rows = pq.read_table(result.run_dir / "history" / "output.parquet").to_pylist()
    written = {row["id"]: row for row in (json.loads(row["content"]) for row in rows)}
    assert len(written) == 300
    assert all(
        (str(row["key"]), row["trace"], int(row["at"])) == (f"k{int(n) % 5}", f"t{n}", 1_714_564_800_000 + int(n))
        for n, row in written.items()
    )
    password = seen.read_bytes()
    assert len(password) > 20
    for file in result.run_dir.rglob("*"):
        assert not file.is_file() or password not in file.read_bytes(), file
