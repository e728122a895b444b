"""Starts the job in a container of an image: with the image's libraries, in this machine's network, and with the run's folders.

The driver's processes are then children of the container daemon. The `Service` that ran ``docker run`` counts them as its own, so
that a fault stops, resumes and kills them as it does without a container.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from docker.errors import APIError, ImageNotFound, NotFound

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.paths import temporary
from onceproof.base.waiting import wait_until
from onceproof.pipeline.program import Program
from onceproof.stack.compose.daemon import client, docker_command
from onceproof.stack.compose.project import RUN
from onceproof.stack.processes import procfs
from onceproof.stack.processes.journal import RUN_MARK
from onceproof.stack.processes.owner import Service

_STARTED_S = 60.0
"""A container starts within a second; on a machine under load, within several."""
_OF_CLIENT = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


def check(image: str) -> None:
    """Raise `EnvironmentProblem` if no daemon answers, or if it does not have the image."""
    docker_command()
    try:
        client().images.get(image)
    except ImageNotFound:
        raise EnvironmentProblem(
            f"pipeline.image: there is no image {image} on this machine",
            hint=f"`docker pull {image}`, or build it; `docker images` lists those that are there",
        ) from None


@dataclass(frozen=True)
class JobImage:
    """The image of a run's job."""

    image: str
    run_id: str
    writable: Sequence[Path]
    """Folders that driver and harness share, besides the one for temporary files."""
    readable: Sequence[Path]

    def in_container(self, number: int, program: Program) -> Program:
        """What starts driver ``number`` in a container: ``docker run``, which ends when the driver does, with its exit code.

        Other users can read its words, so they name the variables, and its environment holds their values.
        """
        mounts = dict.fromkeys(self.readable, "ro") | dict.fromkeys((temporary(), *self.writable), "rw")
        words = [
            *(docker_command(), "run", "--rm", "--init", "--network", "host", "--name", self._name(number)),
            # Root's group: images made for any user, as apache/spark is, let it write what such a user needs.
            *("--user", f"{os.getuid()}:0", "--label", f"{RUN}={self.run_id}", "--env", f"{RUN_MARK}={self.run_id}"),
            *(
                word
                for path, mode in mounts.items()
                for word in ("--volume", f"{path.absolute()}:{path.absolute()}:{mode}")
            ),
            *(word for name in sorted(program.env) for word in ("--env", name)),
        ]
        of_client = {name: os.environ[name] for name in _OF_CLIENT if name in os.environ}
        return Program([*words, self.image, *program.command], {**of_client, **program.env})

    def adopt(self, number: int, service: Service) -> None:
        """Count the processes of driver ``number`` as those of the ``service`` that started its container; return when they are.

        Returns at once if it has ended. Raises `WaitTimeout`, and `EnvironmentProblem` if they are not on this machine.
        """

        def first() -> int | None:
            if not service.is_running():
                return -1
            with suppress(NotFound, APIError):
                state = client().containers.get(self._name(number)).attrs["State"]
                return int(state["Pid"]) or None
            return None

        pid = wait_until(f"the container of driver {number} to start", first, deadline_s=_STARTED_S, every_s=0.02)
        stat = procfs.stat(pid) if pid > 0 else None
        if stat is None:
            if pid > 0 and service.wait(1.0) is None:
                raise self._elsewhere(number)
            return
        mark = f"{RUN_MARK}={self.run_id}".encode()
        if mark not in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            raise self._elsewhere(number)
        service.adopt(stat)

    def _elsewhere(self, number: int) -> EnvironmentProblem:
        with suppress(NotFound, APIError):
            client().containers.get(self._name(number)).remove(force=True)
        return EnvironmentProblem(
            "the job's container does not run on this machine: no fault could stop or kill the driver",
            hint="use a daemon of this machine (DOCKER_HOST), or remove pipeline.image",
        )

    def _name(self, number: int) -> str:
        return f"onceproof-{self.run_id}-driver-{number}"
