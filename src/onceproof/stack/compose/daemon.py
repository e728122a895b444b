"""The container daemon and its compose command: whether they can be used, and what is wrong if not."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import docker
from docker.errors import DockerException

from onceproof.base.errors import EnvironmentProblem

#: For one request to the daemon. Starting a container on a busy machine takes seconds.
_TIMEOUT_S = 60


def address() -> str:
    """The daemon that `client` asks: what ``DOCKER_HOST`` names, or the local one."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def client() -> docker.DockerClient:
    """A client of the daemon at `address`. Raises `EnvironmentProblem`."""
    try:
        made = docker.from_env(timeout=_TIMEOUT_S)
        made.ping()
    except (DockerException, OSError) as refused:
        said = str(refused)
        if "Permission" in said:
            raise EnvironmentProblem(
                "this user may not use the container daemon",
                hint="join its group (`sudo usermod -aG docker $USER`, then log in again), or run a rootless daemon",
            ) from None
        raise EnvironmentProblem(
            f"no container daemon answers: {said}",
            hint="start it (`sudo systemctl start docker`), or name its socket: export DOCKER_HOST=unix:///PATH",
        ) from None
    return made


@cache
def docker_command() -> str:
    """The path of ``docker``. Raises `EnvironmentProblem` if it is not installed."""
    found = shutil.which("docker")
    if found is None:
        raise EnvironmentProblem("there is no docker command", hint="install it: apt-get install docker.io")
    return found


@cache
def compose_command() -> tuple[str, ...]:
    """``docker compose``, or the older ``docker-compose``. Raises `EnvironmentProblem` if neither is installed."""
    found = shutil.which("docker")
    if found is not None:
        asked = subprocess.run([found, "compose", "version"], capture_output=True, check=False, timeout=_TIMEOUT_S)
        if asked.returncode == 0:
            return found, "compose"
    older = shutil.which("docker-compose")
    if older is not None:
        return (older,)
    raise EnvironmentProblem(
        "there is no compose command",
        hint="install it: apt-get install docker-compose, or the plugin docker-compose-plugin of Docker's own packages",
    )
