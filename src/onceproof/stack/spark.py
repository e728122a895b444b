"""A standalone Spark on loopback: a master and workers, from the jars of the Spark that the job runs on.

An executor is then a separate process, a child of its worker and not of the driver: it can die alone. Each worker has its
own loopback address, because Spark counts addresses as machines and never runs a speculative attempt on the machine of the
attempt that it races.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, WaitTimeout
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import SparkStack
from onceproof.stack.fetch import driver_archive
from onceproof.stack.fetch.components import Components
from onceproof.stack.fetch.java import FOREIGN_OPTIONS
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import accepts_connections, lease
from onceproof.stack.spark_settings import Cluster, inherited

READY_S = 60.0
"""The master and then the workers take 2 s each on two idle cores."""
_ASK_S = 2.0
_DAEMON_MB = 256
_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105  # the name under which Spark looks for it


class SparkCluster:
    """Implements `onceproof.stack.api.Spark`. Created by `start`, stopped by the owner given to it."""

    def __init__(self, conf: Cluster, master: Service, workers: tuple[Service, ...]) -> None:
        self.conf = conf
        self.master = master
        self.workers = workers

    @classmethod
    def start(cls, spec: SparkStack, owner: Owner, logs: Path, components: Components) -> Self:
        """Start the master, then the workers in parallel; return when all have registered.

        They accept only clients that know this run's secret: anybody who could reach the master could run code as its
        user. Raises `ServiceFailed` with the last log lines of the process that did not start.
        """
        folder = owner.scratch / "spark"
        folder.mkdir()
        secret = secrets.token_urlsafe(24)
        hide(secret)
        port, ui, *worker_ports = lease(owner, 2 + 2 * spec.workers)
        home = driver_archive.spark_home(os.environ)
        env = _environment(folder, home, secret, components)
        spark_class = [home / "bin" / "spark-class"]
        if not spark_class[0].is_file():
            raise EnvironmentProblem(
                f"{home} has no bin/spark-class, with which a standalone Spark is started",
                hint="set SPARK_HOME to a complete Spark installation, or unset it to use the one in the package pyspark",
            )
        master = owner.start(
            "spark-master",
            [*spark_class, "org.apache.spark.deploy.master.Master", *_listen(HOST, port, ui)],
            log=logs / "spark-master.log",
            env={**env, "SPARK_LOCAL_IP": HOST},
            cwd=folder,
        )
        url = f"spark://{HOST}:{port}"
        # A worker that starts before its master tries again only after 5 to 15 s.
        _wait("the Spark master to listen", lambda: accepts_connections(HOST, port), [master])
        workers = []
        for number in range(spec.workers):
            host = f"127.0.0.{2 + number}"
            resources = ["--cores", str(spec.cores), "--memory", f"{spec.memory_mb}m"]
            # In the logs folder, to keep the executors' output: the worker writes it to APP/EXECUTOR/stderr below this folder.
            work_dir: list[str | Path] = ["--work-dir", logs / f"spark-worker-{number}"]
            listen = _listen(host, worker_ports[2 * number], worker_ports[2 * number + 1])
            workers.append(
                owner.start(
                    f"spark-worker-{number}",
                    [*spark_class, "org.apache.spark.deploy.worker.Worker", *listen, *resources, *work_dir, url],
                    log=logs / f"spark-worker-{number}.log",
                    env={**env, "SPARK_LOCAL_IP": host},
                    cwd=folder,
                )
            )
        _wait(
            f"{spec.workers} Spark workers to register",
            lambda: registered_workers(HOST, ui) == spec.workers,
            [master, *workers],
        )
        arguments = folder / "driver.args"
        arguments.touch(0o600)
        arguments.write_text(f"-Dspark.authenticate.secret={secret}\n", encoding="utf-8")
        return cls(Cluster(url, arguments, spec.memory_mb, components.spark_archive), master, tuple(workers))

    def pids(self) -> list[int]:
        """Every process below the workers: executors, and the Python workers of their tasks."""
        workers = {worker.pid for worker in self.workers}
        members = [process for worker in self.workers for process in worker.members()]
        return [process.pid for process in members if process.pid not in workers]

    def isolate(self, pid: int) -> str:
        raise NotImplementedError("validated: its executors have no network of their own")

    def rejoin(self) -> None:
        """Does nothing: no executor was cut off."""

    def check_used(self, pids: Iterable[int]) -> None:
        """Does nothing: a job may run its tasks itself. A fault of an executor then misses."""

    def check_health(self) -> None:
        """Raise `ServiceFailed` if the master or a worker ended: no fault kills them."""
        _check([self.master, *self.workers])


def _environment(folder: Path, home: Path, secret: str, components: Components) -> dict[str, str]:
    """The environment of the master, the workers and the executors. Of the user's own Spark settings, only those of any job."""
    options = [
        *driver_archive.options(components.spark_archive),
        "-XX:+UseSerialGC",
        "-Dspark.authenticate=true",
        "-Dspark.master.rest.enabled=false",
        "-Dspark.ui.killEnabled=false",
        f"-Djava.io.tmpdir={folder}",
    ]
    checkpoint = [components.checkpoint_jar] if components.checkpoint_jar is not None else []
    jars = [*components.spark_jars, *checkpoint, components.postgres_driver]
    users = {name: value for name, value in inherited().items() if name not in FOREIGN_OPTIONS}
    return {
        **users,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(components.java.home),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": f"{_DAEMON_MB}m",
        "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
        # The same jars in the same order as a driver has them, so that the class archive also fits executors.
        "SPARK_DIST_CLASSPATH": os.pathsep.join(
            filter(None, [users.get("SPARK_DIST_CLASSPATH"), driver_archive.class_path(tuple(jars))])
        ),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "TMPDIR": str(folder),
        _SECRET_VARIABLE: secret,
    }


def _listen(host: str, port: int, ui: int) -> list[str]:
    return ["--host", host, "--port", str(port), "--webui-port", str(ui)]


def registered_workers(host: str, ui: int) -> int:
    """How many live workers the master whose web page is there reports; -1 without an answer."""
    try:
        with urllib.request.urlopen(f"http://{host}:{ui}/json/", timeout=_ASK_S) as answer:
            status: Mapping[str, int] = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError):
        return -1
    return status["aliveworkers"]


def _wait(reason: str, probe: Callable[[], bool], services: list[Service]) -> None:
    try:
        wait_until(reason, probe, deadline_s=READY_S, abandon=lambda: _check(services))
    except WaitTimeout as late:
        raise ServiceFailed(late.message, log_tail=services[-1].log_tail()) from late


def _check(services: list[Service]) -> None:
    for service in services:
        service.check_running()
