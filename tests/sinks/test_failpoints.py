from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.sinks import failpoints


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    # A short path, because that of a Unix socket may have at most 107 bytes.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        path = str(Path(folder) / "points")
        listening.bind(path)
        listening.listen()
        listening.settimeout(10)
        monkeypatch.setenv(failpoints.SOCKET_VARIABLE, path)
        yield listening


def call(function: Any, name: str, **facts: Any) -> threading.Thread:
    thread = threading.Thread(
        target=function, args=(name,), kwargs={"sink": "postgres", "batch": 3, "query_id": "q", **facts}, daemon=True
    )
    thread.start()
    return thread


def test_a_sink_waits_until_the_harness_answers(server: socket.socket) -> None:
    sink = call(failpoints.reach, "before-sink-commit", xid="741")
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as lines:
        assert json.loads(lines.readline()) == {
            "point": "before-sink-commit",
            "sink": "postgres",
            "batch": 3,
            "query_id": "q",
            "facts": {"xid": "741"},
        }
        sink.join(0.2)
        assert sink.is_alive()
        connection.sendall(b"go\n")
        sink.join(10)
    assert not sink.is_alive()


def test_a_sink_continues_when_the_harness_closes_the_connection(server: socket.socket) -> None:
    sink = call(failpoints.reach, "after-sink-commit")
    server.accept()[0].close()
    sink.join(10)
    assert not sink.is_alive()


def test_an_event_is_reported_with_its_facts(server: socket.socket) -> None:
    sink = call(failpoints.report, "commit-failed", error="OperationalError")
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as lines:
        message = json.loads(lines.readline())
    assert (message["event"], message["facts"]) == ("commit-failed", {"error": "OperationalError"})
    sink.join(10)
    assert not sink.is_alive()


def test_calls_return_at_once_without_a_harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(failpoints.SOCKET_VARIABLE, raising=False)
    failpoints.reach("after-offset-log", sink="kafka", batch=0, query_id="q")
    monkeypatch.setenv(failpoints.SOCKET_VARIABLE, str(tmp_path / "nobody"))
    failpoints.report("committed", sink="kafka", batch=0, query_id="q")
