"""A program (``python -m``) that does once, on little data, what most pipelines do, so that the JVM loads their classes.

`onceproof.stack.fetch.driver_archive` starts it. Arguments: an empty folder to work in, and the jars of Spark's connector.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

#: Unused classes of the connector's jars: for other versions of Java, for telemetry, for tools that print messages as JSON.
_UNUSED = re.compile(r"^META-INF/|/shaded/|JsonConverter")

_DEADLINE_S = 240
"""Writing the archive takes 12 s on idle cores, and took more than 60 s on a machine with six times as much work as cores: each later
run then tried again. `onceproof.stack.fetch.driver_archive` waits for 300 s in all."""


def main(folder: Path, connector: Sequence[Path]) -> None:
    """Run the queries, load the connector, and return when the JVM has ended: it writes the archive at its exit."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    _stream(spark, folder)
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a running session has a JVM"
    _load_classes(gateway.jvm, connector)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Spark's gateway ends at the end of its input
    gateway.proc.wait(_DEADLINE_S)


def _stream(spark: SparkSession, folder: Path) -> None:
    """Run two queries: JSON joined with a Parquet file and collected as Arrow per batch, and a stateful group-by."""
    known = folder / "known.parquet"
    spark.range(10).selectExpr("id", "CAST(id AS STRING) AS name").write.parquet(str(known))
    lines = folder / "lines"
    lines.mkdir()
    (lines / "1.json").write_text('{"id": 1, "at": "2013-01-01T10:00:00Z"}\n{"id": 2, "at": "2013-01-01T10:00:01Z"}\n')
    parsed = (
        spark.readStream.text(str(lines)).select(f.from_json("value", "id INT, at TIMESTAMP").alias("r")).select("r.*")
    )
    joined = parsed.where("id IS NOT NULL").join(f.broadcast(spark.read.parquet(str(known))), "id", "left")
    counted = parsed.withWatermark("at", "1 minute").groupBy(f.window("at", "1 minute")).count()
    for name, frame, mode in (("joined", joined, "append"), ("counted", counted, "update")):
        query = (
            frame.writeStream.foreachBatch(_collect)
            .outputMode(mode)
            .option("checkpointLocation", str(folder / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(_DEADLINE_S)


def _collect(batch: DataFrame, _number: int) -> None:
    batch.persist()
    batch.toArrow()
    batch.collect()
    batch.unpersist()


def _load_classes(jvm: Any, connector: Sequence[Path]) -> None:
    """Load all classes of these jars: the JVM loads most of Kafka's client only when a program talks to a broker."""
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    for jar in connector:
        with ZipFile(jar) as opened:
            names = [name for name in opened.namelist() if name.endswith(".class") and not _UNUSED.search(name)]
        for name in names:
            with suppress(Py4JJavaError):  # the class needs a library that is not on the class path
                jvm.java.lang.Class.forName(name.removesuffix(".class").replace("/", "."), False, loader)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(jar) for jar in sys.argv[2:]])
