"""The compose provider: an external stack whose services run in containers that faults may kill and pause."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka.admin import AdminClient
from docker.models.containers import Container
from psycopg import sql
from pydantic import SecretStr

from onceproof.base.masking import hide
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.scenario.model import Scenario
from onceproof.scenario.stack import SparkStack
from onceproof.stack.api import Lost, Spark
from onceproof.stack.compose import daemon, project
from onceproof.stack.compose.profile import PORTS, ComposeProfile
from onceproof.stack.compose.project import CLIENTS, CLUSTER, ClusterOfRun, Project
from onceproof.stack.compose.spark import ComposeSpark
from onceproof.stack.external.journal import Created
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.postgres import ExternalPostgres
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile
from onceproof.stack.external.stack import ExternalStack
from onceproof.stack.fetch.components import Components
from onceproof.stack.kafka import transactions
from onceproof.stack.kafka.topics import REJOIN_DEADLINE_S, known_brokers
from onceproof.stack.postgres import write_passfile
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease


class ComposeKafka(ExternalKafka):
    """A Kafka in containers: kill and pause go to the container of a node."""

    def __init__(self, profile: StackProfile, *others: Any, **named: Any) -> None:
        super().__init__(profile, *others, **named)
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        self._project = Project(profile.project)
        self._killed: set[int] = set()
        self._cut_off: dict[int, list[str]] = {}
        """Broker that is cut off -> its names in the network of the cluster."""

    def await_markers(self) -> None:
        transactions.await_markers(self)

    def harness_address(self, *brokers: int) -> str:
        """Bootstrap address of these brokers for the harness."""
        return ",".join(f"{host}:{port}" for host, port in (self._addresses[broker] for broker in brokers))

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
    """A Postgres in a container. The job has a role of its own, as in the embedded stack: a superuser cannot be refused anything."""

    def __init__(self, profile: StackProfile, *others: Any) -> None:
        super().__init__(profile, *others)
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        self.user, self.password = self.capture_name, secrets.token_urlsafe(24)
        hide(self.password)
        where = f"{self.proxy.listen}/{self.database}"
        self.client_uri = f"postgresql://{self.user}@{where}?sslmode=disable"
        self.jdbc_url = f"jdbc:postgresql://{where}?user={self.user}&sslmode=disable"
        self.passfile.unlink()  # the superuser's
        write_passfile(self.passfile, self.proxy.listen.rpartition(":")[0], self.database, self.user, self.password)
        self._project = Project(profile.project)
        self._container = self._project.postgres()
        self._cut_off: list[str] | None = None
        """Its names in the network while it is cut off."""

    def create_schema(self) -> None:
        """Create the job's role, which owns the run's schema and finds its tables there."""
        role = sql.Identifier(self.user)
        self._journal.will_create(Created("role", self.user))
        with psycopg.connect(self.harness_conninfo, autocommit=True) as connection:
            # Hashed here and with the rights of the embedded stack's role.
            verifier = connection.pgconn.encrypt_password(self.password.encode(), self.user.encode(), b"scram-sha-256")
            create = sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}")
            connection.execute(create.format(role, sql.Literal(verifier.decode())))
            connection.execute(sql.SQL("ALTER ROLE {} SET search_path = {}").format(role, role))
        super().create_schema()
        with psycopg.connect(self.harness_conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(role, role))

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
        cls,
        scenario: Scenario,
        profile: StackProfile,
        owner: Owner,
        run_dir: Path,
        components: Components,
        timeline: Timeline,
    ) -> Self:
        """Use the project of `onceproof up` if it runs, or start one; then as `ExternalStack.start`."""
        assert isinstance(profile, ComposeProfile), "chosen by --stack compose"
        brokers = scenario.stack.kafka.brokers
        by_hand = Project()
        found = by_hand
        spec = scenario.stack.spark
        own_spark = None if spec is None or spec.external else ClusterOfRun(spec, run_dir, owner.scratch)
        if not by_hand.containers() or by_hand.brokers() != brokers or own_spark is not None:
            found = Project(f"onceproof-{owner.run_id}")
            owner.uses_daemon(daemon.address())
            owner.push(found.down)
            owner.push(lambda: found.save_logs(run_dir / "logs"))
            timeline.emit("stack.starting", service="compose")
            began = time.monotonic()
            ports = dict(zip(PORTS, lease(owner, len(PORTS)), strict=True))
            found.up(brokers, run_id=owner.run_id, ports=ports, spark=own_spark)
            timeline.emit("stack.ready", service="compose", seconds=round(time.monotonic() - began, 3))
        found.check_health()
        stack = super().start(scenario, profile_of(found), owner, run_dir, components, timeline)
        stack._images = found.versions()
        return stack

    @classmethod
    def _address(cls, profile: StackProfile, spec: SparkStack | None) -> str:
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        if spec is None or spec.external:
            return super()._address(profile, spec)
        return Project(profile.project).gateway()

    @classmethod
    def _standalone(
        cls,
        profile: StackProfile,
        spec: SparkStack,
        owner: Owner,
        run_dir: Path,
        components: Components,
        timeline: Timeline,
    ) -> Spark:
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        return ComposeSpark.start(spec, Project(profile.project), owner.scratch, timeline)

    @classmethod
    def _other_addresses(cls, profile: StackProfile) -> dict[tuple[str, int], str]:
        assert isinstance(profile, ComposeProfile), "made by `ComposeStack.start`"
        return Project(profile.project).inner_addresses()

    def versions(self) -> dict[str, Any]:
        kafka = self._images.get("kafka") or self._images["broker-1"]
        return {**super().versions(), **self._images, "kafka": kafka}


def profile_of(found: Project) -> ComposeProfile:
    """The profile of a project whose containers run."""
    postgres = PostgresProfile(uri=found.postgres_uri(), password=SecretStr(found.postgres_password()))
    kafka = KafkaProfile(bootstrap=",".join(found.addresses()))
    return ComposeProfile(project=found.name, kafka=kafka, postgres=postgres)
