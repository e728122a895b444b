"""Partition: where it can be placed, and when it affects the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.chaos.partition.leader import PartitionSpec
from onceproof.faults.contract import SpecProblem, needs_control
from onceproof.judge.findings import Outcome
from onceproof.run import Result
from onceproof.scenario.model import FaultSpec
from onceproof.stack.processes.connections import is_connected

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


POSTGRES = {"fault": "partition", "target": "postgres", "at": {"batch": 2, "point": "after-offset-log"}}


def test_postgres_can_be_cut_off_if_there_is_one(problems: Callable[..., list[SpecProblem]]) -> None:
    assert problems(POSTGRES) == []
    assert [problem.loc for problem in problems(POSTGRES, postgres=False)] == [("target",)]
    late = {**POSTGRES, "at": {"batch": 2, "point": "after-sink-commit"}}
    assert [problem.loc for problem in problems(late)] == [("at", "point")]
    (problem,) = problems({**POSTGRES, "leader_of": "out/0"})
    assert "does not apply to this partition of postgres" in problem.message


def test_only_a_cut_within_the_cluster_needs_control_of_it(spec_of: Callable[[dict[str, Any]], FaultSpec]) -> None:
    def needs(spec: dict[str, Any]) -> str | None:
        return needs_control(spec_of(spec))

    assert needs(SPEC) is None and needs(POSTGRES) is None
    assert needs({**SPEC, "from": "cluster"}) == "the links between brokers"
    assert needs({**SPEC, "from": "cluster", "lost": "to-leader"}) == "each direction of the links between brokers"


def test_only_processes_with_a_connection_to_the_listener_count_as_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = f"127.0.0.1:{server.getsockname()[1]}"
        assert not is_connected([os.getpid()], listener)
        with socket.create_connection(server.getsockname()):
            assert is_connected([os.getpid()], listener)
        assert not is_connected([], listener)


@pytest.mark.real
@pytest.mark.services
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "proof"),
    [
        ("postgres-cut-off.yaml", "Postgres was cut off from its clients"),
        ("broker-cut-off.yaml", "leadership of copies/0 moved"),
    ],
)
def test_a_job_that_waits_for_a_service_holds(run_once: Callable[[str | Path], Result], name: str, proof: str) -> None:
    verdict = run_once(Path(__file__).parents[1] / "scenarios" / name).verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert [fault.hit for fault in verdict.faults] == [True]
    assert any(str(item).startswith(proof) for item in verdict.faults[0].evidence), verdict.faults[0].evidence
