"""Checks at the start of every run that no connection bypasses the proxies, because faults would not affect it.

Clients with a proxied bootstrap address still bypass the proxies if the brokers advertise their real addresses
(Shopify/toxiproxy issue 171). No error would report that: every fault would simply have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.api import Proxy
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.settings import HOST, ListenerName
from onceproof.stack.postgres import EmbeddedPostgres
from onceproof.stack.processes.connections import peers
from onceproof.stack.processes.ports import accepts_connections

#: Even a broker that has just lost its link to the controller for a moment answers at once; a loaded machine takes longer.
_METADATA_DEADLINE_S = 20.0

_HINT = (
    "this is a defect in onceproof's set-up, or a service found another network path: please report it with the logs"
)


@dataclass(frozen=True)
class Guard:
    """A real listener, and the only processes that may be connected to it."""

    port: int
    what: str
    allowed: frozenset[int]


def guards(kafka: EmbeddedKafka, postgres: EmbeddedPostgres | None, toxiproxy: int) -> list[Guard]:
    """Every real listener of the stack with its current pids (a restarted broker has another pid)."""
    found = []
    for node in kafka.nodes.values():
        own = {node.service.pid} if node.is_running() else set()
        for listener, port in node.node.ports.items():
            allowed = {
                ListenerName.CLIENT: {toxiproxy},
                # A single node has no other peer: there is no link that a fault could cut.
                ListenerName.INTERNAL: {toxiproxy} if len(kafka.brokers) > 1 else own,
                ListenerName.HARNESS: {os.getpid()},
                # The controller is a client of its own quorum.
                ListenerName.CONTROLLER: {toxiproxy} | own,
            }[listener]
            found.append(Guard(port, f"the {listener} listener of {node.name}", frozenset(allowed)))
    if postgres is not None:
        found.append(Guard(postgres.port, "Postgres", frozenset({toxiproxy, os.getpid()})))
    return found


def bypasses(guarded: Iterable[Guard], pids: Iterable[int]) -> list[str]:
    """Established connections of these processes to a listener whose guard does not allow them, as sentences."""
    by_port = {guard.port: guard for guard in guarded}
    found = []
    for pid in sorted(set(pids)):
        for host, port in sorted(peers(pid, established=True)):
            guard = by_port.get(port) if host == HOST else None
            if guard is not None and pid not in guard.allowed:
                found.append(f"{_describe(pid)} is connected to {HOST}:{port}, {guard.what}, and bypasses its proxy")
    return found


def check_advertised(kafka: EmbeddedKafka) -> None:
    """Raise `EnvironmentProblem` if the metadata that a client gets through a proxy names anything but the proxies."""
    wanted = {kafka.client_proxy(broker).listen for broker in kafka.brokers}
    for broker in kafka.brokers:
        advertised = _advertised(kafka.client_proxy(broker).listen)
        if advertised != wanted:
            raise EnvironmentProblem(
                f"broker {broker} sends clients to {', '.join(sorted(advertised - wanted) or ['too few brokers'])}, "
                f"but the proxies are {', '.join(sorted(wanted))}",
                hint=_HINT,
            )


def check_cuts(proxies: Sequence[Proxy]) -> None:
    """Raise `EnvironmentProblem` if a proxy accepts connections while it is cut, or refuses them afterwards."""
    for proxy in proxies:
        proxy.cut()
        try:
            if _is_open(proxy):
                raise EnvironmentProblem(
                    f"proxy {proxy.name} was cut, but {proxy.listen} still accepts connections", hint=_HINT
                )
        finally:
            proxy.heal()
        if not _is_open(proxy):
            raise EnvironmentProblem(
                f"proxy {proxy.name} was healed, but {proxy.listen} refuses connections", hint=_HINT
            )


def _describe(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} (pid {pid})"
    return f"pid {pid}"


def _advertised(address: str) -> set[str]:
    admin = AdminClient(client_config(address))

    def ask() -> set[str]:
        return {f"{broker.host}:{broker.port}" for broker in admin.list_topics(timeout=2.0).brokers.values()}

    what = f"the brokers' metadata through the proxy {address}"
    return wait_until(what, ask, deadline_s=_METADATA_DEADLINE_S, ignoring=KafkaException)


def _is_open(proxy: Proxy) -> bool:
    host, _, port = proxy.listen.rpartition(":")
    return accepts_connections(host, int(port))
