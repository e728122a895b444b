"""Questions about consumer groups that nobody answers. Runs of consumers ask real brokers."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.kafka.groups import describe_group


class Counting(AdminClient):
    """Counts the questions about groups."""

    asked = 0

    def describe_consumer_groups(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return super().describe_consumer_groups(*args, **options)


def test_a_question_that_is_not_answered_is_asked_again_until_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers nothing
        admin = Counting({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "log_level": 0})
        with pytest.raises(
            EnvironmentProblem,
            match=r"^Kafka did not report the members of group g within 3 s; Kafka's client: .*imed out",
        ):
            describe_group(admin, "g", within_s=3.0)
    assert admin.asked >= 2
