"""What does Spark say to a changed query that continues on the checkpoint of the query before it: refused, right, or silently wrong?

``python benchmarks/upgrades.py [GROUP ...]`` runs each change in three steps: the query as it was reads half of the records; the changed
query reads the rest on the same checkpoint; and the changed query reads everything on a new checkpoint. If Spark accepts the change and
the second step ends with other rows than the third, the change is silent. Prints the table of ``docs/upgrades.md``. Needs no services.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

Version = Callable[[DataFrame], DataFrame]
"""From the records to the rows of the output, of which the first column is the key."""

SCHEMA = "n LONG, k STRING, c STRING, at TIMESTAMP, a LONG, b LONG"
STATE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
FIRST_FORMAT = {f"{STATE}.checkpointFormatVersion": "1"}
"""The only one that both providers have."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    f"{STATE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE}.checkpointFormatVersion": "2",
}


@dataclass(frozen=True)
class Change:
    what: str
    before: Version
    after: Version
    mode: str = "update"
    settings: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))
    """Settings of Spark before and after the change."""


# -- queries --------------------------------------------------------------------------------------------------------


def grouped(by: str, *values: Any) -> Version:
    return lambda records: records.groupBy(f.col(by).alias("key")).agg(*values)


def windowed(length: str, slide: str | None = None, watermark: str = "1 hour") -> Version:
    def query(records: DataFrame) -> DataFrame:
        window = f.window("at", length, slide)
        totals = records.withWatermark("at", watermark).groupBy(window.alias("window")).agg(f.sum("a").alias("total"))
        return totals.select(f.col("window.start").cast("string").alias("key"), "total")

    return query


def distinct(*columns: str, within: bool = False) -> Version:
    def query(records: DataFrame) -> DataFrame:
        records = records.withWatermark("at", "1 day") if within else records
        kept = records.dropDuplicatesWithinWatermark([*columns]) if within else records.dropDuplicates([*columns])
        return kept.select("n", "k")

    return query


def plain(*columns: str) -> Version:
    return lambda records: records.select("n", *columns)


def joined(how: str) -> Version:
    def query(records: DataFrame) -> DataFrame:
        left = records.withWatermark("at", "1 hour").alias("l")
        right = records.where("a % 2 = 0").withWatermark("at", "1 hour").alias("r")
        pairs = left.join(right, f.expr("l.n = r.n AND r.at BETWEEN l.at AND l.at + INTERVAL 1 MINUTE"), how)
        return pairs.select("l.n", "r.b")

    return query


class Counting(StatefulProcessor):
    """Counts the records of each key. ``state``: the columns of its state; ``of``: the column with the count."""

    def __init__(self, state: str, of: str, name: str = "seen") -> None:
        self._state, self._of, self._name = state, of, name

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState(self._name, self._state)
        names = [column.split()[0] for column in self._state.split(", ")]
        self._width, self._at = len(names), names.index(self._of)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        known = self._seen.get()
        count = sum(1 for _ in rows) + ((known[self._at] or 0) if known is not None else 0)
        self._seen.update(tuple(count if i == self._at else 0 for i in range(self._width)))
        yield Row(key=key[0], count=count)

    def close(self) -> None:
        return


def counted(state: str, of: str = "count", name: str = "seen") -> Version:
    return lambda records: records.groupBy("k").transformWithState(
        Counting(state, of, name), "key STRING, count LONG", "Update", "None"
    )


def then(first: Callable[[DataFrame], DataFrame], query: Version) -> Version:
    return lambda records: query(first(records))


def sum_of(column: str, name: str = "total") -> Any:
    return f.sum(column).alias(name)


def evolutions(encoding: str) -> list[Change]:
    both = ({f"{STATE}.encodingFormat": encoding},) * 2
    old = counted("count LONG")
    return [
        Change(f"`transformWithState`, `{encoding}`: {what}", before, after, settings=both)
        for what, before, after in (
            ("a column added at the end", old, counted("count LONG, last LONG")),
            ("a column added before the others", old, counted("last LONG, count LONG")),
            ("two columns exchanged", counted("count LONG, last LONG"), counted("last LONG, count LONG")),
            ("a column renamed", old, counted("number LONG", of="number")),
            ("a column widened, INT to LONG", counted("count INT"), old),
            ("a column narrowed, LONG to INT", old, counted("count INT")),
            ("the state variable renamed", old, counted("count LONG", name="visits")),
        )
    ]


