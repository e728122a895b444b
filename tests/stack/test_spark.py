"""A standalone Spark on loopback: a job that sets no master runs its tasks there, and no other job can."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from onceproof.base.waiting import wait_until
from onceproof.pipeline.spark_conf import job_environment
from onceproof.scenario.stack import SparkStack
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.spark import SparkCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PROBE = """
import json, os
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def task(index, _):
    import os, socket
    yield index, os.getppid(), os.environ.get("PGPASSFILE")
context = spark.sparkContext
print("RESULT" + json.dumps([context.master, context.parallelize(range(4), 4).mapPartitionsWithIndex(task).collect()]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkCluster, Path]]:
    folder = tmp_path_factory.mktemp("spark")
    with Owner() as owner:
        yield SparkCluster.start(SparkStack(), owner, folder, components.ensure(progress=False)), folder


def start(cluster: SparkCluster, owner: Owner, folder: Path, own: dict[str, str] | None = None) -> Service:
    """Start the probe in the environment of a job."""
    fetched = components.ensure(progress=False)
    events = folder / "events"
    events.mkdir()
    (folder / "probe.py").write_text(PROBE)
    env = job_environment(
        class_path=fetched.spark_jars,
        archive=fetched.spark_archive,
        scratch=folder,
        passfile=folder / "pass",
        failpoints=None,
        own=own or {},
        secrets=[],
        cluster=cluster.conf,
        events=events,
    )
    return owner.start("probe", [sys.executable, folder / "probe.py"], log=folder / "log", env=env, cwd=folder)


def test_tasks_of_a_job_without_a_master_run_below_the_workers(
    cluster: tuple[SparkCluster, Path], tmp_path: Path
) -> None:
    spark, folder = cluster
    with Owner() as owner:
        assert start(spark, owner, tmp_path).wait(120) == 0, (tmp_path / "log").read_text()
    result = re.search(r"RESULT(.*)", (tmp_path / "log").read_text())
    assert result is not None
    master, tasks = json.loads(result[1])
    assert master == spark.conf.master
    assert len({daemon for _, daemon, _ in tasks}) in (1, 2) and len(tasks) == 4
    assert {passfile for *_, passfile in tasks} == {str(tmp_path / "pass")}
    assert os.getpid() not in {daemon for _, daemon, _ in tasks}
    (log,) = (tmp_path / "events").iterdir()
    assert log.name.startswith("app-"), "an application of the cluster, not of local mode (local-)"
    outputs = list(folder.glob("spark-worker-*/app-*/*/stderr"))
    assert len(outputs) == 2, "each worker has one executor"
    spark.check_health()


def test_the_secret_is_in_no_command_line_and_in_no_log(cluster: tuple[SparkCluster, Path], tmp_path: Path) -> None:
    spark, folder = cluster
    secret = spark.conf.arguments.read_text().strip().partition("=")[2]
    assert len(secret) > 20 and spark.conf.arguments.stat().st_mode & 0o077 == 0
    lasting = {spark.master.pid, *(worker.pid for worker in spark.workers)}
    listed = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in lasting}
    for pid in {*spark.pids()} - lasting:
        with suppress(psutil.NoSuchProcess):  # an executor of the previous test that is about to end
            listed[pid] = " ".join(psutil.Process(pid).cmdline())
    assert not [pid for pid, command in listed.items() if secret in command]
    written = [path for path in folder.rglob("*") if path.is_file() and secret in path.read_text(errors="replace")]
    assert written == []


def test_a_job_without_the_secret_runs_nothing(cluster: tuple[SparkCluster, Path], tmp_path: Path) -> None:
    spark, folder = cluster
    before = len(list(folder.glob("spark-worker-*/app-*")))
    guess = {"PYSPARK_SUBMIT_ARGS": "--conf spark.authenticate.secret=guessed pyspark-shell"}
    refused = "Failed to connect to master"
    with Owner() as owner:
        job = start(spark, owner, tmp_path, guess)
        # It would try for another minute; a job that the master accepts does not log this, and ends.
        wait_until(
            "the master to reject it",
            lambda: refused in job.log_tail(1000) or not job.is_running(),
            deadline_s=120,
        )
        assert refused in job.log_tail(1000) and job.is_running()
    assert len(list(folder.glob("spark-worker-*/app-*"))) == before


def test_everything_listens_on_loopback(cluster: tuple[SparkCluster, Path]) -> None:
    spark, _ = cluster
    own = [spark.master.pid, *(worker.pid for worker in spark.workers)]
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for pid in own
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}
