"""An installed RabbitMQ as a private broker on loopback, separate from any that the machine runs. Nothing is fetched.

Its node, its Erlang port mapper (epmd) and its files are private to one run, so it needs no root, no `rabbitmq` user and no
service, and meets no other node. Seen with 3.10.8: after a connection is lost, its channels are closed independently and not
in their order, so a client's mark says nothing about its messages. But a passive declare counts only ready messages, so
the harness uses that count.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Self

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.amqp.broker import HOST, USER, EmbeddedAmqp, private_folder
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease

#: Erlang's virtual machine loads RabbitMQ's applications one after the other: in 5 to 15 s, depending on the machine's load.
_START_DEADLINE_S = 90.0
_READY_DEADLINE_S = 15.0
#: Debian's command on the PATH changes the user, and refuses users other than root and rabbitmq. It starts this program.
_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_WRAPPER = "rabbitmq-script-wrapper"
_HINT = (
    "install it (Debian, Ubuntu: apt-get install rabbitmq-server; macOS: brew install rabbitmq), or remove 'broker: rabbitmq': "
    "then Qpid Broker-J is fetched and used"
)


@dataclass(frozen=True)
class RabbitMq:
    """An installed RabbitMQ: its programs and its version."""

    server: Path
    epmd: Path
    erl: Path
    version: str


def find() -> RabbitMq:
    """Find the installed RabbitMQ. Raises `EnvironmentProblem` if it, or a part of Erlang, is missing."""
    server = _server()
    if server is None:
        raise EnvironmentProblem("RabbitMQ is not installed: there is no rabbitmq-server on the PATH", hint=_HINT)
    tools = {name: shutil.which(name) for name in ("epmd", "erl")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        raise EnvironmentProblem(
            f"RabbitMQ is at {server}, but Erlang's {' and '.join(missing)} is not on the PATH",
            hint="put the bin folder of its Erlang on the PATH",
        )
    found = re.search(r"rabbitmq_server-([^/]+)", str(server.resolve())) or re.search(
        r"/rabbitmq/([0-9.]+)/", str(server.resolve())
    )
    return RabbitMq(server, Path(str(tools["epmd"])), Path(str(tools["erl"])), found[1] if found else "unknown")


def _server() -> Path | None:
    on_path = shutil.which("rabbitmq-server")
    if on_path is not None and Path(on_path).resolve().name != _WRAPPER:
        return Path(on_path)
    return _DEBIAN if os.access(_DEBIAN, os.X_OK) else None


class EmbeddedRabbitMq(EmbeddedAmqp):
    """One node. Created by `start_node`, stopped by its owner."""

    name = "RabbitMQ"
    virtual_host = "%2F"
    durable = True

    @classmethod
    def start_node(cls, owner: Owner, log: Path, found: RabbitMq) -> Self:
        """Start it on a private folder, with its own port mapper, and wait until it accepts a client.

        Raises `ServiceFailed` with its last log lines.
        """
        folder, password = private_folder(owner, "rabbitmq")
        port, distribution, mapper = lease(owner, 3)
        _write_settings(folder, port, password)
        env = _environment(folder, found, port, distribution, mapper)
        # Started here and in the foreground, so that it is the harness's child: one that a node starts outlives the node.
        owner.start(
            "epmd",
            [found.epmd, "-port", str(mapper), "-address", HOST],
            log=log.with_name("epmd.log"),
            env=env,
            cwd=folder,
            stop_signal=signal.SIGKILL,
        )
        # SIGKILL: its files are removed with the folder.
        node = owner.start("amqp", [found.server], log=log, env=env, cwd=folder, stop_signal=signal.SIGKILL)
        versions: dict[str, Any] = {"rabbitmq": found.version, "pika": installed("pika")}
        return cls(node, port, password, versions)._when_ready(owner, "RabbitMQ", _START_DEADLINE_S)

    def await_ready(self, queue: str, ready: int) -> None:
        """Wait until the broker counts so many ready messages: those of a client that has ended are requeued a bit later."""
        counted = -1

        def is_reached() -> bool:
            nonlocal counted
            counted = self.ready(queue)
            return counted == ready

        wait_until(
            f"RabbitMQ to count {ready} ready messages in {queue}",
            is_reached,
            deadline_s=_READY_DEADLINE_S,
            every_s=0.005,
            abandon=self.check,
            explain=lambda: f"it counts {counted}",
        )


def _write_settings(folder: Path, port: int, password: str) -> None:
    lines = [
        f"listeners.tcp.1 = {HOST}:{port}",
        f"default_user = {USER}",
        f"default_pass = {password}",
        "heartbeat = 0",
        "log.console = true",
        "log.file = false",
        # It needs almost no disk, but by default it would block publishers below 50 MB of free space.
        "disk_free_limit.absolute = 1MB",
    ]
    settings = folder / "rabbitmq.conf"
    settings.touch(mode=0o600)
    settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "advanced.config").write_text("[].\n", encoding="utf-8")
    (folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    (folder / "rabbitmq-env.conf").write_text("", encoding="utf-8")


def _environment(folder: Path, found: RabbitMq, port: int, distribution: int, mapper: int) -> dict[str, str]:
    """The node's complete environment: the machine's own configuration of RabbitMQ must not affect it."""
    return {
        "PATH": os.pathsep.join([str(found.erl.parent), os.environ.get("PATH", os.defpath)]),
        "LANG": "C.UTF-8",
        "HOME": str(folder),  # Erlang stores its cookie there
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": "onceproof@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
