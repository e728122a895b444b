"""The embedded provider: the real services as processes of this machine, on loopback, owned by the run."""

from __future__ import annotations

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.instruments.proxy.loop import Service
from onceproof.scenario.stack import StackSpec
from onceproof.stack import postgres as postgres_module
from onceproof.stack import selftest
from onceproof.stack.api import Proxy
from onceproof.stack.external.spark import ExternalSpark
from onceproof.stack.fetch.components import Components
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.node import KafkaProgram
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.object_store.server import EmbeddedObjectStore
from onceproof.stack.parts import FromComponents
from onceproof.stack.postgres import EmbeddedPostgres
from onceproof.stack.postgres_replica import PostgresReplica
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.spark import SparkCluster
from onceproof.stack.toxiproxy.framed import Frames
from onceproof.stack.toxiproxy.server import ToxiproxyProxy, ToxiproxyServer


class CurrentTimeline:
    """Passes the events of services on to the timeline of the execution that uses them now."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def emit(self, kind: str, **data: Any) -> None:
        """As `Timeline.emit`."""
        self.timeline.emit(kind, **data)


class EmbeddedStack(FromComponents):
    """Implements `onceproof.stack.api.Stack`. Created by `start`, stopped by the owner given to it."""

    def __init__(
        self,
        components: Components,
        files: Path,
        toxiproxy: ToxiproxyServer,
        kafka: EmbeddedKafka,
        postgres: EmbeddedPostgres | None,
        frames: Frames | None = None,
        spark: SparkCluster | ExternalSpark | None = None,
        object_store: EmbeddedObjectStore | None = None,
        events: CurrentTimeline | None = None,
    ) -> None:
        super().__init__(components, files, toxiproxy, postgres=postgres is not None)
        self._events = events
        self.frames = frames
        self.spark = spark
        self.object_store = object_store
        self.kafka = kafka
        self.postgres = postgres

    @classmethod
    def start(
        cls,
        spec: StackSpec,
        owner: Owner,
        run_dir: Path,
        components: Components,
        timeline: Timeline,
        *,
        read_frames: bool = False,
        object_store: Path | None = None,
    ) -> Self:
        """Start Toxiproxy, then Kafka, Postgres, Spark and the object store in parallel, and check that no connection bypasses a proxy.

        ``object_store`` is the program of the object store. With ``read_frames`` the pipeline's connections also pass through the protocol proxy.
        Logs go to ``run_dir/logs``, data below the owner's scratch folder. Emits ``stack.starting`` and ``stack.ready``
        (with ``seconds``) for each service. Raises `ServiceFailed` with the last log lines of a service that died.
        """
        logs = run_dir / "logs"
        host = spec.spark.bind if spec.spark is not None else HOST
        # Before anything starts.
        external = ExternalSpark.check(spec.spark) if spec.spark is not None and spec.spark.external else None
        events = CurrentTimeline(timeline)
        frames = Frames(owner, events.emit, host) if read_frames else None

        def make_proxy(name: str, upstream_port: int, *, listen: str | None = None) -> Proxy:
            for_clients = name in ("postgres", "object-store") or name.startswith("client-")
            address = listen or f"{host if for_clients and frames is None else HOST}:{lease(owner, 1)[0]}"
            proxy = ToxiproxyProxy(toxiproxy, name, address, f"{HOST}:{upstream_port}")
            proxy.create()
            services: dict[str, Service] = {"postgres": "postgres", "object-store": "object-store"}
            service = "kafka" if name.startswith("client-") else services.get(name)
            return proxy if frames is None or service is None else frames.in_front_of(proxy, service)

        def start_toxiproxy() -> ToxiproxyServer:
            (port,) = lease(owner, 1)
            binary = components.toxiproxy_server
            return ToxiproxyServer.start(owner, binary, logs / "toxiproxy.log", port, events.emit)

        def start_kafka() -> EmbeddedKafka:
            program = KafkaProgram(components.java, components.kafka_jars, components.kafka_archive)
            return EmbeddedKafka.start(
                spec.kafka.brokers, owner=owner, log_folder=logs, program=program, make_proxy=make_proxy
            )

        def start_postgres() -> EmbeddedPostgres:
            (port,) = lease(owner, 1)
            proxy = make_proxy("postgres", port)
            postgres = EmbeddedPostgres.start(owner, owner.scratch / "postgres", logs, port, proxy)
            postgres.prepare_capture()
            kind = spec.postgres.replica if spec.postgres is not None else None
            if kind is not None:
                postgres.replica = PostgresReplica(kind, postgres, owner, lambda: lease(owner, 1)[0], make_proxy)
            return postgres

        def start_spark() -> SparkCluster:
            assert spec.spark is not None
            return SparkCluster.start(spec.spark, owner, logs, components)

        def start_object_store() -> EmbeddedObjectStore:
            assert object_store is not None, "fetched for a scenario that has one"
            return EmbeddedObjectStore.start(owner, object_store, logs, make_proxy)

        timed = timeline.timed
        toxiproxy = timed("toxiproxy", start_toxiproxy)
        # A ThreadPool, because its threads are daemons: after an interrupt the program does not wait for a half-started
        # service, which the owner is about to kill.
        with ThreadPool(4) as pool:
            kafka = pool.apply_async(timed, ("kafka", start_kafka))
            postgres = pool.apply_async(timed, ("postgres", start_postgres)) if spec.postgres is not None else None
            spark = (
                pool.apply_async(timed, ("spark", start_spark)) if spec.spark is not None and external is None else None
            )
            store = (
                pool.apply_async(timed, ("object-store", start_object_store)) if spec.object_store is not None else None
            )
            stack = cls(
                components,
                run_dir / "files",
                toxiproxy,
                kafka.get(),
                postgres.get() if postgres is not None else None,
                frames,
                spark.get() if spark is not None else external,
                store.get() if store is not None else None,
                events,
            )
        timed("self-test", stack.self_test)
        # After the self-test, whose cuts would disturb it; the pipeline's first transaction is seconds away.
        stack.kafka.warm_up_transactions()
        return stack

    def self_test(self) -> None:
        """Raise `EnvironmentProblem` if a cut has no effect, a broker advertises its real address, or a link has no proxy."""
        selftest.check_cuts(self.proxies())
        selftest.check_advertised(self.kafka)
        found = self.check_bypass([])
        if found:
            raise EnvironmentProblem("; ".join(found), hint="faults on that link would have no effect")

    def check_bypass(self, pids: list[int]) -> list[str]:
        """Connections that bypass a proxy, as sentences: of these processes, executors, the harness and Kafka's nodes."""
        nodes = [node.service.pid for node in self.kafka.nodes.values() if node.is_running()]
        guarded = selftest.guards(self.kafka, self.postgres, self.toxiproxy.service.pid)
        guarded += self.frames.guards() if self.frames is not None else []
        if self.object_store is not None:
            may_connect = frozenset({self.toxiproxy.service.pid, os.getpid()})
            guarded.append(selftest.Guard(self.object_store.port, "the object store", may_connect))
        tasks = self.spark.pids() if self.spark is not None else []
        return selftest.bypasses(guarded, [*pids, *tasks, *nodes, os.getpid()])

    def serve(self, files: Path, timeline: Timeline) -> None:
        """Serve another execution: ``files`` is the folder of its outputs that are files, ``timeline`` its own."""
        self.files = files
        if self._events is not None:
            self._events.timeline = timeline

    def disturbed(self) -> list[str]:
        """What faults did to the processes of services, as phrases. After that, a restarted service may differ from a new one."""
        return [*self.kafka.disturbed, *(self.postgres.disturbed if self.postgres is not None else [])]

    def client_proxies(self) -> list[Proxy]:
        """The proxies that clients connect to."""
        others = [self.postgres, self.object_store]
        own = [self.kafka.client_proxy(broker) for broker in self.kafka.brokers]
        return [*own, *(service.proxy for service in others if service is not None)]

    def proxies(self) -> list[Proxy]:
        """Every proxy of the stack."""
        others = [self.postgres, self.object_store]
        return [*self.kafka.proxies.values(), *(service.proxy for service in others if service is not None)]

    def check_health(self) -> None:
        """Raise `ServiceFailed`, with the last log lines, if a service ended without a fault having ended it."""
        self.kafka.check_health()
        if self.spark is not None:
            self.spark.check_health()
        if self.object_store is not None:
            self.object_store.check_health()
        if self.frames is not None:
            self.frames.check()
        services = [self.toxiproxy.service]
        if self.postgres is not None:
            self.postgres.check_health()
        if self.postgres is not None and self.postgres.replica is not None:
            services.append(self.postgres.replica.service)
        for service in services:
            service.check_running()

    def versions(self) -> dict[str, Any]:
        """As `FromComponents.versions`, with those of the services."""
        found = {**super().versions(), "librdkafka": confluent_kafka.libversion()[0]}
        return found if self.postgres is None else {**found, "postgres": postgres_module.version()}
