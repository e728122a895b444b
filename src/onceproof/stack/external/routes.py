"""The proxies between the job and an external stack: client -> frames -> Toxiproxy -> service.

The same order as in the embedded stack (`onceproof.stack.toxiproxy.framed`), so that every fault works in the same way. No
setting of the services changes: `onceproof.instruments.proxy.cluster` rewrites the addresses in Kafka's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.authority import RunAuthority
from onceproof.instruments.proxy.cluster import ClusterProxy
from onceproof.instruments.proxy.tls import UpstreamTls
from onceproof.stack.api import KafkaSecurity, Proxy
from onceproof.stack.external import postgres
from onceproof.stack.external.client_files import write_client_files
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.external.trust import upstream_context
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.framed import FramedProxy, Frames
from onceproof.stack.toxiproxy.server import ToxiproxyProxy, ToxiproxyServer


class Routes:
    """Makes the proxies of one run, and ends with its owner."""

    def __init__(self, owner: Owner, profile: StackProfile, toxiproxy: ToxiproxyServer, frames: Frames) -> None:
        self._owner = owner
        self._profile = profile
        self._toxiproxy = toxiproxy
        self._frames = frames
        self.bootstrap = ""
        """For the job: the addresses of the proxies in front of the brokers."""
        postgres_tls = profile.postgres.tls if profile.postgres is not None else None
        self.authority = None
        """Issued the certificates of the listeners; None if neither service uses TLS."""
        if profile.kafka.encrypted or postgres_tls is not None:
            self.authority = RunAuthority.create(owner.scratch / "tls", [frames.host])
        self._own_tls = self.authority.server_context() if self.authority is not None else None

    def to_brokers(self, addresses: Mapping[int, tuple[str, int]]) -> dict[int, Proxy]:
        """A route to each broker, by broker id. Raises `EnvironmentProblem` if the cluster cannot be discovered."""
        encrypted = self._profile.kafka.encrypted
        cluster = ClusterProxy(
            self._frames.loop,
            self._frames.board("kafka"),
            self._profile.kafka.addresses(),
            self._frames.host,
            self._lease,
            client_tls=self._own_tls if encrypted else None,
            upstream_tls=UpstreamTls(upstream_context(self._profile.kafka.tls), None) if encrypted else None,
            emit=self._frames.emit,
            topic_names=self._frames.topic_names,
        )
        cluster.open()
        cluster.discover(self._profile.connect_s, self._client_settings())
        if missing := addresses.keys() - cluster.proxies.keys():
            raise EnvironmentProblem(
                f"broker {min(missing)} of Kafka {self._profile.kafka.bootstrap} is known to the harness, but not to its proxy",
                hint="this is a defect in onceproof: please report it with events.jsonl",
            )
        routes: dict[int, Proxy] = {}
        for id, (host, port) in addresses.items():
            behind = self._behind(f"client-{id}", host, port)
            frames = cluster.proxies[id]
            listen, _, behind_port = behind.listen.rpartition(":")
            frames.target = replace(frames.target, via=(listen, int(behind_port)))
            routes[id] = self._frames.add(FramedProxy(behind, frames))
        self.bootstrap = ",".join(route.listen for route in routes.values())
        return routes

    def to_postgres(self) -> Proxy:
        of_profile = self._profile.postgres
        assert of_profile is not None, "the profile has a Postgres"
        host, port = postgres.address(of_profile)
        behind = self._behind("postgres", host, port)
        if of_profile.tls is None:
            return self._frames.in_front_of(behind, "postgres")
        upstream = UpstreamTls(upstream_context(of_profile.tls), host)
        return self._frames.in_front_of(behind, "postgres", client_tls=self._own_tls, upstream_tls=upstream)

    def security(self) -> KafkaSecurity:
        """What the job needs to connect to the proxies in front of the brokers."""
        trust = self.authority if self._profile.kafka.encrypted else None
        paths = ("", "") if trust is None else (str(trust.ca), str(trust.truststore))
        files = write_client_files(self._owner.scratch, self._profile.kafka, *paths)
        return KafkaSecurity(self._profile.kafka.security, *paths, *files)

    def _client_settings(self) -> dict[str, Any]:
        """As `KafkaProfile.client_settings`, but for a client of the proxies."""
        settings = self._profile.kafka.client_settings()
        if self.authority is None or not self._profile.kafka.encrypted:
            return settings
        kept = {name: value for name, value in settings.items() if not name.startswith("ssl.")}
        return {**kept, "ssl.ca.location": str(self.authority.ca)}

    def _behind(self, name: str, host: str, port: int) -> ToxiproxyProxy:
        proxy = ToxiproxyProxy(self._toxiproxy, name, f"{HOST}:{self._lease()}", f"{host}:{port}")
        proxy.create()
        return proxy

    def _lease(self) -> int:
        return lease(self._owner, 1)[0]
