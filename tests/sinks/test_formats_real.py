"""The streaming formats in a real Spark session: what Spark calls when a task fails, and what it shows of a refused option.

Batches that are committed are those of the scenarios `format-postgres` and `format-kafka`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceproof.stack.embedded import EmbeddedStack

from .bench import PostgresTarget

pytestmark = [pytest.mark.real, pytest.mark.full]

#: One task after the other: the first one stages its rows, and the second one fails.
SCRIPT = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession, functions as f
from onceproof.sinks.tasks.formats import register
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalogImplementation", "in-memory").getOrCreate()
)
register(spark)
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2).load()
options, checkpoint = json.loads(sys.argv[1]), sys.argv[2]
def second_fails(batches):
    import psycopg
    from pyspark import TaskContext
    if TaskContext.get().partitionId() == 1:
        with psycopg.connect(options["conninfo"]) as connection:
            found = connection.execute("SELECT count(*) FROM pg_class WHERE relname ~ '^onceproof_format_'").fetchone()
        raise RuntimeError(f"this task fails, and finds {found[0]} staging table")
    yield from batches
numbers = numbers.select(f.lit("k").alias("key"), f.col("value").alias("src_offset"))
rows = numbers.mapInArrow(second_fails, "key string, src_offset bigint")
for number, wrong in enumerate(({}, {"tabel": "t"})):
    query = rows.writeStream.format("onceproof-postgres").options(**options, **wrong)
    try:
        query.option("checkpointLocation", f"{checkpoint}/{number}").start().awaitTermination()
    except StreamingQueryException as error:
        print(json.dumps(str(error)))
"""


def test_a_failed_task_leaves_no_staging_table_and_a_wrong_option_is_named(
    stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    target = PostgresTarget(stack)
    options = {"conninfo": target.server.client_uri, "table": target.name, "pipeline": target.name}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(options), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    failed, refused = (json.loads(line) for line in done.stdout.splitlines())
    assert "this task fails, and finds 1 staging table" in failed
    assert "format 'onceproof-postgres' has no option 'tabel'" in refused
    assert "did you mean 'table'?" in refused
    assert target.ask("SELECT relname FROM pg_class WHERE relname ~ '^onceproof_format_'") == []
    assert target.offsets() == []
