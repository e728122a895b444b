"""The protocol proxy in front of Toxiproxy: client -> frames -> bytes -> service, for the connections of a pipeline.

In this order, because a client must see a real RST (through Toxiproxy it would be a FIN), and because a frame that is
delivered late must still pass through Toxiproxy's toxics. Not every run has it: see
`onceproof.faults.contract.needs_proxy`.
"""

from __future__ import annotations

import os
from ssl import SSLContext

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Service, Target
from onceproof.instruments.proxy.rules import Board
from onceproof.instruments.proxy.tls import UpstreamTls
from onceproof.stack.api import Proxy, Stream
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.selftest import Guard


class Frames:
    """All protocol proxies of one stack, and the rules armed on them. Closed by the owner."""

    def __init__(self, owner: Owner, emit: Emit, host: str = HOST) -> None:
        """``host``: the address of this machine on which the listeners for clients are."""
        self._owner = owner
        self.host = host
        self.emit = emit
        self.loop = ProxyLoop()
        owner.push(self.loop.close)
        self._boards: dict[Service, Board] = {"kafka": Board(), "postgres": Board(), "object-store": Board()}
        self.topic_names: dict[bytes, str] = {}
        self.proxies: list[FramedProxy] = []

    def in_front_of(
        self,
        behind: Proxy,
        service: Service,
        *,
        client_tls: SSLContext | None = None,
        upstream_tls: UpstreamTls | None = None,
    ) -> FramedProxy:
        """A new listener, for clients, that forwards to ``behind``; for TLS see `FrameProxy`."""
        (port,) = lease(self._owner, 1)
        host, _, behind_port = behind.listen.rpartition(":")
        frames = FrameProxy(
            self.loop,
            behind.name,
            (self.host, port),
            Target(service, host, int(behind_port)),
            self._boards[service],
            emit=self.emit,
            topic_names=self.topic_names,
            client_tls=client_tls,
            upstream_tls=upstream_tls,
        )
        frames.open()
        return self.add(FramedProxy(behind, frames))

    def add(self, proxy: FramedProxy) -> FramedProxy:
        """Add a proxy that was made elsewhere, on this loop and with the `board` of its service."""
        self.proxies.append(proxy)
        return proxy

    def board(self, service: Service) -> Board:
        """The rules for all connections to that service, open ones too, and the listeners to what it answers."""
        return self._boards[service]

    def forget(self) -> None:
        """End every rule and forget the names of topics: an execution has ended, and another one begins."""
        for board in self._boards.values():
            board.clear()
        self.topic_names.clear()
        for proxy in self.proxies:
            proxy.frames.incidents.clear()  # each is reported once, and the next execution has its own
            proxy.frames.requesting = None

    def leftovers(self) -> list[str]:
        """What an execution left, as phrases; nothing after `forget`."""
        found = [f"the protocol proxy has rules for {name}" for name, board in self._boards.items() if board.in_use]
        found += [f"the protocol proxy {one.name} resets connections" for one in self.proxies if one.frames.rejecting]
        return found

    def refusals(self) -> list[str]:
        """Why connections were refused (encryption), each with the setting to change."""
        return [sentence for proxy in self.proxies for sentence in proxy.frames.refusals]

    def check(self) -> None:
        """Raise `EnvironmentProblem` if the proxy itself failed or refused a connection."""
        if self.loop.failures:
            raise EnvironmentProblem(
                f"the protocol proxy failed: {'; '.join(self.loop.failures)}",
                hint="this is a defect in onceproof: please report it with events.jsonl",
            )
        if self.refusals():
            raise EnvironmentProblem(
                "; ".join(self.refusals()),
                hint="embedded services use plaintext; on a stack with TLS the job must use the settings of {kafka.properties}",
            )

    def guards(self) -> list[Guard]:
        """Toxiproxy's listeners, which only the protocol proxy may use."""
        return [
            Guard(proxy.frames.target.next_hop[1], f"Toxiproxy's {proxy.name}", frozenset({os.getpid()}))
            for proxy in self.proxies
        ]


class FramedProxy:
    """Implements `onceproof.stack.api.Proxy`: the proxy behind it changes bytes, this one handles frames."""

    def __init__(self, behind: Proxy, frames: FrameProxy) -> None:
        self.name = behind.name
        self.listen = f"{frames.host}:{frames.port}"
        self.upstream = behind.upstream
        self.frames = frames
        self.behind = behind

    def cut(self) -> None:
        """Cut both proxies: a client that connects must be refused, not accepted and dropped."""
        self.behind.cut()
        self.frames.cut()

    def reject_clients(self) -> None:
        """Record and reset new connections, and existing ones on their next read or write, until `heal`."""
        self.frames.reject_clients()

    def note_requests(self) -> None:
        """From now on collect the clients that need an answer, for `requesting`."""
        self.frames.note_requests()

    def requesting(self) -> set[str]:
        """The addresses of clients that sent a request since `note_requests`, or waited for an answer then."""
        return set(self.frames.requesting or ())

    def add_toxic(self, kind: str, stream: Stream, **attributes: int) -> None:
        self.behind.add_toxic(kind, stream, **attributes)

    def redirect(self, upstream: str) -> None:
        self.behind.redirect(upstream)
        self.upstream = upstream

    def heal(self) -> None:
        self.behind.heal()
        self.frames.open()
