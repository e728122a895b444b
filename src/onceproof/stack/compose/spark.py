"""A standalone Spark in containers, the driver next to the harness: executors are elsewhere, in an image of their own.

Its workers mount the run's folders at the same paths, as machines of a cluster mount a shared file system. They reach the driver
and the proxies at the address that this machine has in their network.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from docker.models.containers import Container

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import SparkStack
from onceproof.stack.compose import project
from onceproof.stack.compose.project import CLIENTS, Project, inner_address
from onceproof.stack.spark import READY_S, registered_workers
from onceproof.stack.spark_settings import ContainerCluster

_PORT, _UI_PORT = 7077, 8080
_WORKER = "org.apache.spark.deploy.worker.Worker"
_REACH_S = 5
_VERSION = "import sys; print(*sys.version_info[:2], sep='.')"


class ComposeSpark:
    """Implements `onceproof.stack.api.Spark`. Its containers are removed with the project."""

    def __init__(self, conf: ContainerCluster, project: Project, workers: Mapping[int, Container]) -> None:
        """``workers``: their pids on this machine, and their containers."""
        self.conf = conf
        self._project = project
        self._workers = workers
        self._cut_off: dict[int, list[str]] = {}
        """Worker that is cut off -> its names in the network."""

    @classmethod
    def start(cls, spec: SparkStack, project: Project, scratch: Path, timeline: Timeline) -> Self:
        """Return once all workers of the project have registered and reach this machine. Raises `EnvironmentProblem`."""
        master, workers, gateway = project.spark_master(), project.spark_workers(), project.gateway()
        address = inner_address(master)
        by_pid = {_pid(worker): worker for worker in workers}
        _check_reach(workers[0], gateway)
        wait_until(
            f"{spec.workers} Spark workers to register",
            lambda: registered_workers(address, _UI_PORT) == spec.workers,
            deadline_s=READY_S,
            abandon=project.check_health,
        )
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        _, there = workers[0].exec_run(["python3", "-c", _VERSION])
        if (other := there.decode().strip()) != here:
            timeline.emit(
                "warning",
                message=f"the image of Spark has Python {other}, and onceproof runs on {here}: Spark refuses tasks in Python whose "
                f"driver has another version than {other}",
            )
        arguments = scratch / "spark.args"
        arguments.touch(0o600)
        arguments.write_text(f"-Dspark.authenticate.secret={project.spark_secret()}\n", encoding="utf-8")
        return cls(ContainerCluster(f"spark://{address}:{_PORT}", arguments, spec.memory_mb, gateway), project, by_pid)

    def pids(self) -> list[int]:
        """Every process below the workers, as this machine numbers them."""
        found: list[int] = []
        for worker in self._workers:
            with suppress(psutil.NoSuchProcess):
                found += [process.pid for process in psutil.Process(worker).children(recursive=True)]
        return found

    def isolate(self, pid: int) -> str | None:
        """Disconnect the container of the executor with this process from its only network."""
        try:
            above = {parent.pid for parent in psutil.Process(pid).parents()}
        except psutil.NoSuchProcess:
            return None
        network = self._project.network(CLIENTS)
        worker = next((worker for worker in self._workers if worker in above), None)
        if worker is None:  # its parent has ended, and so will it
            return None
        container = self._workers[worker]
        self._cut_off[worker] = project.disconnect(container, network)
        return f"container {container.name} was disconnected from network {network.name}"

    def rejoin(self) -> None:
        for worker, names in list(self._cut_off.items()):
            project.connect(self._workers[worker], self._project.network(CLIENTS), names)
            del self._cut_off[worker]

    def check_used(self, pids: Iterable[int]) -> None:
        """Does nothing: a job may run its tasks itself. A fault of an executor then misses."""

    def check_health(self) -> None:
        """Raise `ServiceFailed` if the master's or a worker's container ended: no fault kills them."""
        self._project.check([self._project.spark_master(), *self._project.spark_workers()])


def _pid(worker: Container) -> int:
    """The pid on this machine of the worker in that container."""
    worker.reload()
    pid = int(worker.attrs["State"]["Pid"])
    with suppress(psutil.Error):
        if _WORKER in psutil.Process(pid).cmdline():
            return pid
    raise EnvironmentProblem(
        f"the Spark worker in container {worker.name} is not a process of this machine",
        hint="faults of executors need a daemon of this machine: unset DOCKER_HOST, or run the scenario without --stack",
    )


def _check_reach(worker: Container, gateway: str) -> None:
    """Raise `EnvironmentProblem` if a container cannot connect to this machine."""
    try:
        listener = socket.create_server((gateway, 0))
    except OSError as refused:
        raise EnvironmentProblem(
            f"{gateway}, at which containers reach this machine, is not an address of it: {refused.strerror}",
            hint="Spark in containers needs a daemon that runs as root on this machine",
        ) from None
    with listener:
        port = listener.getsockname()[1]
        probe = ["timeout", str(_REACH_S), "bash", "-c", f"exec 3<>/dev/tcp/{gateway}/{port}"]
        code, said = worker.exec_run(probe)
    if code != 0:
        raise EnvironmentProblem(
            f"container {worker.name} cannot connect to this machine at {gateway}: {said.decode().strip() or 'no answer'}",
            hint="a firewall of this machine may drop what comes from containers: allow it on their bridge",
        )