GROUPS: dict[str, Callable[[], list[Change]]] = {
    "aggregates": lambda: [
        Change("`sum` of another column of the same type", grouped("k", sum_of("a")), grouped("k", sum_of("b"))),
        Change("`sum` becomes `max`", grouped("k", sum_of("a")), grouped("k", f.max("a").alias("total"))),
        Change("`sum` becomes `count`", grouped("k", sum_of("a")), grouped("k", f.count("*").alias("total"))),
        Change("`count` becomes `sum`", grouped("k", f.count("*").alias("total")), grouped("k", sum_of("a"))),
        Change("`sum` becomes `avg`", grouped("k", sum_of("a")), grouped("k", f.avg("a").alias("total"))),
        Change("an aggregate added", grouped("k", sum_of("a")), grouped("k", sum_of("a"), f.max("a").alias("most"))),
        Change(
            "two aggregates of the same type exchanged",
            grouped("k", sum_of("a", "x"), sum_of("b", "y")),
            grouped("k", sum_of("b", "y"), sum_of("a", "x")),
        ),
        Change(
            "the type of the aggregated column changed, LONG to DOUBLE",
            grouped("k", sum_of("a")),
            grouped("k", f.sum(f.col("a").cast("double")).alias("total")),
        ),
        Change(
            "a filter before the aggregation",
            grouped("k", sum_of("a")),
            then(lambda r: r.where("a % 2 = 0"), grouped("k", sum_of("a"))),
        ),
        Change("grouped by another column of the same type", grouped("k", sum_of("a")), grouped("c", sum_of("a"))),
        Change(
            "one more column to group by",
            grouped("k", sum_of("a")),
            lambda r: r.groupBy(f.col("k").alias("key"), "c").agg(sum_of("a")).select(f.concat("key", "c"), "total"),
        ),
    ],
    "windows": lambda: [
        Change("a window of 1 hour becomes 30 minutes", windowed("1 hour"), windowed("30 minutes")),
        Change("a tumbling window becomes a sliding one", windowed("1 hour"), windowed("1 hour", "30 minutes")),
        Change(
            "the watermark's delay, 1 hour to 10 minutes (without late records)",
            windowed("1 hour"),
            windowed("1 hour", None, "10 minutes"),
        ),
        Change(
            "`spark.sql.shuffle.partitions`, 2 to 5",
            grouped("k", sum_of("a")),
            grouped("k", sum_of("a")),
            settings=({}, {"spark.sql.shuffle.partitions": "5"}),
        ),
        Change(
            "the state store's provider, RocksDB to HDFS",
            grouped("k", sum_of("a")),
            grouped("k", sum_of("a")),
            settings=(
                FIRST_FORMAT,
                {**FIRST_FORMAT, f"{STATE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"},
            ),
        ),
    ],
    "operators": lambda: [
        Change("`dropDuplicates` by another column of the same type", distinct("k"), distinct("c"), "append"),
        Change("`dropDuplicates` by one more column", distinct("k"), distinct("k", "c"), "append"),
        Change(
            "`dropDuplicatesWithinWatermark` by another column of the same type",
            distinct("k", within=True),
            distinct("c", within=True),
            "append",
        ),
        Change(
            "`dropDuplicates` added before an aggregation",
            grouped("k", sum_of("a")),
            then(lambda r: r.dropDuplicates(["c"]), grouped("k", sum_of("a"))),
        ),
        Change("an aggregation added to a query without state", plain("a"), grouped("k", sum_of("a")), "update"),
        Change("`dropDuplicates` removed", distinct("k"), plain("k"), "append"),
        Change("a join becomes a left join", joined("inner"), joined("left"), "append"),
        Change("a column added to input and output, without state", plain("a"), plain("a", "b"), "append"),
    ],
    "unsaferow": lambda: evolutions("unsaferow"),
    "avro": lambda: evolutions("avro"),
}


# -- how they are run -----------------------------------------------------------------------------------------------


def records(numbers: range) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "k": "xyz"[n % 3],
            "c": "uvwxyz"[n % 6] if n < 20 else "uvwabc"[n % 6],
            "at": f"2026-01-01T{12 + n // 20}:{n * 3 % 60:02d}:00Z",
            "a": n,
            "b": 1000 + n,
        }
        for n in numbers
    ]


def run(
    spark: SparkSession, source: Path, checkpoint: Path, query: Version, mode: str, settings: Mapping[str, str]
) -> dict[Any, tuple[Any, ...]]:
    """Process what is there. Returns the last row of each key; raises what the query raises."""
    rows: dict[Any, tuple[Any, ...]] = {}

    def keep(batch: DataFrame, _batch_id: int) -> None:
        rows.update({row[0]: tuple(row[1:]) for row in batch.collect()})

    for name, value in {**SETTINGS, **settings}.items():
        if name.startswith("spark.sql") and name != "spark.sql.catalogImplementation":
            spark.conf.set(name, value)
    spark.conf.set(f"{STATE}.encodingFormat", settings.get(f"{STATE}.encodingFormat", "unsaferow"))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    writer = query(stream).writeStream.foreachBatch(keep).outputMode(mode)
    running = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()
    return rows


def outcome(spark: SparkSession, change: Change, folder: Path) -> tuple[str, str]:
    """Spark's answer; its error class, or the first row of the output that is wrong."""
    source, checkpoint, mode = folder / "in", folder / "old", change.mode
    source.mkdir(parents=True)
    write(source / "1.json", records(range(20)))
    rows = run(spark, source, checkpoint, change.before, mode, change.settings[0])
    write(source / "2.json", records(range(20, 40)))
    try:
        rows |= run(spark, source, checkpoint, change.after, mode, change.settings[1])
    except Exception as refused:  # whatever Spark raises is its answer
        return "refused", error_class(str(refused))
    right = run(spark, source, folder / "new", change.after, mode, change.settings[1])
    stores = sum(folder.name.isdigit() for folder in checkpoint.glob("state/0/*"))
    kept = f"still {stores} state partitions" if "partitions" in change.what else ""
    if rows == right:
        return "accepted, right", kept
    key = min((key for key in {*rows, *right} if rows.get(key) != right.get(key)), key=str)
    return "**silent**", f"{shown(key)}: {shown(rows.get(key))} instead of {shown(right.get(key))}"


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "nothing" if value is None else str(value)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def error_class(message: str) -> str:
    """The most specific of Spark's error classes in the message."""
    names = re.findall(r"\[([A-Z][A-Z0-9_.]{8,})\]", message)
    return f"`{names[-1]}`" if names else " ".join(message.split())[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    chosen = parser.parse_args().groups or [*GROUPS]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("upgrades").master("local[2]").config(map=dict(SETTINGS)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    print(
        f"Spark {spark.version}\n\n| change | Spark's answer | its error, or the first wrong row |\n| --- | --- | --- |",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for group in chosen:
            for number, change in enumerate(GROUPS[group]()):
                answer, detail = outcome(spark, change, Path(folder) / f"{group}-{number}")
                print(f"| {change.what} | {answer} | {detail} |", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
