"""Questions about consumer groups that nobody answers. Runs of consumers ask real brokers."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.kafka.groups import describe_group, has_coordinator


def test_a_broker_that_does_not_answer_is_asked_again_until_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers nothing
        asked: list[int] = []

        def address(broker: int) -> str:
            asked.append(broker)
            return f"127.0.0.1:{silent.getsockname()[1]}"

        kafka: Any = SimpleNamespace(brokers=[1], harness_address=address)
        assert not has_coordinator(kafka, "g")
        with pytest.raises(
            EnvironmentProblem,
            match=r"^Kafka did not answer a request about group g within 3 s; the last reason: timed out$",
        ):
            describe_group(kafka, "g", within_s=3.0)
    assert len(asked) >= 3


def test_a_broker_that_is_away_is_an_environment_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    kafka: Any = SimpleNamespace(brokers=[1], harness_address=lambda _broker: f"127.0.0.1:{port}")
    with pytest.raises(EnvironmentProblem, match=r"the last reason: .*refused"):
        describe_group(kafka, "g", within_s=0.2)
