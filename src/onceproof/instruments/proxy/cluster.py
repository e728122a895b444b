"""The protocol proxy in front of a whole Kafka cluster whose listeners are not ours.

Clients learn the brokers' addresses from answers of the cluster. The proxy replaces each by that of a listener of its own, so
``advertised.listeners`` remain as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ssl import SSLContext

from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board
from onceproof.instruments.proxy.tls import UpstreamTls


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
        self._loop = loop
        self._board = board
        self._listen_host = listen_host
        self._lease_port = lease_port
        self._client_tls = client_tls
        self._upstream_tls = upstream_tls
        self._emit = emit
        self._topic_names = topic_names if topic_names is not None else {}
        self._entries = [self._proxy(f"kafka-bootstrap-{n}", host, port) for n, (host, port) in enumerate(bootstrap)]

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT,...`` of our listeners, for ``bootstrap.servers`` of the job."""
        return ",".join(f"{proxy.host}:{proxy.port}" for proxy in self._entries)

    @property
    def refusals(self) -> list[str]:
        """Why connections were refused, each with the setting to change."""
        return [sentence for proxy in self._all() for sentence in proxy.refusals]

    def open(self) -> None:
        """Listen, for each bootstrap address and each known broker. Idempotent. Raises `EnvironmentProblem`."""
        for proxy in self._all():
            proxy.open()

    def cut(self) -> None:
        """Close every connection to any broker, also those in a handshake, and refuse new ones, until `open`."""
        for proxy in self._all():
            proxy.cut()

    def discover(self, timeout_s: float, client: Mapping[str, str | int] | None = None) -> None:
        """Learn the brokers up front, through this proxy, with librdkafka's settings ``client`` (security, SASL).

        Raises `EnvironmentProblem` with the cause if the cluster does not answer within ``timeout_s``.
        """
        raise NotImplementedError

    def _all(self) -> list[FrameProxy]:
        return list(dict.fromkeys([*self._entries, *self.proxies.values()]))

    def _proxy(self, name: str, host: str, port: int) -> FrameProxy:
        return FrameProxy(
            self._loop,
            name,
            (self._listen_host, self._lease_port()),
            Target("kafka", host, port),
            self._board,
            emit=self._emit,
            topic_names=self._topic_names,
            client_tls=self._client_tls,
            upstream_tls=self._upstream_tls,
        )
