"""The sink for Delta tables in a real Spark session: replays, lost checkpoints, second drivers, and a history that has expired.

A script writes the batches of queries whose checkpoints it makes itself, and prints what happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from onceproof.stack.fetch.components import ensure_jars

pytestmark = [pytest.mark.real, pytest.mark.full]

SCRIPT = r"""
import json, os, sys, threading, time
from pathlib import Path
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession, functions as f
from onceproof.sinks.tasks import delta
from onceproof.sinks.errors import SinkError

folder, jars = Path(sys.argv[1]), sys.argv[2]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.jars", jars).config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.catalogImplementation", "in-memory").config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .config("spark.sql.shuffle.partitions", "1").config("spark.databricks.delta.snapshotPartitions", "1").getOrCreate()
)

def checkpoint(name, ends, start=0, state=False):
    made = folder / name
    (made / "offsets").mkdir(parents=True)
    (made / "sources" / "0").mkdir(parents=True)
    (made / "metadata").write_text(json.dumps({"id": f"query {name}"}))
    (made / "sources" / "0" / "0").write_text("\0v1\n" + json.dumps({"t": {"0": start}}))
    for batch, end in enumerate(ends):
        (made / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps({"t": {"0": end}}))
    if state:
        (made / "state").mkdir()
    return made

def sink(table, name, pipeline="p", **options):
    return delta.DeltaAppend(str(table), pipeline=pipeline, checkpoint=folder / name, **options)

def write(into, first, last, batch):
    try:
        into(spark.range(first, last, 1, 1), batch)
    except SinkError as error:
        return f"{type(error).__name__}: {error.message}"
    return "done"

def rows(table):
    found = spark.read.format("delta").load(str(table)) if "/" in str(table) else spark.table(str(table))
    return [row[0] for row in found.orderBy("id").collect()]

found = {}
table = folder / "replay"
checkpoint("a", [5, 10, 15])
a = sink(table, "a")
outcomes = [write(a, 0, 5, 0), write(a, 0, 5, 0), write(a, 5, 10, 1), write(sink(table, "a"), 5, 10, 1)]
spark.sql(f"OPTIMIZE delta.`{table}`")  # a commit of another kind
outcomes.append(write(a, 10, 15, 2))
found["replay"] = [outcomes, rows(table)]

# Batches whose rows a filter has dropped, the first one too.
table = folder / "empty"
empty = [write(sink(table, "a"), first, last, batch) for batch, first, last in ((0, 0, 0), (1, 5, 10), (2, 10, 10))]
found["empty batches"] = [[*empty, write(sink(table, "a"), 10, 10, 2)], rows(table)]
table = folder / "replay"

# Another checkpoint, with the same boundaries and then new ones.
checkpoint("b", [10, 15, 20])
b = sink(table, "b")
found["lost checkpoint"] = [[write(b, 0, 10, 0), write(b, 10, 15, 1), write(b, 15, 20, 2)], rows(table)]
checkpoint("c", [12, 25])
found["other boundaries"] = [[write(sink(table, "c"), 0, 12, 0), write(sink(table, "c"), 12, 25, 1)], rows(table)]
checkpoint("later", [30], start=20)
found["from where it ended"] = [[write(sink(table, "later"), 20, 30, 0)], rows(table)]
checkpoint("state", [40], start=30, state=True)
found["state of another checkpoint"] = [[write(sink(table, "state"), 30, 40, 0)], rows(table)]
found["another pipeline"] = [[write(sink(table, "a", "q"), 100, 105, 0), write(sink(table, "a", "r"), 0, 5, 1)], rows(table)]

# The table's history without the pipeline's commit: as after delta.logRetentionDuration.
table = folder / "expired"
checkpoint("d", [5])
write(sink(table, "d"), 0, 5, 0)
whole = delta.DeltaAppend._commits
delta.DeltaAppend._commits = lambda *_: []
found["expired history"] = [[write(sink(table, "d"), 0, 5, 0)], rows(table)]
delta.DeltaAppend._commits = whole

# Two drivers that have read the same progress: one is first, of the same query or of another one.
for case, other in (("same query", "d"), ("other query", "e")):
    table = folder / case.replace(" ", "-")
    if other == "e":
        checkpoint("e", [3])
    late = sink(table, "d")
    append = late._append
    def overtaken(*args):
        write(sink(table, other), 0, 5 if other == "d" else 3, 0)
        append(*args)
    late._append = overtaken
    found[f"overtaken by the {case}"] = [[write(late, 0, 5, 0)], rows(table)]

