"""A compose project: the containers of one `onceproof up`, or of one run.

`onceproof up` starts a project of a fixed name on fixed ports. A run uses it, or starts a project of its own, which carries the
run's id as a label, so that `onceproof cleanup` finds it if the run was killed.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.models.networks import Network

from onceproof.base.errors import EnvironmentProblem, OnceproofError, ServiceFailed
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import SparkStack
from onceproof.stack.compose.daemon import address, client, compose_command
from onceproof.stack.compose.images import BUILD, local_images
from onceproof.stack.compose.profile import BY_HAND, PORTS

CLIENTS, CLUSTER = "clients", "cluster"
"""Networks of compose.yaml: the one to which the ports are published, and the one between the nodes of Kafka."""

_PROJECT = "com.docker.compose.project"
RUN = "onceproof.run"
"""Label of a container that a run started."""
_RUN_VARIABLE = "ONCEPROOF_RUN"
_NUMBER = "com.docker.compose.container-number"
_NODE = "onceproof.kafka.node"
_NETWORK = "com.docker.compose.network"
_PASSWORD = "ONCEPROOF_POSTGRES_PASSWORD"  # noqa: S105  # the name of the variable
_SECRET_IN_CONTAINER = "_SPARK_AUTH_SECRET"  # noqa: S105
_MASTER, _WORKER = "spark-master", "spark-worker"
_CONTROLLER = 9
_HEALTHY_S = 120.0
_COMMAND_S = 600
"""Pulling images may take minutes."""
_GONE_S = 30.0
_LOG_LINES = 2000
"""Read while a run ends, which must not take long."""
_DATA = "/var/lib/kafka/data"
_QUORUM = f"{_DATA}/__cluster_metadata-0/quorum-state"


@dataclass(frozen=True)
class ClusterOfRun:
    """The Spark of a run: its size, and the folders that its workers share with the driver."""

    spec: SparkStack
    run_dir: Path
    scratch: Path

    def variables(self) -> dict[str, str]:
        """The variables of compose.yaml, with a new secret."""
        secret = secrets.token_urlsafe(24)
        hide(secret)
        return {
            "ONCEPROOF_SPARK_SECRET": secret,
            "ONCEPROOF_SPARK_CORES": str(self.spec.cores),
            "ONCEPROOF_SPARK_MEMORY_MB": str(self.spec.memory_mb),
            "ONCEPROOF_RUN_FOLDER": str(self.run_dir.absolute()),
            "ONCEPROOF_SCRATCH_FOLDER": str(self.scratch),
            "ONCEPROOF_USER": f"{os.getuid()}:{os.getgid()}",
        }

    def scale(self) -> list[str]:
        """Options of ``compose up``."""
        return ["--scale", f"{_WORKER}={self.spec.workers}"]


@dataclass(frozen=True)
class Project:
    """A project by name, whether or not its containers exist."""

    name: str = field(default_factory=lambda: BY_HAND)

    # -- start and end ----------------------------------------------------------------------------------------------

    def up(
        self,
        brokers: int,
        *,
        run_id: str = "",
        ports: Mapping[str, int] | None = None,
        spark: ClusterOfRun | None = None,
        registry: bool = False,
    ) -> None:
        """Start Kafka with 1 or 3 brokers and Postgres, and what else is asked for. Return when all are healthy; if one is
        not, remove all again.

        ``ports``: variable of `PORTS` -> port. Raises `EnvironmentProblem` (an image cannot be had, a port is taken) and
        `ServiceFailed` with the last lines of a container that ended.
        """
        if self.containers():
            if self.brokers() == brokers and (self.registry_url() is not None or not registry):
                self._wait_until_healthy()
                return
            without = " and no registry" if registry else ""
            raise EnvironmentProblem(
                f"project {self.name} is up with {self.brokers()} broker(s){without}", hint="run `onceproof down` first"
            )
        password = secrets.token_urlsafe(18)
        hide(password)
        more = {name: str(port) for name, port in (ports or {}).items()}
        profiles, scale = ["one" if brokers == 1 else "three"], []
        if registry:
            profiles.append("registry")
        if spark is not None:
            profiles.append("spark")
            more, scale = more | spark.variables(), spark.scale()
        try:
            self._compose(
                "up",
                "--detach",
                *scale,
                profiles=",".join(profiles),
                variables={**local_images(), **os.environ, **more, _RUN_VARIABLE: run_id, _PASSWORD: password},
            )
            self._wait_until_healthy()
        except BaseException:
            with suppress(OnceproofError):  # what made it fail matters more
                self.down()
            raise

    def down(self) -> None:
        """Remove its containers, networks and volumes. Idempotent. Raises `EnvironmentProblem`."""
        client()  # says what is wrong if no daemon answers
        # compose.yaml is read as a whole: the password's variable must exist.
        self._compose(
            "down",
            "--volumes",
            "--timeout",
            "0",
            profiles="one,three,registry,spark",
            variables={**os.environ, _PASSWORD: "-"},
        )

    def save_logs(self, folder: Path) -> None:
        """Write the last lines of each container's output to ``SERVICE-NUMBER.log`` in this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for one in self.containers():
            path = folder / f"{_service(one)}-{one.labels.get(_NUMBER, '1')}.log"
            with path.open("wb") as log:
                log.write(one.logs(tail=_LOG_LINES))

    def _compose(self, *words: str, profiles: str, variables: Mapping[str, str]) -> None:
        env = {**variables, "COMPOSE_PROFILES": profiles}
        argv = [*compose_command(), "--project-name", self.name, "--file", str(compose_file()), *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
        if done.returncode != 0:
            said = "\n".join(done.stderr.strip().splitlines()[-6:])
            raise EnvironmentProblem(f"`compose {words[0]}` failed: {said}", hint=_fix(said))

    def _wait_until_healthy(self) -> None:
        def healthy() -> bool:
            self.check_health()
            return all(one.attrs["State"]["Health"]["Status"] == "healthy" for one in self.containers())

        wait_until(
            f"the containers of project {self.name} to be healthy",
            healthy,
            deadline_s=_HEALTHY_S,
            every_s=0.3,
            explain=lambda: "\n".join(map(_health, self.containers())),
        )

    # -- what runs --------------------------------------------------------------------------------------------------

    def containers(self) -> list[Container]:
        """Its containers, also those that have ended."""
        return list(client().containers.list(all=True, filters={"label": f"{_PROJECT}={self.name}"}))

    def node(self, node: int) -> Container:
        """The container of a Kafka node, by node id."""
        return next(one for one in self.containers() if one.labels.get(_NODE) == str(node))

    def nodes(self) -> dict[int, Container]:
        """Kafka node id -> its container, also one that has ended."""
        return {int(one.labels[_NODE]): one for one in self.containers() if _NODE in one.labels}

    def network(self, name: str) -> Network:
        """One of the networks of compose.yaml, by its name there."""
        of_project = [f"{_PROJECT}={self.name}", f"{_NETWORK}={name}"]
        (found,) = client().networks.list(filters={"label": of_project})
        return found

    def postgres(self) -> Container:
        return next(one for one in self.containers() if _service(one) == "postgres")

    def registry_url(self) -> str | None:
        """Where the schema registry speaks Confluent's REST interface; None if there is none."""
        found = next((one for one in self.containers() if _service(one) == "registry"), None)
        return None if found is None else f"http://127.0.0.1:{_published(found, 8080)}/apis/ccompat/v7"

    def spark_master(self) -> Container:
        return next(one for one in self.containers() if _service(one) == _MASTER)

    def spark_workers(self) -> list[Container]:
        return [one for one in self.containers() if _service(one) == _WORKER]

    def spark_secret(self) -> str:
        """Kept by the daemon alone, as a variable of the master's container."""
        return _secret(self.spark_master(), _SECRET_IN_CONTAINER)

    def gateway(self) -> str:
        """The address of this machine in the network of the clients: what containers connect to."""
        return str(self.network(CLIENTS).attrs["IPAM"]["Config"][0]["Gateway"])

    def inner_addresses(self) -> dict[tuple[str, int], str]:
        """Address and port in the network of the clients -> the service, for those to which only other containers connect."""
        ports = {**dict.fromkeys((one.id for one in self.nodes().values()), 9092), self.postgres().id: 5432}
        return {
            (inner_address(one), ports[one.id]): f"{_service(one)} in its container"
            for one in self.containers()
            if one.id in ports
        }

    def brokers(self) -> int:
        nodes = [one.labels[_NODE] for one in self.containers() if _NODE in one.labels]
        return len([node for node in nodes if node != str(_CONTROLLER)])

    @property
    def controller(self) -> int:
        return _CONTROLLER if self.brokers() > 1 else 1

    def addresses(self) -> list[str]:
        """``127.0.0.1:port`` of each broker."""
        nodes = (one for one in self.containers() if _NODE in one.labels and one.labels[_NODE] != str(_CONTROLLER))
        return sorted(f"127.0.0.1:{_published(one, 9092)}" for one in nodes)

    def postgres_uri(self) -> str:
        """libpq URI of the superuser, without the password."""
        return f"postgresql://onceproof@127.0.0.1:{_published(self.postgres(), 5432)}/postgres"

    def postgres_password(self) -> str:
        """Kept by the daemon alone, as a variable of the container."""
        return _secret(self.postgres(), "POSTGRES_PASSWORD")

    def versions(self) -> dict[str, str]:
        """Service -> image and its id."""
        return {_service(one): f"{one.attrs['Config']['Image']} {one.image.short_id}" for one in self.containers()}

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a container ended."""
        self.check(self.containers())

    @staticmethod
    def check(containers: Sequence[Container]) -> None:
        """Raise `ServiceFailed` if one of these containers had ended when they were listed."""
        for one in containers:
            if one.status in ("exited", "dead"):
                raise ServiceFailed(
                    f"container {one.name} ended with code {one.attrs['State']['ExitCode']}",
                    log_tail=one.logs(tail=20).decode(errors="replace"),
                )


def inner_address(container: Container) -> str:
    """Its IP address in the network of the clients; empty while it has none."""
    networks: dict[str, Any] = container.attrs["NetworkSettings"]["Networks"]
    return next((str(one["IPAddress"]) for name, one in networks.items() if name.endswith(f"_{CLIENTS}")), "")


def kill(container: Container) -> None:
    """SIGKILL of the service's first process, which ends all processes of the container; return when they are gone."""
    container.kill()
    _wait_for(container, "exited")


def shut_down(container: Container) -> None:
    """SIGINT: for Postgres, a fast shutdown."""
    container.kill(signal="SIGINT")
    _wait_for(container, "exited")


def _health(container: Container) -> str:
    """How it is, and the last lines of its output unless it is healthy."""
    health = container.attrs["State"]["Health"]["Status"]
    said = "" if health == "healthy" else container.logs(tail=8).decode(errors="replace").rstrip()
    return f"{_service(container)}: {health}" + (f"\n{said}" if said else "")


def disconnect(container: Container, network: Network) -> list[str]:
    """Take it off the network, while it runs on. Returns the names that it has there, for `connect`."""
    container.reload()
    names: list[str] = container.attrs["NetworkSettings"]["Networks"][network.name]["Aliases"]
    network.disconnect(container)
    return names


def connect(container: Container, network: Network, names: Sequence[str]) -> None:
    """Undo `disconnect`. Idempotent."""
    container.reload()
    if network.name not in container.attrs["NetworkSettings"]["Networks"]:
        network.connect(container, aliases=list(names))


def status(container: Container) -> str:
    """``running``, ``paused`` or ``exited``, as of now."""
    container.reload()
    return str(container.status)


def quorum_epoch(container: Container) -> int:
    """The epoch in KRaft's ``quorum-state`` file (KIP-595), read from a container that runs or has ended."""
    stream, _ = container.get_archive(_QUORUM)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        member = archive.extractfile(archive.getmembers()[0])
        assert member is not None, "a file"
        return int(json.loads(member.read())["leaderEpoch"])


def compose_file() -> Path:
    """Path of ``compose.yaml``, the top-level folder ``compose`` of the project."""
    return Path(str(files("onceproof") / "compose" / "compose.yaml"))


def of_runs() -> list[Project]:
    """The projects that runs started for themselves and that still have containers."""
    labels = [one.labels for one in client().containers.list(all=True, filters={"label": RUN})]
    return [
        Project(name) for name in sorted({of[_PROJECT] for of in labels if of.get(_PROJECT) == f"onceproof-{of[RUN]}"})
    ]


def clean_up(run_id: str, daemon: str | None, *, dry_run: bool) -> list[str]:
    """Remove the project of a killed run from the ``daemon`` at this address. Returns sentences.

    Raises `EnvironmentProblem` if the daemon does not answer: its containers may still exist, and so the journal must too.
    If ``daemon`` is None, it is not known whether there are containers, and no daemon means none.
    """
    if daemon not in (address(), None):
        raise EnvironmentProblem(f"they belong to the daemon {daemon}", hint=f"export DOCKER_HOST={daemon}")
    try:
        daemon_client = client()
    except EnvironmentProblem:
        if daemon is None:
            return []
        raise
    verb = "would remove" if dry_run else "removed"
    done = [f"{verb} container {name}" for name in remove_drivers(daemon_client, run_id, dry_run=dry_run)]
    own = Project(f"onceproof-{run_id}")
    if own.containers():
        if not dry_run:
            own.down()
        done.append(f"{verb} the containers of project {own.name}")
    return done


def remove_drivers(of: docker.DockerClient, run_id: str, *, dry_run: bool = False) -> list[str]:
    """Remove the containers in which a run started its driver (`onceproof.pipeline.image`). Returns their names."""
    project = f"onceproof-{run_id}"
    listed = of.containers.list(all=True, filters={"label": f"{RUN}={run_id}"}, ignore_removed=True)
    # Their image may have the label of the project that built it.
    drivers = [one for one in listed if one.labels.get(_PROJECT) != project]
    for one in () if dry_run else drivers:
        with suppress(APIError):  # the daemon is removing it itself, because its driver has ended
            one.remove(force=True)
    return [str(one.name) for one in drivers]


def _wait_for(container: Container, wanted: str) -> None:
    wait_until(
        f"{container.name} to be {wanted}", lambda: status(container) == wanted, deadline_s=_GONE_S, every_s=0.02
    )


def _service(container: Container) -> str:
    return str(container.labels.get("com.docker.compose.service", container.name))


def _secret(container: Container, variable: str) -> str:
    """The value of a variable of the container, which nothing shows or stores from now on."""
    variables = dict(entry.split("=", 1) for entry in container.attrs["Config"]["Env"])
    hide(variables[variable])
    return str(variables[variable])


def _published(container: Container, port: int) -> int:
    bindings: dict[str, Any] = container.attrs["HostConfig"]["PortBindings"]
    return int(bindings[f"{port}/tcp"][0]["HostPort"])


def _fix(said: str) -> str:
    if "port is already allocated" in said or "address already in use" in said:
        return f"another program has that port: end it, or choose others with {', '.join(PORTS)}"
    if "pull" in said.lower() or "not found" in said or "No such image" in said or "lookup" in said:
        return f"without a registry build the images here: {BUILD}"
    return "`onceproof doctor` shows what is missing"
