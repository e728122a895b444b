"""Partition: where it can be placed, and when it affects the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic import ValidationError

from onceproof.chaos.partition import PartitionSpec, _connected
from onceproof.faults.contract import SpecProblem

SPEC: dict[str, Any] = {
    "fault": "partition",
    "target": "leader",
    "leader_of": "out/0",
    "at": {"batch": 2, "point": "after-offset-log"},
}


def test_a_cluster_partition_needs_three_brokers_and_a_client_partition_one(
    problems: Callable[..., list[SpecProblem]],
) -> None:
    assert problems({**SPEC, "from": "cluster"}, brokers=3) == []
    assert problems({**SPEC, "from": "clients"}, brokers=1) == []
    assert problems({**SPEC, "from": "cluster"}, brokers=1)[0].loc == ("target",)


def test_it_begins_when_a_batch_is_planned(problems: Callable[..., list[SpecProblem]]) -> None:
    spec = {**SPEC, "at": {"batch": 2, "point": "after-sink-commit"}}
    assert problems(spec)[0].loc == ("at", "point")


@pytest.mark.parametrize("change", [{"from": "everybody"}, {"for_s": 0}, {"for_s": 61}, {"leader_of": "out"}])
def test_values_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PartitionSpec.model_validate({**SPEC, **change})


@dataclass
class Listening:
    listen: str


def test_only_processes_with_a_connection_to_the_proxy_count_as_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = cast(Any, Listening(f"127.0.0.1:{server.getsockname()[1]}"))
        assert not _connected([os.getpid()], proxy)
        with socket.create_connection(server.getsockname()):
            assert _connected([os.getpid()], proxy)
        assert not _connected([], proxy)
