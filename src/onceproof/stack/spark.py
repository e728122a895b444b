"""Spark's own cluster on loopback: a standalone master and workers, from the jars of the Spark that the job runs on.

An executor is then a process of its own, a child of its worker and not of the driver: it can die alone. Each worker has a
loopback address of its own, because Spark counts addresses as machines: a speculative attempt never runs on the machine of
the attempt that it races.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, WaitTimeout
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.scenario.model import SparkStack
from onceproof.stack.fetch import driver_archive
from onceproof.stack.fetch.components import Components
from onceproof.stack.fetch.java import FOREIGN_OPTIONS
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import lease
from onceproof.stack.spark_settings import Cluster, inherited

_READY_S = 60.0
"""Master and workers take 2 s each, one after the other, on two idle cores."""
_ASK_S = 2.0
_DAEMON_MB = 256
_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105  # the name under which Spark looks for it


class SparkCluster:
    """Implements `onceproof.stack.api.Spark`. Made by `start`, stopped by the owner given to it."""

    def __init__(self, conf: Cluster, master: Service, workers: tuple[Service, ...]) -> None:
        self.conf = conf
        self.master = master
        self.workers = workers

    @classmethod
    def start(cls, spec: SparkStack, owner: Owner, logs: Path, components: Components) -> Self:
        """The master, then the workers side by side; returns when all have registered.

        Only who knows a secret of this run may talk to them: whoever can reach a master runs code as its user. Raises
        `ServiceFailed` with the last log lines of what did not come up.
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
                hint="let SPARK_HOME name a whole Spark, or unset it: the one of the package pyspark is used then",
            )
        master = owner.start(
            "spark-master",
            [*spark_class, "org.apache.spark.deploy.master.Master", *_listen(HOST, port, ui)],
            log=logs / "spark-master.log",
            env={**env, "SPARK_LOCAL_IP": HOST},
            cwd=folder,
        )
        url = f"spark://{HOST}:{port}"
        # A worker that comes before its master tries again only after 5 to 15 s.
        _wait("the Spark master to listen", lambda: _listens(port), [master])
        workers = []
        for number in range(spec.workers):
            host = f"127.0.0.{2 + number}"
            resources = ["--cores", str(spec.cores), "--memory", f"{spec.memory_mb}m"]
            # Executors' own words are kept: their worker writes them to APP/EXECUTOR/stderr below its folder.
            where: list[str | Path] = ["--work-dir", logs / f"spark-worker-{number}"]
            listen = _listen(host, worker_ports[2 * number], worker_ports[2 * number + 1])
            workers.append(
                owner.start(
                    f"spark-worker-{number}",
                    [*spark_class, "org.apache.spark.deploy.worker.Worker", *listen, *resources, *where, url],
                    log=logs / f"spark-worker-{number}.log",
                    env={**env, "SPARK_LOCAL_IP": host},
                    cwd=folder,
                )
            )
        _wait(f"{spec.workers} Spark workers to register", lambda: _alive(ui) == spec.workers, [master, *workers])
        arguments = folder / "driver.args"
        arguments.touch(0o600)
        arguments.write_text(f"-Dspark.authenticate.secret={secret}\n", encoding="utf-8")
        return cls(Cluster(url, arguments, spec.memory_mb, components.spark_archive), master, tuple(workers))

    @property
    def master_url(self) -> str:
        return self.conf.master

    def pids(self) -> list[int]:
        """Every process below the workers: executors, and the Python workers of their tasks."""
        workers = {worker.pid for worker in self.workers}
        members = [process for worker in self.workers for process in worker.members()]
        return [process.pid for process in members if process.pid not in workers]

    def check_health(self) -> None:
        """Raise `ServiceFailed` if the master or a worker ended: no fault kills these."""
        _check([self.master, *self.workers])


def _environment(folder: Path, home: Path, secret: str, components: Components) -> dict[str, str]:
    """What the master, the workers and through them the executors get. Of the user's own Spark only what any job gets."""
    options = [
        *driver_archive.options(components.spark_archive),
        "-XX:+UseSerialGC",
        "-Dspark.authenticate=true",
        "-Dspark.master.rest.enabled=false",
        "-Dspark.ui.killEnabled=false",
        f"-Djava.io.tmpdir={folder}",
    ]
    files = [components.checkpoint_jar] if components.checkpoint_jar is not None else []
    jars = [*components.spark_jars, *files, components.postgres_driver]
    users = {name: value for name, value in inherited().items() if name not in FOREIGN_OPTIONS}
    return {
        **users,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(components.java.home),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": f"{_DAEMON_MB}m",
        "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
        # Executors find here what a driver finds, in the same order: the class archive fits them too.
        "SPARK_DIST_CLASSPATH": os.pathsep.join(
            filter(None, [users.get("SPARK_DIST_CLASSPATH"), driver_archive.class_path(tuple(jars))])
        ),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "TMPDIR": str(folder),
        _SECRET_VARIABLE: secret,
    }


def _listen(host: str, port: int, ui: int) -> list[str]:
    return ["--host", host, "--port", str(port), "--webui-port", str(ui)]


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=_ASK_S):
            return True
    except OSError:
        return False


def _alive(ui: int) -> int:
    """How many workers the master counts."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{ui}/json/", timeout=_ASK_S) as answer:
            told: Mapping[str, int] = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError):
        return -1
    return told["aliveworkers"]


def _wait(reason: str, probe: Callable[[], bool], services: list[Service]) -> None:
    try:
        wait_until(reason, probe, deadline_s=_READY_S, abandon=lambda: _check(services))
    except WaitTimeout as late:
        raise ServiceFailed(late.message, log_tail=services[-1].log_tail()) from late


def _check(services: list[Service]) -> None:
    for service in services:
        service.check_running()
