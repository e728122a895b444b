"""An external Spark cluster. The job is its client, with the driver on this machine (client mode).

onceproof connects to the master once, to see that it can be reached; it does not start, stop or look into its processes.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable
from contextlib import suppress

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import LOOPBACK, SparkStack
from onceproof.stack.processes.connections import peers
from onceproof.stack.spark_settings import ExternalCluster

CONNECT_S = 10.0
"""How long the masters of a scenario's ``stack.spark`` together may take to accept a connection."""

_ENDING_S = 3.0
"""How long a driver may be connected to others and to no master. A JVM that stops takes about a second."""


class ExternalSpark:
    """Implements `onceproof.stack.api.Spark`."""

    def __init__(self, spec: SparkStack) -> None:
        self.conf = ExternalCluster(spec.master, spec.bind)

    @classmethod
    def check(cls, spec: SparkStack, where: str = "stack.spark", connect_s: float = CONNECT_S) -> ExternalSpark:
        """The cluster, once a master accepts connections. ``where``: the settings, for people.

        Raises `EnvironmentProblem` with the setting and the fix: within ``connect_s`` seconds if no master does, and at once if
        ``spec.bind`` is not an address of this machine. Starts and changes nothing.
        """
        with socket.socket() as probe:
            try:
                probe.bind((spec.bind, 0))
            except OSError as refused:
                raise EnvironmentProblem(
                    f"{where}.bind: {spec.bind} is not an address of this machine: {refused.strerror}",
                    hint="`ip -4 addr` lists them; executors must reach it",
                ) from None
        said = []
        deadline = time.monotonic() + connect_s
        for host, port in masters(spec.master):
            try:
                # From the address that the driver will use.
                with socket.create_connection((host, port), max(deadline - time.monotonic(), 0.1), (spec.bind, 0)):
                    return cls(spec)
            except (socket.gaierror, UnicodeError) as unknown:  # UnicodeError: it cannot be a name
                said.append(f"the name {host} cannot be resolved: {getattr(unknown, 'strerror', unknown)}")
            except TimeoutError:
                said.append(f"{host}:{port} does not answer within {connect_s:g} s")
            except OSError as refused:
                said.append(f"{host}:{port} from {spec.bind}: {refused.strerror or refused}")
        raise EnvironmentProblem(
            f"{where}.master: Spark {spec.master} cannot be reached: {'; '.join(said)}",
            hint=f"start the master, or correct {where}.master: its web page shows the address, spark://HOST:7077; "
            f"{where}.bind must be an address of this machine from which it can be reached",
        )

    def pids(self) -> list[int]:
        """None: executors are processes of the cluster, which may be on other machines."""
        return []

    def check_health(self) -> None:
        """Does nothing: the cluster is external. What it does to the job shows in the job."""

    def isolate(self, pid: int) -> str:
        raise NotImplementedError("validated: the network of its executors is not under control")

    def rejoin(self) -> None:
        """Does nothing: no executor was cut off."""

    def check_used(self, pids: Iterable[int]) -> None:
        """Raise `EnvironmentProblem` if no process of the driver is connected to a master: its tasks ran elsewhere."""
        places = {place for host, port in masters(self.conf.master) for place in addresses_of(host, port)}
        if not places:
            return

        def is_excused() -> bool:
            remote: set[tuple[str, int]] = set()
            for pid in pids:
                with suppress(PermissionError):
                    remote |= peers(pid)
            # A driver that was just killed has no connection at all.
            return not remote or bool(remote & places)

        try:
            # A driver that is ending closes its connection to the master first, and its last one soon afterwards.
            wait_until("the driver to be connected to its master", is_excused, deadline_s=_ENDING_S)
        except WaitTimeout:
            raise EnvironmentProblem(
                f"the job works, but its driver is not connected to {self.conf.master}: its tasks run elsewhere",
                hint="the job sets another master: remove .master(...) from its code, --master from its command and spark.master "
                "from spark-defaults.conf, or set them to {spark.master}",
            ) from None


def masters(url: str) -> list[tuple[str, int]]:
    """Host and port of each master in ``spark://HOST:PORT,HOST:PORT``."""
    pairs = (address.rpartition(":") for address in url.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in pairs]


def exposure(spec: SparkStack) -> str | None:
    """A warning about the addresses of an external Spark: what others can reach, or what executors cannot; None if there is none."""
    if not spec.external:
        return None
    if not ipaddress.IPv4Address(spec.bind).is_loopback:
        return (
            f"spark.bind {spec.bind}: the driver, the checkpoint's socket (with a secret) and the proxies in front of Kafka, Postgres and an object store listen there while the run lasts. "
            "Every machine that can connect to that address can use them: take it only in a network that you trust, with spark.authenticate"
        )
    if remote := [host for host, _ in masters(spec.master) if not _on_loopback(host)]:
        return (
            f"spark.bind is {LOOPBACK}, but the master is on {remote[0]}: executors on other machines reach neither the driver nor "
            "the proxies; set bind to the address of this machine that they reach"
        )
    return None


def _on_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def addresses_of(host: str, port: int) -> list[tuple[str, int]]:
    """The IP addresses of a listener. A name that cannot be resolved has none; connecting to it fails anyway."""
    with suppress(OSError, UnicodeError):
        return [(str(found[4][0]), port) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return []
