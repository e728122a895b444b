"""The proxies between the job and somebody else's services: client -> frames -> Toxiproxy -> service.

The same order as in the embedded stack (`onceproof.stack.toxiproxy.framed`), so that every fault works in the same way. No
setting of the services changes: `onceproof.instruments.proxy.cluster` rewrites the addresses in Kafka's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.cluster import ClusterProxy
from onceproof.stack.api import Proxy
from onceproof.stack.external import postgres
from onceproof.stack.external.profile import StackProfile
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

    def to_brokers(self, addresses: Mapping[int, tuple[str, int]]) -> dict[int, Proxy]:
        """A route to each broker, by broker id. Raises `EnvironmentProblem` if the cluster cannot be discovered."""
        cluster = ClusterProxy(
            self._frames.loop,
            self._frames.board("kafka"),
            self._profile.kafka.addresses(),
            HOST,
            self._lease,
            client_tls=None,
            upstream_tls=None,
            emit=self._frames.emit,
            topic_names=self._frames.topic_names,
        )
        cluster.open()
        cluster.discover(self._profile.connect_s, self._profile.kafka.client_settings())
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
        return self._frames.in_front_of(self._behind("postgres", *postgres.address(of_profile)), "postgres")

    def _behind(self, name: str, host: str, port: int) -> ToxiproxyProxy:
        proxy = ToxiproxyProxy(self._toxiproxy, name, f"{HOST}:{self._lease()}", f"{host}:{port}")
        proxy.create()
        return proxy

    def _lease(self) -> int:
        return lease(self._owner, 1)[0]
