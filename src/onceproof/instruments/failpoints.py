"""The harness's end of the failpoints in `onceproof.sinks`: a Unix socket on which a sink reports its point, and waits.

Per call the sink opens one connection, sends one line of JSON and reads one line. It stays parked until that line arrives.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceproof.base.line_server import LineServer
from onceproof.scenario.points import Point


@dataclass(frozen=True)
class SinkEvent:
    """Something a sink reported: ``commit-failed``, ``committed``, ``skipped``."""

    event: str
    sink: str
    batch: int
    query: str
    """Spark's id of the query, as the sink knows it; the controller puts the checkpoint's name in its place."""
    facts: dict[str, Any]
    at: float


@dataclass(frozen=True)
class Parked:
    """A sink that reached a point and waits for `release`."""

    point: Point
    sink: str
    batch: int
    query_id: str
    facts: dict[str, Any]
    release: Callable[[], None]


class FailpointServer:
    """Serves the socket at ``path`` (see `LineServer`)."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        on_point: Callable[[Parked], None],
        on_sink_event: Callable[[SinkEvent], None],
    ) -> None:
        self.path = path
        self._closing = threading.Event()
        self._parked: set[threading.Event] = set()

        def serve(sink: socketserver.StreamRequestHandler) -> None:
            line = sink.rfile.readline()
            if not line:
                return
            report = json.loads(line)
            if "event" in report:
                facts = report.get("facts", {})
                on_sink_event(
                    SinkEvent(report["event"], report["sink"], report["batch"], report["query_id"], facts, clock())
                )
            else:
                self._park(report, on_point)
            with contextlib.suppress(OSError):  # the sink's process may have been killed while it was parked
                sink.wfile.write(b"go\n")

        self._server = LineServer(path, "failpoints", serve)

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        """Release every parked sink and stop serving. Idempotent."""
        self._closing.set()
        for gate in list(self._parked):
            gate.set()
        self._server.close()

    def _park(self, report: dict[str, Any], on_point: Callable[[Parked], None]) -> None:
        gate = threading.Event()
        self._parked.add(gate)
        if self._closing.is_set():
            gate.set()
        point = Point(report["point"])
        on_point(Parked(point, report["sink"], report["batch"], report["query_id"], report.get("facts", {}), gate.set))
        gate.wait()
        self._parked.discard(gate)
