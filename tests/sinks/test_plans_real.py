"""`one_task_each` on plans of a real Spark session: it must be right about each operation that moves rows between tasks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.full]

#: Plan -> how many source partitions the batch has. Each frame has a source of three partitions.
SCRIPT = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession, functions as f
from onceproof.sinks.tasks.plans import one_task_each
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalogImplementation", "in-memory").getOrCreate()
)
rows, few = spark.range(0, 30, 1, 3), spark.range(0, 5, 1, 1)
plans = {
    "as it is read": (rows, 3),
    "filtered and mapped": (rows.where("id > 4").mapInArrow(lambda batches: batches, "id bigint"), 3),
    "joined with a small table": (rows.join(f.broadcast(few), "id"), 3),
    "a union of two sources": (rows.union(spark.range(0, 20, 1, 2)), 5),
    "a source partition in several splits": (rows, 2),
    "a source that is read twice": (rows.union(rows), 3),
    "repartitioned": (rows.repartition(3), 3),
    "coalesced": (rows.coalesce(1), 1),
    "joined by a shuffle": (rows.hint("merge").join(few.hint("merge"), "id"), 3),
    "sorted": (rows.orderBy(f.desc("id")), 3),
}
print(json.dumps({name: one_task_each(*plan) for name, plan in plans.items()}))
print(json.dumps(one_task_each(object(), 3)))
"""


def test_only_plans_that_keep_source_partitions_whole_are_written_as_they_are() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found, without_jvm = map(json.loads, done.stdout.splitlines()[-2:])
    whole = {name for name, is_whole in found.items() if is_whole}
    assert whole == {"as it is read", "filtered and mapped", "joined with a small table", "a union of two sources"}
    assert without_jvm is False