# At the same moment: the other one commits while this one's task runs.
table = folder / "conflict"
checkpoint("f", [5, 10])
write(sink(table, "f"), 0, 5, 0)
late = sink(table, "f")
go = folder / "go"
def slow(batches):
    for _ in range(600):
        if Path(str(go)).exists():
            break
        time.sleep(0.1)
    yield from batches
outcome = []
def run():
    try:
        late(spark.range(5, 10, 1, 1).mapInArrow(slow, "id bigint"), 1)
    except SinkError as error:
        outcome.append(type(error).__name__)
thread = threading.Thread(target=run)
thread.start()
time.sleep(3)
second = write(sink(table, "f"), 5, 10, 1)
go.touch()
thread.join()
found["conflict"] = [[second, *outcome], rows(table)]

missing = write(sink("named", "f"), 0, 5, 0)
spark.sql("CREATE TABLE named (id BIGINT) USING delta")
found["by name"] = [[missing, write(sink("named", "f", mergeSchema="true"), 0, 5, 0), write(sink("named", "f"), 0, 5, 0)], rows("named")]

# In a real query with state: its first batch must be seen as one with state before it has run.
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
first = threading.Event()
def seen(batch, number):
    found.setdefault("first batch of a query with state", (folder / "query" / "state").exists())
    batch.collect()
    first.set()
query = numbers.groupBy("value").count().writeStream.foreachBatch(seen).outputMode("update")
query = query.option("checkpointLocation", str(folder / "query")).start()
first.wait(60)
query.stop()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars = ",".join(map(str, ensure_jars("delta")))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("delta")), jars]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TZ": "UTC"})
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_replayed_batch_is_skipped_and_other_commits_do_not_matter(found: dict[str, Any]) -> None:
    assert found["replay"] == [["done"] * 5, list(range(15))]


def test_a_batch_without_rows_has_progress(found: dict[str, Any]) -> None:
    assert found["empty batches"] == [["done"] * 4, list(range(5, 10))]


def test_after_a_lost_checkpoint_nothing_is_repeated_or_lost(found: dict[str, Any]) -> None:
    assert found["lost checkpoint"] == [["done"] * 3, list(range(20))]


def test_a_batch_that_crosses_the_end_of_the_progress_is_refused(found: dict[str, Any]) -> None:
    (first, second), rows = found["other boundaries"]
    assert (first, rows) == ("done", list(range(20)))
    assert second.startswith("OffsetGap: batch 1 does not begin where recorded progress ends")


def test_a_new_checkpoint_may_continue_where_the_progress_ends(found: dict[str, Any]) -> None:
    assert found["from where it ended"] == [["done"], list(range(30))]


def test_state_of_another_checkpoint_is_refused(found: dict[str, Any]) -> None:
    ((outcome,), rows) = found["state of another checkpoint"]
    assert outcome.startswith("OffsetGap: batch 0 comes from state")
    assert rows == list(range(30))


def test_pipelines_have_progress_of_their_own(found: dict[str, Any]) -> None:
    (first, second), rows = found["another pipeline"]
    assert (first, rows) == ("done", [*range(30), *range(100, 105)])
    assert second.startswith("OffsetGap: batch 1 follows earlier batches")


def test_progress_whose_commit_has_expired_is_an_error(found: dict[str, Any]) -> None:
    """Delta skips the write without a word, because it still knows the transaction."""
    ((outcome,), rows) = found["expired history"]
    assert outcome.startswith("OffsetGap: ")
    assert "has transaction 0 of pipeline 'p', but no longer its commit" in outcome
    assert rows == list(range(5))


def test_a_driver_that_was_overtaken_writes_nothing(found: dict[str, Any]) -> None:
    # The other driver has written this very batch.
    assert found["overtaken by the same query"] == [["done"], list(range(5))]
    ((outcome,), rows) = found["overtaken by the other query"]
    assert outcome.startswith("Fenced: ")
    assert rows == list(range(3))


def test_of_two_drivers_at_the_same_moment_one_is_fenced(found: dict[str, Any]) -> None:
    assert found["conflict"] == [["done", "Fenced"], list(range(10))]


def test_a_table_of_the_catalog(found: dict[str, Any]) -> None:
    missing = "SinkError: there is no table named"
    assert found["by name"] == [[missing, "done", "done"], list(range(5))]


def test_the_first_batch_of_a_query_with_state_is_seen_as_one(found: dict[str, Any]) -> None:
    assert found["first batch of a query with state"] is True


def test_an_option_of_the_sink_itself_is_refused() -> None:
    from onceproof.sinks.errors import SinkError
    from onceproof.sinks.tasks.delta import DeltaAppend

    with pytest.raises(SinkError, match="option 'txnVersion' is set by the sink"):
        DeltaAppend("/table", pipeline="p", checkpoint="/c", txnVersion=3)
