"""The server.properties and the JVM's command line of a Kafka node of the embedded stack, as pure functions.

The layout is that of production: the controller separate from the brokers (with three brokers), replication 3, min ISR 2.
The other settings keep it small (buffers, threads, internal partitions) and make failovers quick (time-outs).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

HOST = "127.0.0.1"

#: The controller of a cluster advertises a name that each broker's JVM resolves to another loopback address: that of the
#: broker's own proxy. A plain address would not do: since KIP-853 brokers learn it from the controller's answers and, once
#: their link was cut, fetch the metadata from there, bypassing the proxy in ``controller.quorum.voters``.
CONTROLLER_NAME = "controller.onceproof.internal"


class ListenerName(StrEnum):
    """The purpose of a node's port."""

    CLIENT = "CLIENT"
    """For the pipeline; the broker advertises the proxy in front of it."""
    INTERNAL = "INTERNAL"
    """Between brokers: replication, transaction markers. With three brokers, they advertise the proxies in front of it."""
    HARNESS = "HARNESS"
    """For the harness, which feeds and reads through it; no fault cuts it."""
    CONTROLLER = "CONTROLLER"
    """For the metadata quorum."""


@dataclass(frozen=True)
class Node:
    """One Kafka process: the ports that it listens on, and those that it advertises."""

    id: int
    roles: tuple[str, ...]
    """``broker``, ``controller`` or both."""
    ports: Mapping[ListenerName, int]
    voter: str
    """``id@host:port`` of the controller."""
    advertised: Mapping[ListenerName, int] = field(default_factory=dict)
    """Ports that are advertised instead of the real ones."""
    client_host: str = HOST
    """The address that is advertised to clients."""
    controller_address: str = HOST
    """Address of `CONTROLLER_NAME` for this node: for a broker of a cluster, that of its own proxy."""

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles


#: For every node. Tested together as a preset, not one by one: after SIGKILL of a leader the next one is elected in 4 to
#: 5 s; Kafka's defaults need 10 to 17 s. Each time-out is longer than what it supervises: a heartbeat (300 ms) < a broker's
#: session (4 s); a fetch (100 ms) < the lag after which a replica leaves the ISR (1.5 s). With a session of 2 s, a
#: broker that paused on a busy machine could lose its leadership during a fault that needs it to stay the leader.
FAST_FAILOVER = {
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": 4000,
    "replica.fetch.wait.max.ms": 100,
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 1500,
    "replica.socket.timeout.ms": 1500,
    "request.timeout.ms": 2000,
    "controller.socket.timeout.ms": 2000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1500,
    "controller.quorum.request.timeout.ms": 1500,
    "socket.connection.setup.timeout.ms": 1000,
    "socket.connection.setup.timeout.max.ms": 2000,
    "offsets.commit.timeout.ms": 3000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}

#: The defaults are for a dedicated server: the cleaner's buffer alone takes 128 MB of heap.
_SMALL = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 1,
    "log.cleaner.dedupe.buffer.size": 4194304,
    "log.cleaner.io.buffer.size": 65536,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
}

#: Share groups (KIP-932): locks may be short, so that they expire in a test, or long, so that a consumer can be held. A member
#: gets its partitions with the answer to a heartbeat, by default after five seconds.
_SHARE = {
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.max.record.lock.duration.ms": 3600000,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
}

_BEHAVIOUR = {
    "auto.create.topics.enable": "false",
    # Faults kill brokers with SIGKILL; a controlled shutdown would only affect the harness's own SIGTERM.
    "controlled.shutdown.enable": "false",
    "unclean.leader.election.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    # Allows a schedule to have a member expire soon (`onceproof.chaos.consumers.slow`).
    "group.min.session.timeout.ms": 1000,
    "offsets.retention.minutes": 525600,
    # Retention goes by event times, which may be years ago: nothing may expire unless a scenario says so.
    "log.retention.ms": -1,
    "transaction.max.timeout.ms": 60000,
}

_JVM = (
    "-Xms64m",
    "-Xmx256m",
    "-Xss512k",
    # Serial GC and C1 only: a broker of a test run lives for a minute, and four processes share two cores.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    # Otherwise a loopback address appears as IPv4 mapped into IPv6, and differently in each tool.
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disable.jmx=true",
)

LOGGING = """\
status = error
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p [%t] %c{1}: %m%n
"""


def server_properties(node: Node, *, brokers: int, data: Path) -> str:
    """The text of ``server.properties`` for one node of a cluster with this number of brokers."""
    replication = min(3, brokers)
    settings: dict[str, object] = {
        "process.roles": ",".join(node.roles),
        "node.id": node.id,
        "log.dirs": data,
        "controller.quorum.voters": node.voter,
        "controller.listener.names": ListenerName.CONTROLLER,
        "listeners": _addresses(node.ports),
        "listener.security.protocol.map": ",".join(f"{listener}:PLAINTEXT" for listener in ListenerName),
        "default.replication.factor": replication,
        "min.insync.replicas": min_insync(brokers),
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min_insync(brokers),
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": min_insync(brokers),
        **FAST_FAILOVER,
        **_SMALL,
        **_SHARE,
        **_BEHAVIOUR,
    }
    if node.is_broker:
        advertised = {**node.ports, **node.advertised}
        advertised.pop(ListenerName.CONTROLLER, None)
        settings["advertised.listeners"] = _addresses(advertised, node.client_host)
        settings["inter.broker.listener.name"] = ListenerName.INTERNAL
    else:
        settings["advertised.listeners"] = (
            f"{ListenerName.CONTROLLER}://{CONTROLLER_NAME}:{node.ports[ListenerName.CONTROLLER]}"
        )
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def min_insync(brokers: int) -> int:
    """2 of 3: one broker may be unavailable, and every acknowledged record is on more than one broker."""
    return min(2, brokers)


def jvm_argv(java: Path, jars: Sequence[Path], options: Sequence[str], main: Sequence[str | Path]) -> list[str]:
    """The command line of a Kafka process: the usual JVM options and ``options``, ``main`` class and its arguments."""
    class_path = ":".join(map(str, jars))
    return [str(java), *_JVM, *options, "-cp", class_path, *map(str, main)]


def hosts(node: Node) -> str:
    """All names that the node's JVM can resolve, in the format of ``/etc/hosts`` (system property jdk.net.hosts.file)."""
    own = f"localhost {socket.gethostname()}"
    return f"{HOST} {own}\n{node.controller_address} {CONTROLLER_NAME}\n"


def _addresses(ports: Mapping[ListenerName, int], client_host: str = HOST) -> str:
    hosts = {ListenerName.CLIENT: client_host}
    return ",".join(f"{listener}://{hosts.get(listener, HOST)}:{port}" for listener, port in ports.items())
