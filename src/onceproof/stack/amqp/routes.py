"""The protocol proxy in front of an AMQP broker: one listener per consumer, so that a fault affects only that consumer.

Without Toxiproxy, because no fault changes bytes here. Only a run with a fault that needs these proxies has them.
"""

from __future__ import annotations

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board, Rule
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease


class AmqpRoute:
    """One consumer's route to the broker. Implements `onceproof.consumers.routes.Route`."""

    def __init__(self, proxy: FrameProxy) -> None:
        self._proxy = proxy

    @property
    def port(self) -> int:
        return self._proxy.port

    def arm(self, rule: Rule) -> None:
        self._proxy.board.arm(rule)

    def disarm(self, rule: Rule) -> None:
        self._proxy.board.disarm(rule)

    def cut(self) -> int:
        return self._proxy.reset()


class AmqpRoutes:
    """All consumers' routes to one broker, kept as long as it runs: replays use the same consumers. Closed by the owner."""

    def __init__(self, owner: Owner, port: int, emit: Emit) -> None:
        self._owner = owner
        self._port = port
        self._emit = emit
        self._loop = ProxyLoop()
        owner.push(self._loop.close)
        self._routes: dict[str, AmqpRoute] = {}

    def of(self, consumer: str) -> AmqpRoute:
        """The consumer's route; the first call opens it."""
        if consumer not in self._routes:
            (port,) = lease(self._owner, 1)
            target = Target("amqp", HOST, self._port)
            proxy = FrameProxy(self._loop, f"amqp-{consumer}", (HOST, port), target, Board(), emit=self._emit)
            proxy.open()
            self._routes[consumer] = AmqpRoute(proxy)
        return self._routes[consumer]

    def check(self) -> None:
        """Raise `EnvironmentProblem` if the proxy itself failed or refused a connection."""
        refused = [sentence for proxy in self._loop.proxies for sentence in proxy.refusals]
        if self._loop.failures or refused:
            raise EnvironmentProblem(
                f"the protocol proxy failed: {'; '.join([*self._loop.failures, *refused])}",
                hint="a consumer must speak plain AMQP 0-9-1 to the address in ONCEPROOF_AMQP_URL; if it does, this is a "
                "defect in onceproof: please report it with events.jsonl",
            )
