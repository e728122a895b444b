"""Starts the job in a container of an image: with the image's libraries, in this machine's network, and with the run's folders.

The driver's processes are then children of the container daemon. The `Service` that ran ``docker run`` counts them as its own, so
that a fault stops, resumes and kills them as it does without a container.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import requests
from docker.errors import DockerException, ImageNotFound

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.paths import temporary
from onceproof.base.waiting import wait_until
from onceproof.pipeline.program import Program
from onceproof.stack.compose.daemon import address, client, docker_command
from onceproof.stack.compose.project import RUN, remove_drivers
from onceproof.stack.processes import procfs
from onceproof.stack.processes.journal import RUN_MARK
from onceproof.stack.processes.owner import Service

_STARTED_S = 60.0
"""A container starts within a second; on a machine under load, within several."""
_NOT_STARTED = 125
"""The exit code of ``docker run`` if the daemon refused the container; other codes are the program's."""
_OF_CLIENT = ("PATH", "HOME", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


def check(image: str) -> None:
    """Raise `EnvironmentProblem` if no daemon answers, or if it does not have the image."""
    docker_command()
    try:
        client().images.get(image)
    except DockerException as refused:  # also a text that cannot be the name of an image
        why = "" if isinstance(refused, ImageNotFound) else f": {refused}"
        raise EnvironmentProblem(
            f"pipeline.image: the container daemon of this machine does not have {image!r}{why}",
            hint=f"`docker pull {image}`, or build it; `docker images` lists those that are there",
        ) from None


@dataclass(frozen=True)
class JobImage:
    """The image of a run's job."""

    image: str
    run_id: str
    writable: Sequence[Path]
    """Folders that the driver and onceproof share, besides the one for temporary files."""
    readable: Sequence[Path]
    """Folders of code and jars. One that does not exist is left out."""

    def in_container(self, number: int, program: Program) -> Program:
        """What starts driver ``number`` in a container: ``docker run``, which ends when the driver does, with its exit code.

        Other users can read its words, so they name the variables, and its environment holds their values.
        """
        mounts = dict.fromkeys(filter(Path.is_dir, self.readable), ",readonly") | dict.fromkeys(
            (temporary(), *self.writable), ""
        )
        words = [
            *(docker_command(), "run", "--rm", "--init", "--pull", "never", "--network", "host"),
            # Faults must be able to look into its processes: the same user and group. Root's group besides: images made for any
            # user, as apache/spark is, let it write what such a user needs.
            *("--user", f"{os.getuid()}:{os.getgid()}", "--group-add", "0", "--name", self._name(number)),
            *("--label", f"{RUN}={self.run_id}", "--env", f"{RUN_MARK}={self.run_id}"),
            *(word for path, mode in mounts.items() for word in ("--mount", _bind(path.absolute(), mode))),
            *(word for name in sorted(program.env) for word in ("--env", name)),
        ]
        of_client = {name: os.environ[name] for name in _OF_CLIENT if name in os.environ}
        # The daemon that `check` asked, whatever context the user has chosen for the command.
        of_client["DOCKER_HOST"] = address()
        return Program([*words, self.image, *program.command], {**of_client, **program.env})

    def adopt(self, number: int, service: Service, stopping: Callable[[], bool]) -> None:
        """Count the processes of driver ``number`` as those of the ``service`` that started its container; return when they are.

        Returns also if it has ended, or once ``stopping()`` is true. Raises `EnvironmentProblem` if the container could not be
        started, or if its processes are not on this machine.
        """
        mark, daemon = f"{RUN_MARK}={self.run_id}".encode(), client()
        seen = ["the daemon has not started it"]

        def adopted() -> bool:
            if not service.is_running() or stopping():
                return True
            with suppress(DockerException, OSError, requests.RequestException):
                pid = int(daemon.containers.get(self._name(number)).attrs["State"]["Pid"])
                seen[0] = (
                    f"process {pid}, which the daemon names, is not one of this machine that this user may look into"
                )
                # Until the program of the image is executed, the process has the environment of the one that starts it.
                stat = procfs.stat(pid) if pid else None
                if stat is not None and mark in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
                    service.adopt(stat)
                    return True
            return False

        try:
            wait_until(f"the container of driver {number} to start", adopted, deadline_s=_STARTED_S, every_s=0.02)
        except WaitTimeout:
            self.remove()
            raise EnvironmentProblem(
                f"the job's container cannot be struck by faults: {seen[0]}",
                hint="use a daemon that runs as root on this machine (DOCKER_HOST), or remove pipeline.image",
            ) from None
        if service.returncode == _NOT_STARTED:
            raise EnvironmentProblem(f"docker could not start the job's container: {service.log_tail(5).strip()}")

    def remove(self) -> None:
        """Remove what is left of this run's drivers. Their processes have ended, unless one was just being started."""
        with suppress(EnvironmentProblem):  # no daemon, no container
            remove_drivers(client(), self.run_id)

    def _name(self, number: int) -> str:
        return f"onceproof-{self.run_id}-driver-{number}"


def _bind(path: Path, mode: str) -> str:
    """A folder at the same path, as an option of ``docker run``: comma-separated values, quoted."""
    quoted = str(path).replace('"', '""')
    return f'type=bind,"source={quoted}","target={quoted}"{mode}'
