"""One Kafka process and its folder: format, start, restart."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceproof.base.errors import ServiceFailed
from onceproof.stack.fetch.java import FOREIGN_OPTIONS, Java
from onceproof.stack.kafka.settings import LOGGING, Node, hosts, jvm_argv, server_properties
from onceproof.stack.processes.owner import Owner, Service

#: It takes half a second with a class archive, a second without, several seconds on a loaded machine.
_FORMAT_DEADLINE_S = 60.0


@dataclass(frozen=True)
class KafkaProgram:
    """Java, jars and class archive, with which any Kafka process is started."""

    java: Java
    jars: tuple[Path, ...]
    archive: Path | None = None
    """Class archive that the JVM maps into memory (AppCDS): halves the CPU time of a start."""


class KafkaNode:
    """A node's folder and, while it runs, its process. Restarts append to the same log."""

    def __init__(
        self, node: Node, *, brokers: int, folder: Path, log: Path, owner: Owner, program: KafkaProgram
    ) -> None:
        self.node = node
        self.log = log
        self._owner = owner
        self._program = program
        self._folder = folder
        self._service: Service | None = None
        folder.mkdir(parents=True)
        self.properties = folder / "server.properties"
        self.properties.write_text(server_properties(node, brokers=brokers, data=self.data), encoding="utf-8")
        self._logging = folder / "log4j2.properties"
        self._logging.write_text(LOGGING, encoding="utf-8")
        self._hosts = folder / "hosts"
        self._hosts.write_text(hosts(node), encoding="utf-8")

    @property
    def name(self) -> str:
        return f"kafka-{self.node.id}" if self.node.is_broker else "kafka-controller"

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def service(self) -> Service:
        if self._service is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._service

    def format(self) -> None:
        """Format its folder for a new cluster (KIP-631). Raises `ServiceFailed`."""
        main = ("kafka.tools.StorageTool", "format", "--cluster-id", _random_id(), "--config", self.properties)
        done = self._run((), *main, name="kafka-format", log=self._folder / "format.log")
        if done.wait(_FORMAT_DEADLINE_S) != 0:
            done.kill()
            raise ServiceFailed(f"could not format the folder of {self.name}", log_tail=done.log_tail())

    def format_like(self, other: KafkaNode) -> None:
        """Format its folder for the cluster of ``other``: a copy of that folder with a new identity saves a JVM start."""
        shutil.copytree(other.data, self.data)
        meta = self.data / "meta.properties"
        own = {"node.id": str(self.node.id), "directory.id": _random_id()}
        lines = [line for line in meta.read_text(encoding="utf-8").splitlines() if line.split("=")[0] not in own]
        lines += [f"{name}={value}" for name, value in own.items()]
        meta.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self, *jvm_options: str) -> None:
        """Start the process on its folder. It is not ready yet when this returns."""
        self._service = self._run(jvm_options, "kafka.Kafka", self.properties, name=self.name, log=self.log)

    def is_running(self) -> bool:
        return self._service is not None and self._service.is_running()

    def _run(self, jvm_options: Sequence[str], *main: str | Path, name: str, log: Path) -> Service:
        program = self._program
        files = [f"-Dlog4j2.configurationFile={self._logging}", f"-Djdk.net.hosts.file={self._hosts}"]
        options = [*jvm_options, *files]
        if program.archive is not None:
            # The JVM ignores an archive that does not fit this Java or these jars.
            options.append(f"-XX:SharedArchiveFile={program.archive}")
        argv = jvm_argv(program.java.path, program.jars, options, main)
        env = {key: value for key, value in os.environ.items() if key not in FOREIGN_OPTIONS}
        # SIGKILL: the folder is removed with the run, so a clean stop would save nothing.
        return self._owner.start(name, argv, log=log, env=env, cwd=self._folder, stop_signal=signal.SIGKILL)


def _random_id() -> str:
    """A Kafka Uuid: 16 random bytes in URL-safe base64, without a leading dash, which tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
