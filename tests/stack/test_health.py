"""Health checks while a fault kills a service in another thread: it is not a service that ended by itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import ServiceFailed
from onceproof.stack.compose.project import Project
from onceproof.stack.compose.stack import ComposeKafka
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.postgres import EmbeddedPostgres


class Process:
    """The process of a service. ``meanwhile`` happens after the check has begun, when it looks at the process."""

    def __init__(self, *, runs: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._runs = runs
        self._meanwhile = meanwhile

    def is_running(self) -> bool:
        self._meanwhile()
        return self._runs

    def check_running(self) -> None:
        if not self.is_running():
            raise ServiceFailed("it ended with exit code -9")


def kafka(process: Callable[[set[int]], Any], killed: set[int]) -> None:
    cluster: Any = SimpleNamespace(_killed=killed, nodes={1: SimpleNamespace(service=process(killed))})
    EmbeddedKafka.check_health(cluster)


def compose(process: Callable[[set[int]], Any], killed: set[int]) -> None:
    def nodes() -> dict[int, Any]:
        status = "running" if process(killed).is_running() else "exited"
        state = {"State": {"ExitCode": 137}}
        return {1: SimpleNamespace(name="kafka-1", status=status, attrs=state, logs=lambda tail: b"")}

    cluster: Any = SimpleNamespace(_killed=killed, _project=SimpleNamespace(nodes=nodes, check=Project.check))
    ComposeKafka.check_health(cluster)


def postgres(process: Callable[[set[int]], Any], killed: set[int]) -> None:
    class Server:
        service = process(killed)

        @property
        def is_away(self) -> bool:
            return 1 in killed

    server: Any = Server()
    EmbeddedPostgres.check_health(server)


CHECKS = pytest.mark.parametrize("check", [kafka, compose, postgres])


@CHECKS
def test_a_service_that_a_fault_kills_during_the_check_did_not_fail(check: Callable[..., None]) -> None:
    check(lambda killed: Process(runs=False, meanwhile=lambda: killed.add(1)), set())


@CHECKS
def test_a_service_that_is_started_again_during_the_check_did_not_fail(check: Callable[..., None]) -> None:
    check(lambda killed: Process(runs=False, meanwhile=lambda: killed.discard(1)), {1})


@CHECKS
def test_a_service_that_no_fault_killed_failed(check: Callable[..., None]) -> None:
    check(lambda _killed: Process(runs=True), set())
    with pytest.raises(ServiceFailed, match=r"ended with (exit )?code"):
        check(lambda _killed: Process(runs=False), set())
