"""Kafka on loopback: one node, or one controller and three brokers, with proxies on the links that faults cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.api import KafkaSecurity, Lost, Proxy
from onceproof.stack.kafka import transactions
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.kafka.node import KafkaNode, KafkaProgram
from onceproof.stack.kafka.settings import CONTROLLER_NAME, HOST, ListenerName, Node
from onceproof.stack.kafka.topics import ASK_TIMEOUT_S, REJOIN_DEADLINE_S, START_DEADLINE_S, Topics, known_brokers
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.dropping import PACKETS_DROPPED, drop_packets


class ProxyMaker(Protocol):
    def __call__(self, name: str, upstream_port: int, *, listen: str | None = None) -> Proxy:
        """Create a proxy in front of that port; ``listen`` is ``host:port``, by default a free port of the address for clients."""


CONTROLLER_ID = 9

_OF_KAFKA = {
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
    "__remote_log_metadata",
}
"""All topics that Kafka 4.3 makes for itself. A job's own topic may begin with ``__`` too: ``__debezium-heartbeat.x``."""


class EmbeddedKafka(Topics):
    """Implements `onceproof.stack.api.Kafka`. Created by `start`."""

    def __init__(self, nodes: Mapping[int, KafkaNode], proxies: Mapping[str, Proxy]) -> None:
        self.nodes = nodes
        self.proxies = proxies
        """By name: ``client-1``, ``replication-1``, ``controller-1``, ..."""
        self.brokers = tuple(id for id, node in nodes.items() if node.node.is_broker)
        self.client_bootstrap = ",".join(proxies[f"client-{broker}"].listen for broker in self.brokers)
        self.client_security = KafkaSecurity()
        self.harness_bootstrap = self.harness_address(*self.brokers)
        self._killed: set[int] = set()
        self.disturbed: list[str] = []
        """What faults did to nodes, as phrases."""

    @classmethod
    def start(
        cls, brokers: int, *, owner: Owner, log_folder: Path, program: KafkaProgram, make_proxy: ProxyMaker
    ) -> Self:
        """Start 1 node, or a controller and 3 brokers; return when every broker has joined.

        Logs go to ``log_folder``, data below the owner's scratch folder. Raises `ServiceFailed` with the last log lines
        of a node that died, `WaitTimeout` if they do not start in time.
        """
        proxies: dict[str, Proxy] = {}

        def proxy(name: str, upstream_port: int, *, listen: str | None = None) -> Proxy:
            proxies[name] = make_proxy(name, upstream_port, listen=listen)
            return proxies[name]

        plan = _one_node(owner, proxy) if brokers == 1 else _cluster(brokers, owner, proxy)
        nodes = {
            node.id: KafkaNode(
                node,
                brokers=brokers,
                folder=owner.scratch / "kafka" / str(node.id),
                log=log_folder / f"kafka-{node.id}.log",
                owner=owner,
                program=program,
            )
            for node in plan
        }
        first, *others = nodes.values()
        first.format()
        for other in others:
            other.format_like(first)
        for node in nodes.values():
            node.start()
        kafka = cls(nodes, proxies)
        kafka._wait_for_all()
        return kafka

    def warm_up_transactions(self) -> threading.Thread:
        """Create ``__transaction_state`` in the background, which costs the first transactional producer 1 to 1.6 s.

        Nothing needs to wait for it: a producer that starts before it is done only waits for the rest.
        """

        def warm_up() -> None:
            with suppress(KafkaException):  # the next producer does the same and reports the error
                config = {**producer_config(self.harness_bootstrap), "transactional.id": "onceproof-warm-up"}
                Producer(config).init_transactions(10)

        thread = threading.Thread(target=warm_up, name="warm up transactions", daemon=True)
        thread.start()
        return thread

    def admin(self, *, asking_not: int | None = None) -> AdminClient:
        """A new client on the harness's listeners.

        With ``asking_not`` it knows only the other brokers, so that it gets its first metadata from them: a broker that is
        cut off still believes that it leads.
        """
        others = [broker for broker in self.brokers if broker != asking_not]
        return AdminClient(client_config(self.harness_address(*others)))

    def await_markers(self) -> None:
        transactions.await_markers(self)

    def is_own(self, topic: str) -> bool:
        return topic not in _OF_KAFKA

    def harness_client(self) -> dict[str, Any]:
        return client_config(self.harness_bootstrap)

    def harness_address(self, *brokers: int) -> str:
        """Bootstrap address of these brokers' listeners for the harness."""
        return ",".join(f"{HOST}:{self.nodes[broker].node.ports[ListenerName.HARNESS]}" for broker in brokers)

    def log_folders(self, topic: str) -> dict[int, Path]:
        """Partition -> folder of its leader's log. Raises `WaitTimeout` if a partition has no leader for too long."""

        def ask() -> dict[int, int] | None:
            found = self.admin().list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic].partitions
            leaders = {id: partition.leader for id, partition in found.items()}
            return leaders if leaders and all(leader in self.nodes for leader in leaders.values()) else None

        leaders = wait_until(
            f"leaders of {topic}",
            ask,
            deadline_s=START_DEADLINE_S,
            ignoring=(KafkaException, KeyError),
            abandon=self.check_health,
        )
        return {id: self.nodes[leader].data / f"{topic}-{id}" for id, leader in leaders.items()}

    def update_log(self, topic: str, partition: int, folder: Path) -> None:
        """Does nothing: it is the leader's own folder."""

    def client_proxy(self, broker: int) -> Proxy:
        return self._proxy("client", broker)

    def replication_proxy(self, broker: int) -> Proxy:
        return self._proxy("replication", broker)

    def controller_proxy(self, broker: int) -> Proxy:
        return self._proxy("controller", broker)

    def isolate_broker(self, broker: int, lost: Lost = "both") -> str:
        drop_packets(self.replication_proxy(broker), lost)
        drop_packets(self.controller_proxy(broker), lost, it_connects=True)
        return PACKETS_DROPPED

    def rejoin_broker(self, broker: int) -> None:
        self.replication_proxy(broker).heal()
        self.controller_proxy(broker).heal()

    def kill_broker(self, broker: int) -> None:
        self._killed.add(broker)
        self.disturbed.append(f"a fault killed {self.nodes[broker].name}")
        self.nodes[broker].service.kill()

    def restart_broker(self, broker: int) -> None:
        """Start it on its old folder; return when it answers and is back in every ISR. Raises as `start` does."""
        node = self.nodes[broker]
        epoch = -1 if node.node.is_broker else self.quorum_epoch()
        node.start()
        self._killed.discard(broker)
        if not node.node.is_broker:
            wait_until(
                f"{node.name} to lead the quorum after its restart",
                lambda: self.quorum_epoch() > epoch,
                deadline_s=REJOIN_DEADLINE_S,
                abandon=self.check_health,
            )
            return
        own = AdminClient(client_config(self.harness_address(broker)))
        wait_until(
            f"{node.name} to answer after its restart",
            lambda: known_brokers(own),
            deadline_s=REJOIN_DEADLINE_S,
            abandon=self.check_health,
        )
        self.wait_for_isr(broker, node.name, "its restart")

    def pause_broker(self, broker: int) -> None:
        self.disturbed.append(f"a fault paused {self.nodes[broker].name}")
        self.nodes[broker].service.freeze()

    def is_paused(self, broker: int) -> bool:
        return bool(psutil.Process(self.pid(broker)).status() == psutil.STATUS_STOPPED)

    def resume_broker(self, broker: int) -> None:
        """Resume it; return when it is back in every ISR. Idempotent."""
        self.nodes[broker].service.thaw()
        if self.nodes[broker].node.is_broker:
            self.wait_for_isr(broker, self.nodes[broker].name, "its stall")

    @property
    def controller(self) -> int:
        return next(id for id, node in self.nodes.items() if "controller" in node.node.roles)

    def pid(self, broker: int) -> int:
        return self.nodes[broker].service.pid

    def quorum_epoch(self) -> int:
        """The epoch in KRaft's ``quorum-state`` file (KIP-595), which the controller wrote when it was elected."""
        state = self.nodes[self.controller].data / "__cluster_metadata-0" / "quorum-state"
        return int(json.loads(state.read_text(encoding="utf-8"))["leaderEpoch"])

    def is_running(self, broker: int) -> bool:
        return self.nodes[broker].is_running()

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a node ended without `kill_broker`."""
        # Before and after the look: another thread may kill or restart a node in between.
        killed = set(self._killed)
        ended = [id for id, node in self.nodes.items() if not node.service.is_running()]
        for id in set(ended) - killed - self._killed:
            self.nodes[id].service.check_running()

    def _wait_for_all(self) -> None:
        admin = self.admin()
        wait_until(
            f"{len(self.brokers)} broker(s) to join",
            lambda: known_brokers(admin) >= set(self.brokers),
            deadline_s=START_DEADLINE_S,
            abandon=self.check_health,
            explain=lambda: f"brokers {sorted(known_brokers(admin))}; logs in {self.nodes[self.brokers[0]].log.parent}",
        )

    def _proxy(self, kind: str, broker: int) -> Proxy:
        name = f"{kind}-{broker}"
        if name not in self.proxies:
            raise EnvironmentProblem(
                f"this stack has no proxy {name!r}, only {', '.join(self.proxies)}",
                hint="set stack.kafka.brokers to 3 in the scenario",
            )
        return self.proxies[name]


def _one_node(owner: Owner, proxy: ProxyMaker) -> list[Node]:
    """One process as broker and controller; it has no other peer, so only its clients can be cut off."""
    ports = dict(zip(ListenerName, lease(owner, len(ListenerName)), strict=True))
    voter = f"1@{HOST}:{ports[ListenerName.CONTROLLER]}"
    host, port = _address(proxy("client-1", ports[ListenerName.CLIENT]))
    return [Node(1, ("broker", "controller"), ports, voter, {ListenerName.CLIENT: port}, host)]


def _cluster(brokers: int, owner: Owner, proxy: ProxyMaker) -> list[Node]:
    """A separate controller and brokers, each with its own proxy on its link to the controller.

    Not combined nodes: their links to each other's controllers would bypass the proxies, and killing one would kill a voter.
    """
    (port,) = lease(owner, 1)
    voter = f"{CONTROLLER_ID}@{CONTROLLER_NAME}:{port}"
    return [
        *(_broker(id, port, voter, owner, proxy) for id in range(1, brokers + 1)),
        Node(CONTROLLER_ID, ("controller",), {ListenerName.CONTROLLER: port}, voter),
    ]


def _broker(id: int, controller_port: int, voter: str, owner: Owner, proxy: ProxyMaker) -> Node:
    client, internal, harness = lease(owner, 3)
    # All brokers use the controller's one name and port, so their proxies differ by address. The lease of the port is enough:
    # no other service listens on 127.0.1.x only.
    address = f"127.0.1.{id}"
    proxy(f"controller-{id}", controller_port, listen=f"{address}:{controller_port}")
    host, port = _address(proxy(f"client-{id}", client))
    return Node(
        id,
        ("broker",),
        {ListenerName.CLIENT: client, ListenerName.INTERNAL: internal, ListenerName.HARNESS: harness},
        voter,
        advertised={
            ListenerName.CLIENT: port,
            ListenerName.INTERNAL: _address(proxy(f"replication-{id}", internal))[1],
        },
        client_host=host,
        controller_address=address,
    )


def _address(proxy: Proxy) -> tuple[str, int]:
    host, _, port = proxy.listen.rpartition(":")
    return host, int(port)
