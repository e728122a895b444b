"""The metrics of a watch for Prometheus, on loopback only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from onceproof.base.errors import UsageError

#: Only this machine can read them: names of topics and outputs are in them.
ADDRESS = "127.0.0.1"
#: The anomalies that a watch can find.
FOUND = ("duplicate", "lost-write", "unexplained", "wrong-value")


class Metrics:
    """The counters and gauges of one watch. They are counted whether or not anything reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        records, windows = "Records read, by input topic or output.", "Settled windows: equal, unequal or unjudged."
        self.records = Counter("onceproof_watch_records", records, ["place"], registry=self.registry)
        self.windows = Counter("onceproof_watch_windows", windows, ["result"], registry=self.registry)
        self.findings = Counter(
            "onceproof_watch_findings",
            "Rows or records that violate the claim, when they were found.",
            ["anomaly", "output"],
            registry=self.registry,
        )
        self.late = Counter(
            "onceproof_watch_late_rows", "Rows reported as lost that have arrived.", ["output"], registry=self.registry
        )
        self.lag = Gauge(
            "onceproof_watch_lag_seconds", "Age of the newest input that is judged.", registry=self.registry
        )
        self.behind = Gauge(
            "onceproof_watch_offsets_behind", "Offsets not read yet, by input topic or output.", ["place"], registry=self.registry
        )  # fmt: skip
        self.waiting = Gauge(
            "onceproof_watch_waiting_records", "Records held until their window is settled.", registry=self.registry
        )
        self.open = Gauge(
            "onceproof_watch_unsettled_windows", "Windows that are closed and not settled.", registry=self.registry
        )


@contextmanager
def served(metrics: Metrics, port: int | None) -> Iterator[int | None]:
    """Serve the metrics at ``http://127.0.0.1:PORT/metrics`` during the block; port 0 takes any free one, None serves nothing.

    Yields the port. Raises `UsageError` if it is in use.
    """
    if port is None:
        yield None
        return
    try:
        server, thread = start_http_server(port, addr=ADDRESS, registry=metrics.registry)
    except OSError as error:
        raise UsageError(
            f"--metrics {port}: this port cannot be used: {error.strerror}", hint="choose another port, or 0 for any"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
