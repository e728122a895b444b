"""A program (``python -m``): the driver of a pipeline that is given as a Python function (``pipeline.callable``).

Arguments: the function's name, then its arguments as ``--NAME=VALUE``. It runs in the job's process, with real kills, what the
warm tier of `onceproof explore` runs many times in one session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceproof.base.user_code import load_function

#: The argument with the folder of the query's checkpoint.
CHECKPOINT = "checkpoint"


def arguments(words: Sequence[str]) -> dict[str, str | bool]:
    """``--NAME=VALUE`` and ``--NAME`` as arguments of the function: a name's hyphens become underscores. Raises `ValueError`."""
    found: dict[str, str | bool] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise ValueError(
                f"{word!r} is not an argument of the function: write it under pipeline.args as NAME: VALUE"
            )
        found[name[2:].replace("-", "_")] = value if equals else True
    return found


def session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of the driver: two local cores, unless the environment names another master; and settings for a fair order.

    ``settings`` are further ones.
    """
    builder = SparkSession.builder.appName("onceproof-callable")
    if "MASTER" not in os.environ:
        builder = builder.master("local[2]")
    return (
        builder.config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # One task must stay one topic partition, in the same order on every replay.
        .config("spark.sql.adaptive.streaming.stateless.enabled", "false")
        .config(map=dict(settings or {}))
        .getOrCreate()
    )


def build(function: Callable[..., Any], spark: SparkSession, args: Mapping[str, str | bool]) -> DataStreamWriter:
    """What the function returns, with the checkpoint's folder set. Raises `TypeError` if it is not a `DataStreamWriter`."""
    module = sys.modules.get(function.__module__)
    if module is not None:  # a task's Python worker cannot import it by its name
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    writer = function(spark, **args)
    if not isinstance(writer, DataStreamWriter):
        raise TypeError(
            f"{function.__name__} returned a {type(writer).__name__}, not a DataStreamWriter: return df.writeStream with its sink, "
            "and do not start it"
        )
    checkpoint = args.get(CHECKPOINT)
    return writer if checkpoint is None else writer.option("checkpointLocation", str(checkpoint))


def main(name: str, words: Sequence[str]) -> None:
    """Run the query until it ends."""
    build(load_function(name), session(), arguments(words)).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
