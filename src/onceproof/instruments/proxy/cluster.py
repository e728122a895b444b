"""The protocol proxy in front of a whole Kafka cluster whose listeners are not ours.

Clients learn the brokers' addresses from answers of the cluster. The proxy replaces each by that of a listener of its own, so
``advertised.listeners`` remain as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from ssl import SSLContext
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.frames import Refused
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board
from onceproof.instruments.proxy.tls import UpstreamTls

#: How long one attempt to learn the brokers lasts, and the last one at least.
_ASK_S = 1.0
_LAST_ASK_S = 0.1


class ClusterProxy:
    """One listener per bootstrap address, and one per broker once an answer names it. Thread-safe.

    ``lease_port`` returns a free port of ``listen_host``; the proxy's thread calls it when a new broker appears.
    """

    def __init__(
        self,
        loop: ProxyLoop,
        board: Board,
        bootstrap: list[tuple[str, int]],
        listen_host: str,
        lease_port: Callable[[], int],
        *,
        client_tls: SSLContext | None = None,
        upstream_tls: UpstreamTls | None = None,
        emit: Emit = lambda _kind, **_data: None,
        topic_names: dict[bytes, str] | None = None,
    ) -> None:
        self.proxies: dict[int, FrameProxy] = {}
        """By broker id; a broker that is also a bootstrap address shares that listener."""
        self._listen_host = listen_host
        self._lease_port = lease_port
        self._made = partial(
            FrameProxy,
            loop,
            board=board,
            emit=emit,
            topic_names=topic_names if topic_names is not None else {},
            client_tls=client_tls,
            upstream_tls=upstream_tls,
            address=self._address,
        )
        self._entries = [
            self._proxy(f"kafka-bootstrap-{number}", Target("kafka", host, port))
            for number, (host, port) in enumerate(bootstrap)
        ]

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT,...`` of our listeners, for ``bootstrap.servers`` of the job. Valid from `open` on."""
        return ",".join(f"{_written(proxy.host)}:{proxy.port}" for proxy in self._entries)

    @property
    def refusals(self) -> list[str]:
        """Why connections were refused, each with the setting to change."""
        return [sentence for proxy in self.all() for sentence in proxy.refusals]

    @property
    def incidents(self) -> list[str]:
        """Why connections ended before they began, although no setting is wrong."""
        return [sentence for proxy in self.all() for sentence in proxy.incidents]

    def all(self) -> list[FrameProxy]:
        """The listeners, those for bootstrap first; each once."""
        return list(dict.fromkeys([*self._entries, *list(self.proxies.values())]))

    def open(self) -> None:
        """Listen, for each bootstrap address and each known broker. Idempotent. Raises `EnvironmentProblem`."""
        for proxy in self.all():
            proxy.open()

    def discover(self, timeout_s: float, client: Mapping[str, str | int | float | bool] | None = None) -> None:
        """Learn the brokers up front, through this proxy, with librdkafka's settings ``client`` (TLS, SASL).

        Raises `EnvironmentProblem` with the cause: after ``timeout_s``, or as soon as a wrong setting is the cause.
        """
        heard: list[KafkaError] = []
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": heard.append, "metadata.recovery.strategy": "none"}
        admin = AdminClient({**(client or {}), "bootstrap.servers": self.bootstrap, **quiet})
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                admin.list_topics(timeout=max(_LAST_ASK_S, min(left, _ASK_S)))
                return
            except KafkaException as failure:
                admin.poll(0)  # fills heard
                hopeless = self.refusals or any(error.code() == KafkaError._AUTHENTICATION for error in heard)
                if left <= _ASK_S or hopeless:
                    raise self._undiscovered([error.str() for error in heard] or [failure.args[0].str()]) from failure

    def _undiscovered(self, causes: list[str]) -> EnvironmentProblem:
        brokers = ", ".join(f"{_written(proxy.target.host)}:{proxy.target.port}" for proxy in self._entries)
        found = self.refusals or list(dict.fromkeys([*self.incidents, *causes]))
        return EnvironmentProblem(
            f"the Kafka cluster at {brokers} could not be reached through the protocol proxy: {'; '.join(found)}",
            hint="check its address, security protocol and credentials",
        )

    def _address(self, broker: int, host: str, port: int) -> tuple[str, int]:
        """Where clients find a broker; opens its listener when it is first named, or named at another address.

        Called on the loop, while an answer is parsed: the client that gets the answer may connect at once.
        """
        known = self.proxies.get(broker)
        if known is None or (known.target.host, known.target.port) != (host, port):
            target = Target("kafka", host, port)
            entry = next((proxy for proxy in self._entries if proxy.target == target), None)
            if entry is not None:
                known = entry
            elif known is None or known in self._entries:
                known = self._opened(f"kafka-{broker}", target)
            else:
                known.target = target  # it has moved: new connections go there
            self.proxies[broker] = known
        return known.host, known.port

    def _opened(self, name: str, target: Target) -> FrameProxy:
        try:
            proxy = self._proxy(name, target)
            proxy.open_on_loop()
        except (OSError, EnvironmentProblem) as failure:
            raise Refused(f"no listener for {name} at {target.host}:{target.port}: {failure}") from failure
        return proxy

    def _proxy(self, name: str, target: Target) -> FrameProxy:
        return self._made(name, (self._listen_host, self._lease_port()), target)


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
