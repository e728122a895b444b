"""Toxiproxy: the server as a process of the run, and its proxies.

It uses only the HTTP part of toxiproxy-python; ``docs/decisions/0002-toxiproxy-client.md`` says why.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

import requests
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, UsageError
from onceproof.base.waiting import wait_until
from onceproof.stack.api import Stream
from onceproof.stack.processes.owner import Owner, Service

#: Every call is local and takes milliseconds. One that takes longer waits for a link whose client has stopped reading, and
#: may never end (Shopify/toxiproxy issue 558); the server itself gives up only after 25 s.
_HTTP_TIMEOUT_S = 3.0

_Method = Literal["get", "post", "delete"]
Emit = Callable[..., object]


class ToxiproxyServer:
    """One toxiproxy-server on its own loopback port. Stopped by its owner."""

    def __init__(self, service: Service, port: int, emit: Emit) -> None:
        self.service = service
        self.port = port
        self.emit = emit
        # The library stores host and port on the class: one class per server allows several in one process.
        self._http = type("ServerApi", (APIConsumer,), {"host": "127.0.0.1", "port": port})

    @classmethod
    def start(cls, owner: Owner, binary: Path, log: Path, port: int, emit: Emit = lambda _kind, **_data: None) -> Self:
        """Start ``binary`` with its API on 127.0.0.1:``port``, and wait until it answers.

        ``emit(kind, **data)``, as `Timeline.emit`, is called when a wedged proxy had to be recreated.
        Raises `ServiceFailed` with the last log lines.
        """
        service = owner.start("toxiproxy", [binary, "-host", "127.0.0.1", "-port", str(port)], log=log)
        server = cls(service, port, emit)

        wait_until(
            "toxiproxy-server to answer",
            server.version,
            deadline_s=30,
            ignoring=(ServiceFailed, Wedged),
            abandon=lambda: service.check_starting("toxiproxy-server", f"127.0.0.1:{port}"),
        )
        return server

    def create(self, name: str, listen_port: int, upstream_port: int) -> ToxiproxyProxy:
        """Create a proxy from 127.0.0.1:``listen_port`` to 127.0.0.1:``upstream_port``; upstream need not listen yet."""
        proxy = ToxiproxyProxy(self, name, f"127.0.0.1:{listen_port}", f"127.0.0.1:{upstream_port}")
        proxy.create()
        return proxy

    def version(self) -> str:
        return str(self.call("get", "/version")["version"])

    def changed(self) -> list[tuple[str, str]]:
        """Proxies that are cut or have toxics, as the server reports them: name, and what is changed about it."""
        found = []
        for name, proxy in self.call("get", "/proxies").items():
            if not proxy["enabled"]:
                found.append((name, "is cut"))
            if proxy["toxics"]:
                found.append((name, f"has toxic {', '.join(toxic['name'] for toxic in proxy['toxics'])}"))
        return found

    def call(self, method: _Method, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make one API call; return the parsed answer, or None if it is empty.

        Raises `Wedged` if the server does not answer in time, `NotFound`, `UsageError` for a request that it refuses,
        `EnvironmentProblem` if it fails (a port is in use), `ServiceFailed` if the server is gone.
        """
        # Not through the environment's proxies (HTTP_PROXY, ALL_PROXY): they are for other machines.
        options: dict[str, Any] = {"timeout": _HTTP_TIMEOUT_S, "proxies": {"http": None, "all": None}}
        if body is not None:
            options["json"] = body
        try:
            answer: requests.Response = getattr(self._http, method)(path, **options)
        except requests.Timeout as late:
            raise Wedged(f"no answer within {_HTTP_TIMEOUT_S:g} s") from late
        except requests.ConnectionError as gone:
            raise ServiceFailed(
                f"toxiproxy-server does not answer on 127.0.0.1:{self.port}", log_tail=self.service.log_tail()
            ) from gone
        except (InvalidToxic, ProxyExists) as refused:
            raise UsageError(f"Toxiproxy refuses {method.upper()} {path}: {_error_text(refused.args[0])}") from refused
        if answer.status_code == requests.codes.service_unavailable:
            raise Wedged("503 Service Unavailable")
        if not answer.ok:
            raise EnvironmentProblem(f"Toxiproxy cannot do {method.upper()} {path}: {_error_text(answer.content)}")
        return answer.json() if answer.content else None


