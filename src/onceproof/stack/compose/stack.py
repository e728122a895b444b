"""The compose provider: an external stack whose services run in containers that faults may kill and pause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import psycopg
from confluent_kafka.admin import AdminClient
from docker.models.containers import Container
from pydantic import SecretStr

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.scenario.model import Scenario
from onceproof.stack.api import Lost
from onceproof.stack.compose import daemon, project
from onceproof.stack.compose.profile import PORTS, ComposeProfile
from onceproof.stack.compose.project import CLIENTS, CLUSTER, Project
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.postgres import ExternalPostgres
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile
from onceproof.stack.external.stack import ExternalStack
from onceproof.stack.kafka.topics import REJOIN_DEADLINE_S, known_brokers
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease


class ComposeKafka(ExternalKafka):
    """A Kafka in containers: kill and pause go to the container of a node."""

    def __init__(self, profile: StackProfile, *others: Any) -> None:
        super().__init__(profile, *others)
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        self._project = Project(profile.project)
        self._killed: set[int] = set()
        self._cut_off: dict[int, list[str]] = {}
        """Broker that is cut off -> its names in the network of the cluster."""

    def kill_broker(self, broker: int) -> None:
        self._killed.add(broker)
        project.kill(self._node(broker))

    def restart_broker(self, broker: int) -> None:
        """Start its container again; return when it is back in every ISR, or leads the quorum in a later epoch."""
        node = self._node(broker)
        epoch = -1 if broker in self.brokers else self.quorum_epoch()
        node.start()
        self._killed.discard(broker)
        if broker not in self.brokers:
            wait_until(
                f"container {node.name} to lead the quorum after its restart",
                lambda: self.quorum_epoch() > epoch,
                deadline_s=REJOIN_DEADLINE_S,
                abandon=self.check_health,
            )
            return
        host, port = self._addresses[broker]
        own = AdminClient({**self.harness_client(), "bootstrap.servers": f"{host}:{port}"})
        wait_until(
            f"container {node.name} to answer after its restart",
            lambda: known_brokers(own),
            deadline_s=REJOIN_DEADLINE_S,
            abandon=self.check_health,
        )
        self.wait_for_isr(broker, f"container {node.name}", "its restart")

    def is_running(self, broker: int) -> bool:
        return project.status(self._node(broker)) == "running"

    def pause_broker(self, broker: int) -> None:
        self._node(broker).pause()

    def is_paused(self, broker: int) -> bool:
        return project.status(self._node(broker)) == "paused"

    def resume_broker(self, broker: int) -> None:
        """Resume it; return when it is back in every ISR. Idempotent."""
        node = self._node(broker)
        if project.status(node) == "paused":
            node.unpause()
        if broker in self.brokers:
            self.wait_for_isr(broker, f"container {node.name}", "its stall")

    def isolate_broker(self, broker: int, lost: Lost = "both") -> str:
        assert lost == "both", "a fault of one direction needs control that the profile does not have"
        node, network = self._node(broker), self._project.network(CLUSTER)
        self._cut_off[broker] = project.disconnect(node, network)
        return f"container {node.name} was disconnected from network {network.name}"

    def rejoin_broker(self, broker: int) -> None:
        """Connect it again; return when it is back in every ISR. Idempotent."""
        if broker not in self._cut_off:
            return
        node = self._node(broker)
        project.connect(node, self._project.network(CLUSTER), self._cut_off[broker])
        self.wait_for_isr(broker, f"container {node.name}", "its return to the network")
        del self._cut_off[broker]

    @property
    def controller(self) -> int:
        return self._project.controller

    def quorum_epoch(self) -> int:
        return project.quorum_epoch(self._node(self.controller))

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a node's container ended without `kill_broker`."""
        # Before and after the containers are listed: another thread may kill or restart one in between.
        killed = set(self._killed)
        nodes = self._project.nodes()
        self._project.check([one for node, one in nodes.items() if node not in killed | self._killed])

    def _node(self, broker: int) -> Container:
        return self._project.node(broker)


class ComposePostgres(ExternalPostgres):
    """A Postgres in a container."""

    def __init__(self, profile: StackProfile, *others: Any) -> None:
        super().__init__(profile, *others)
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        self._project = Project(profile.project)
        self._container = self._project.postgres()
        self._cut_off: list[str] | None = None
        """Its names in the network while it is cut off."""

    def kill(self) -> None:
        project.kill(self._container)

    def stop(self) -> None:
        project.shut_down(self._container)

    def restart(self) -> None:
        if not self.is_running():
            self._container.start()
        self._wait_until_reachable("its restart")

    def isolate(self) -> str:
        network = self._project.network(CLIENTS)
        self._cut_off = project.disconnect(self._container, network)
        return f"container {self._container.name} was disconnected from network {network.name}"

    def rejoin(self) -> None:
        if self._cut_off is None:
            return
        project.connect(self._container, self._project.network(CLIENTS), self._cut_off)
        self._wait_until_reachable("its return to the network")
        self._cut_off = None

    def _wait_until_reachable(self, what: str) -> None:
        def accepts() -> bool:
            try:
                psycopg.connect(self.harness_conninfo, connect_timeout=2).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(f"Postgres to accept connections after {what}", accepts, deadline_s=REJOIN_DEADLINE_S)

    def is_running(self) -> bool:
        return project.status(self._container) == "running"


class ComposeStack(ExternalStack):
    """Implements `onceproof.stack.api.Stack`. A project that the run started itself is removed with the run."""

    _kafka = ComposeKafka
    _postgres = ComposePostgres
    _images: Mapping[str, str] = {}
    """Service -> the image of its container."""

    @classmethod
    def check(cls, profile: StackProfile) -> None:
        daemon.client().close()

    @classmethod
    def start(
        cls, scenario: Scenario, profile: StackProfile, owner: Owner, run_dir: Any, components: Any, timeline: Timeline
    ) -> Self:
        """Use the project of `onceproof up` if it runs, or start one; then as `ExternalStack.start`."""
        assert isinstance(profile, ComposeProfile), "chosen by --stack compose"
        brokers = scenario.stack.kafka.brokers
        by_hand = Project()
        found = by_hand
        if not by_hand.containers() or by_hand.brokers() != brokers:
            found = Project(f"onceproof-{owner.run_id}")
            owner.uses_daemon(daemon.address())
            owner.push(found.down)
            timeline.emit("stack.starting", service="containers")
            began = time.monotonic()
            found.up(brokers, run_id=owner.run_id, ports=dict(zip(PORTS, lease(owner, len(PORTS)), strict=True)))
            timeline.emit("stack.ready", service="containers", seconds=round(time.monotonic() - began, 3))
        found.check_health()
        stack = super().start(scenario, profile_of(found), owner, run_dir, components, timeline)
        stack._images = found.versions()
        return stack

    def versions(self) -> dict[str, Any]:
        return {**super().versions(), **self._images}


def profile_of(found: Project) -> ComposeProfile:
    """The profile of a project whose containers run."""
    postgres = PostgresProfile(uri=found.postgres_uri(), password=SecretStr(found.postgres_password()))
    kafka = KafkaProfile(bootstrap=",".join(found.addresses()))
    return ComposeProfile(project=found.name, kafka=kafka, postgres=postgres)
