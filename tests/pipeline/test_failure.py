"""Finding the cause of a failure in logs of Python, Py4J, the JVM and Spark."""

from __future__ import annotations

import sys

import pytest

from onceproof.pipeline.failure import causes, foreign_address, missing_module, worth_showing

JDBC = """\
26/11/22 13:55:13 WARN NativeCodeLoader: Unable to load native-hadoop library
Traceback (most recent call last):
  File "job.py", line 12, in <module>
    frame.write.jdbc(url, "orders")
    ~~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^
py4j.protocol.Py4JJavaError: An error occurred while calling o57.jdbc.
: org.postgresql.util.PSQLException: Connection to localhost:5432 refused. Check that the hostname and port are correct.
\tat org.postgresql.core.v3.ConnectionFactoryImpl.openConnectionImpl(ConnectionFactoryImpl.java:352)
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)
\t... 40 more

"""

STREAM = """\
Traceback (most recent call last):
  File "job.py", line 40, in <module>
    query.awaitTermination()
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 1] terminated with exception: x
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current Available Offsets: {KafkaV2[Subscribe[till]]: {"till":{"0":0}}}
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "job.py", line 20, in write
    connection.execute(statement)
^^^^^^^^^^^^^^^
psycopg.errors.UndefinedTable: relation "orders" does not exist
"""


def test_the_deepest_cause_comes_first_and_wrappers_are_left_out() -> None:
    assert causes(JDBC) == [
        "java.net.ConnectException: Connection refused",
        "org.postgresql.util.PSQLException: Connection to localhost:5432 refused. Check that the hostname and port are correct.",
    ]
    assert causes(STREAM) == ['psycopg.errors.UndefinedTable: relation "orders" does not exist']


def test_a_wrapper_is_shown_if_there_is_nothing_else() -> None:
    alone = "\n".join(STREAM.splitlines()[:4])
    assert len(causes(alone)) == 1 and "[STREAM_FAILED]" in causes(alone)[0]


def test_at_most_four_shortened_lines_are_shown() -> None:
    many = "\n".join(f"java.lang.IllegalStateException: number {n} {'x' * 1000}" for n in range(50))
    assert causes(many)[0].startswith("java.lang.IllegalStateException: number 49 ")
    assert len(causes(many)) == 4 and all(len(row) <= 300 for row in causes(many))


def test_a_log_without_an_exception_has_no_cause() -> None:
    assert causes("usage: job.py [-h]\njob.py: error: unrecognized arguments: --x") == []


@pytest.mark.parametrize(
    ("log", "address"),
    [
        (JDBC, "localhost:5432"),
        ('psycopg.OperationalError: connection to server at "db" (10.0.0.1), port 5432 failed: timed out', "db:5432"),
        ("WARN NetworkClient: Connection to node -1 (broker/127.0.0.1:9092) could not be established.", "broker:9092"),
        ("java.net.ConnectException: Connection to 127.0.0.1:40001 refused", None),
        ("done at 13:55:13: 20 rows", None),
    ],
)
def test_an_address_that_is_not_of_the_run_is_found(log: str, address: str | None) -> None:
    assert foreign_address(log, ["127.0.0.1:40001", "postgresql://job@127.0.0.1:40002/job"]) == address


def test_of_an_empty_log_nothing_is_shown() -> None:
    assert worth_showing("", 25) == ""


def test_what_spark_writes_in_every_run_is_not_shown() -> None:
    log = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/28 08:34:12 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
Setting default log level to "WARN".
batch 1: dry run
26/11/28 08:34:18 WARN ProcessingTimeExecutor: Current batch is falling behind.
26/11/28 08:34:19 WARN TaskSetManager: Lost task 0.0 in stage 1.0
java.lang.IllegalStateException: no table
\tat Job.run(Job.java:1)
26/11/28 08:34:20 ERROR MicroBatchExecution: Query terminated
"""
    assert worth_showing(log, 12).splitlines() == [
        "batch 1: dry run",
        "26/11/28 08:34:19 WARN TaskSetManager: Lost task 0.0 in stage 1.0",
        "java.lang.IllegalStateException: no table",
        "\tat Job.run(Job.java:1)",
        "26/11/28 08:34:20 ERROR MicroBatchExecution: Query terminated",
    ]
    assert worth_showing(log, 1).splitlines() == ["26/11/28 08:34:20 ERROR MicroBatchExecution: Query terminated"]
    assert worth_showing("26/11/28 08:34:18 WARN X: y\n", 12) == ""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "/usr/bin/python3",
            "the job ran with /usr/bin/python3, which has no module psycopg: install it there, or begin the",
        ),
        (sys.executable, f"{{python}} is {sys.executable}, which has no module psycopg: install it there"),
        ("spark-submit", "the Python that spark-submit uses has no module psycopg"),
        (None, "the job's image has no module psycopg"),
    ],
)
def test_a_missing_module_names_the_python_that_lacks_it(program: str | None, expected: str) -> None:
    hint = missing_module(["ModuleNotFoundError: No module named 'psycopg'"], program)
    assert hint is not None and hint.startswith(expected)
    assert missing_module(["KeyError: 'psycopg'"], program) is None