class Wedged(EnvironmentProblem):
    """Toxiproxy did not answer in time: the change waits for a client that has stopped reading, and never ends."""


class ToxiproxyProxy:
    """Implements `onceproof.stack.api.Proxy`. Created by `ToxiproxyServer.create`; safe from any thread.

    It remembers the wanted state, so that a wedged proxy can be deleted and created again in that state. That works at
    once, and waiting would not help (the change hangs forever), but it closes the proxy's connections.
    """

    def __init__(self, server: ToxiproxyServer, name: str, listen: str, upstream: str) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self._server = server
        self._enabled = True
        self._toxics: dict[str, dict[str, Any]] = {}
        """Name -> the toxic, as the server takes it."""
        self._lock = threading.RLock()

    def create(self) -> None:
        """Create it on the server in the wanted state."""
        with self._lock:
            body = {"name": self.name, "listen": self.listen, "upstream": self.upstream, "enabled": self._enabled}
            self._server.call("post", "/proxies", body)
            for toxic in self._toxics.values():
                self._server.call("post", f"/proxies/{self.name}/toxics", toxic)

    def cut(self) -> None:
        """Close every connection and refuse new ones. Also works while a client has stopped reading."""
        with self._lock:
            self._enabled = False
            self._change("cut", "post", "", {"enabled": False})

    def reject_clients(self) -> None:
        """The same as `cut`, because no protocol proxy is in front of it."""
        self.cut()

    def add_toxic(self, kind: str, stream: Stream, **attributes: int) -> None:
        """Put a toxic on one direction. It replaces one of the same kind and direction, and its counters start at zero.

        Raises `UsageError` for a kind that Toxiproxy does not know.
        """
        name = f"{kind}_{stream}"
        toxic = {"name": name, "type": kind, "stream": stream, "attributes": attributes}
        with self._lock:
            if self._toxics.pop(name, None) is not None:
                self._change(f"replace {name}", "delete", f"/toxics/{name}")
            self._toxics[name] = toxic
            try:
                self._change(f"add {name}", "post", "/toxics", toxic)
            except UsageError:
                del self._toxics[name]
                raise

    def heal(self) -> None:
        """Remove the toxics, then enable the proxy, so that no new connection meets a toxic. Idempotent."""
        with self._lock:
            for name in list(self._toxics):
                del self._toxics[name]
                self._change(f"remove {name}", "delete", f"/toxics/{name}")
            if not self._enabled:
                self._enabled = True
                self._change("enable", "post", "", {"enabled": True})

    def redirect(self, upstream: str) -> None:
        """Lead clients to another listener. Toxiproxy closes the open connections."""
        with self._lock:
            self.upstream = upstream
            self._change("redirect", "post", "", {"upstream": upstream})

    def _change(self, what: str, method: _Method, path: str, body: dict[str, Any] | None = None) -> None:
        try:
            self._server.call(method, f"/proxies/{self.name}{path}", body)
        except (Wedged, NotFound) as trouble:
            # NotFound: an earlier recreation has removed the toxic, or the recreation of the proxy was interrupted.
            self._recreate(what, "not found" if isinstance(trouble, NotFound) else trouble.message)

    def _recreate(self, what: str, why: str) -> None:
        with suppress(NotFound):
            self._server.call("delete", f"/proxies/{self.name}")
        self.create()
        # An event of the harness: the connections of this proxy were closed although no scenario asked for it.
        self._server.emit("harness.proxy-recreated", proxy=self.name, doing=what, why=why)

    def __repr__(self) -> str:
        return f"<ToxiproxyProxy {self.name} {self.listen} -> {self.upstream}>"


def _error_text(content: bytes) -> str:
    """The ``error`` of Toxiproxy's JSON answer, or the answer itself: not all of its errors are JSON."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace").strip()
