"""The external provider: Kafka and Postgres that you operate elsewhere, with this run's own proxies between them and the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from onceproof.base.timeline import Timeline
from onceproof.scenario.model import Scenario, TopicSpec
from onceproof.scenario.stack import SparkStack
from onceproof.stack import selftest
from onceproof.stack.api import ObjectStore, Proxy, Spark
from onceproof.stack.external import cleanup, kafka, postgres
from onceproof.stack.external.journal import ObjectJournal
from onceproof.stack.external.kafka import ExternalKafka
from onceproof.stack.external.names import RunNames
from onceproof.stack.external.postgres import ExternalPostgres
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.external.routes import Routes
from onceproof.stack.external.spark import ExternalSpark, addresses_of
from onceproof.stack.fetch.components import Components
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.parts import FromComponents
from onceproof.stack.processes.connections import peers
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.spark import SparkCluster
from onceproof.stack.toxiproxy.framed import Frames
from onceproof.stack.toxiproxy.server import ToxiproxyServer


class ExternalStack(FromComponents):
    """Implements `onceproof.stack.api.Stack`. Created by `start`; its owner removes what it created."""

    _kafka: ClassVar[type[ExternalKafka]] = ExternalKafka
    _postgres: ClassVar[type[ExternalPostgres]] = ExternalPostgres

    @classmethod
    def check(cls, profile: StackProfile) -> None:
        """Ask whether anything answers there. Raises `EnvironmentProblem` if not."""
        kafka.check(profile)

    @classmethod
    def _address(cls, profile: StackProfile, spec: SparkStack | None) -> str:
        """The address of this machine at which the job and its executors reach the proxies."""
        return HOST if spec is None else spec.bind

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
        """Start the run's own Spark, or take the one that was started with the services."""
        return SparkCluster.start(spec, owner, run_dir / "logs", components)

    @classmethod
    def _other_addresses(cls, profile: StackProfile) -> dict[tuple[str, int], str]:
        """Address and port -> the real service, as a sentence names it, besides those of the profile."""
        return {}

    def __init__(
        self,
        components: Components,
        files: Path,
        toxiproxy: ToxiproxyServer,
        frames: Frames,
        kafka: ExternalKafka,
        postgres: ExternalPostgres | None,
        spark: Spark | None,
        real: Mapping[tuple[str, int], str],
    ) -> None:
        """``real``: address and port of each real listener -> what it is."""
        super().__init__(components, files, toxiproxy, postgres=postgres is not None)
        self.frames = frames
        self.spark = spark
        self.object_store: ObjectStore | None = None  # validated: the checkpoints of an external stack are local
        self.kafka = kafka
        self.postgres = postgres
        self._real = real

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
        """Check both services and the rights on them, start the proxies, and only then create the run's schema.

        The topics are created later, by `ExternalKafka.create_topic`. Raises `EnvironmentProblem`; nothing remains then.
        """
        names = RunNames.of(scenario.stack.prefix)
        spec = scenario.stack.spark
        wants_postgres = scenario.stack.postgres is not None

        timed = timeline.timed
        addresses = timed("kafka", lambda: kafka.check(profile))
        if wants_postgres:
            timed("postgres", lambda: postgres.check(profile))
        spark: Spark | None = None
        if spec is not None and spec.external:
            where = "stack.spark" if profile.spark is None else f"[stack.{profile.name}] spark"
            spark = timed("spark", lambda: ExternalSpark.check(spec, where, profile.connect_s))
        (port,) = lease(owner, 1)
        log = run_dir / "logs" / "toxiproxy.log"
        server = components.toxiproxy_server
        toxiproxy = timed("toxiproxy", lambda: ToxiproxyServer.start(owner, server, log, port, timeline.emit))
        frames = Frames(owner, timeline.emit, cls._address(profile, spec))
        routes = Routes(owner, profile, toxiproxy, frames)
        journal = ObjectJournal(names.run, profile.name, *cleanup.addresses(profile))
        owner.push(lambda: _remove(journal, profile, timeline))
        brokers = routes.to_brokers(addresses)
        copies = owner.temporary_folder()
        of_kafka = cls._kafka(
            profile, names, journal, addresses, brokers, routes.bootstrap, routes.security(), copies=copies
        )
        of_kafka.check_topics(_topics(scenario))
        of_postgres = None
        if wants_postgres:
            passfile, ca = owner.scratch / "pgpass", routes.authority.ca if routes.authority is not None else None
            of_postgres = cls._postgres(profile, names, journal, routes.to_postgres(), passfile, ca)
        if spec is not None and spark is None:
            spark = timed("spark", lambda: cls._standalone(profile, spec, owner, run_dir, components, timeline))
        real = cls._other_addresses(profile)
        real |= {place: f"broker {id}" for id, address in addresses.items() for place in addresses_of(*address)}
        for address in profile.kafka.addresses():
            real |= dict.fromkeys(addresses_of(*address), "a bootstrap address of Kafka")
        if profile.postgres is not None:
            real |= dict.fromkeys(addresses_of(*postgres.address(profile.postgres)), "Postgres")
        stack = cls(components, run_dir / "files", toxiproxy, frames, of_kafka, of_postgres, spark, real)
        timed("self-test", lambda: selftest.check_cuts(stack.proxies()))
        if of_postgres is not None:
            of_postgres.create_schema()
        return stack

    def proxies(self) -> list[Proxy]:
        """Every proxy of the stack."""
        of_kafka = [self.kafka.client_proxy(broker) for broker in self.kafka.brokers]
        return [*of_kafka, *([self.postgres.proxy] if self.postgres is not None else [])]

    def check_bypass(self, pids: list[int]) -> list[str]:
        """Connections of these processes, and of executors, straight to the real services, as sentences."""
        tasks = self.spark.pids() if self.spark is not None else []
        found = selftest.bypasses(self.frames.guards(), [*pids, *tasks, os.getpid()])
        for pid in sorted({*pids, *tasks}):
            for host, port in sorted(peers(pid, established=True) & self._real.keys()):
                what = self._real[host, port]
                found.append(f"pid {pid} is connected to {host}:{port}, {what}, and bypasses its proxy")
        return found

    def check_health(self) -> None:
        """Raise `ServiceFailed` or `EnvironmentProblem` if a process of this run ended, the protocol proxy failed, or a quota bites."""
        self.kafka.throttling.check()
        if self.spark is not None:
            self.spark.check_health()
        self.frames.check()
        self.toxiproxy.service.check_running()

    def versions(self) -> dict[str, Any]:
        """Component -> version; of the external services, that they are external."""
        services = ["kafka"] if self.postgres is None else ["kafka", "postgres"]
        return {**super().versions(), **dict.fromkeys(services, "external")}


def _topics(scenario: Scenario) -> dict[str, TopicSpec]:
    """Every topic that the run will create."""
    inputs = {spec.topic: TopicSpec(partitions=spec.partitions) for spec in scenario.input}
    return {**inputs, **scenario.pipeline.prepare.topics}


def _remove(journal: ObjectJournal, profile: StackProfile, timeline: Timeline) -> None:
    """Remove what the run created; what cannot be removed stays in the journal."""
    for made, why in cleanup.remove(journal.entry.objects, profile):
        if why is None:
            journal.forget(made)
        else:
            message = f"could not remove {made}: {why}; later: `onceproof cleanup --stack {profile.name}`"
            timeline.emit("warning", message=message)
    journal.remove()
