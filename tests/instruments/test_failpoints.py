"""The harness's end of the failpoints, over a real Unix socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceproof.base.waiting import wait_until
from onceproof.instruments.failpoints import FailpointServer, Parked, SinkEvent
from onceproof.scenario.points import Point


class Received:
    def __init__(self) -> None:
        self.parked: list[Parked] = []
        self.events: list[SinkEvent] = []


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def server(tmp_path: Path, received: Received) -> Iterator[FailpointServer]:
    one = FailpointServer(
        tmp_path / "s", clock=lambda: 2.0, on_point=received.parked.append, on_sink_event=received.events.append
    )
    one.start()
    yield one
    one.close()


def report(path: Path, answered: threading.Event | None = None, **message: object) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(json.dumps(message).encode() + b"\n")
        answer = client.recv(10)
    if answered is not None:
        answered.set()
    return answer


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_sink_stays_parked_until_it_is_released(server: FailpointServer, received: Received) -> None:
    answered = threading.Event()
    in_thread(
        lambda: report(
            server.path,
            answered,
            point="before-sink-commit",
            sink="postgres",
            batch=3,
            query_id="q",
            facts={"xid": "7"},
        )
    )
    wait_until("the sink to park", lambda: received.parked, deadline_s=5)
    parked = received.parked[0]
    assert (parked.point, parked.sink, parked.batch, parked.facts) == (
        Point.BEFORE_SINK_COMMIT,
        "postgres",
        3,
        {"xid": "7"},
    )
    assert not answered.wait(0.2)
    parked.release()
    parked.release()  # idempotent
    assert answered.wait(5)


def test_sink_events_are_answered_at_once(server: FailpointServer, received: Received) -> None:
    answer = report(
        server.path, event="commit-failed", sink="kafka", batch=1, query_id="q", facts={"error": "timed out"}
    )
    assert answer == b"go\n"
    assert received.events == [SinkEvent("commit-failed", "kafka", 1, "q", {"error": "timed out"}, 2.0)]


def test_closing_releases_parked_sinks(server: FailpointServer, received: Received) -> None:
    thread = in_thread(lambda: report(server.path, point="before-sink-commit", sink="kafka", batch=1, query_id="q"))
    wait_until("the sink to park", lambda: received.parked, deadline_s=5)
    server.close()
    thread.join(5)
    assert not thread.is_alive()


def test_closing_a_server_that_never_served_does_not_hang(tmp_path: Path) -> None:
    one = FailpointServer(tmp_path / "s", clock=lambda: 2.0, on_point=print, on_sink_event=print)
    thread = in_thread(one.close)
    thread.join(5)
    assert not thread.is_alive() and not one.path.exists()
