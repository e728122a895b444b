"""Partition: where it can be placed, and when it affects the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.base.errors import WaitTimeout
from onceproof.chaos.partition.leader import LeaderPartition, PartitionSpec
from onceproof.chaos.partition.postgres import PostgresPartition, PostgresPartitionSpec
from onceproof.faults.contract import Occurrence, SpecProblem, needs_control, needs_proxy, reads_frames
from onceproof.judge.findings import Outcome
from onceproof.run import Result
from onceproof.scenario.model import FaultSpec
from onceproof.scenario.points import Point
from onceproof.stack.api import Leadership
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


def test_a_cut_from_clients_needs_the_protocol_proxy_but_arms_no_rule(
    spec_of: Callable[[dict[str, Any]], FaultSpec],
) -> None:
    for spec, needed in ((SPEC, True), (POSTGRES, True), ({**SPEC, "from": "cluster"}, False)):
        scenario: Any = SimpleNamespace(input=["orders"], chaos=[spec_of(spec)])
        assert needs_proxy(scenario) is needed and not reads_frames(scenario.chaos)
        scenario.input.append("payments")
        assert needs_proxy(scenario), "the chunks of several topics are held back together"


class Cut:
    """A protocol proxy whose clients are these."""

    listen = "127.0.0.1:1"

    def __init__(self, *clients: str) -> None:
        self.clients = set(clients)

    def note_requests(self) -> None:
        raise NotImplementedError

    def requesting(self) -> set[str]:
        return self.clients

    def heal(self) -> None:
        pass


@pytest.mark.parametrize("target", ["leader", "postgres"])
@pytest.mark.parametrize("clients", [(), ("127.0.0.1:5000",)])
def test_a_cut_that_no_request_met_is_a_miss(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence], target: str, clients: tuple[str, ...]
) -> None:
    proxy = Cut(*clients)
    timeline = SimpleNamespace(now=lambda: 9.0, emit=lambda *_, **__: None)
    postgres = SimpleNamespace(proxy=proxy, rejoin=lambda: None)
    job = SimpleNamespace(starts=1, pids=list)
    context: Any = SimpleNamespace(timeline=timeline, job=job, stack=SimpleNamespace(postgres=postgres))
    of = f"onceproof.chaos.partition.{target}"
    for name, value in (("committed", False), ("is_connected", True), ("wait_for_commit", "it was committed")):
        monkeypatch.setattr(f"{of}.{name}", lambda *_, value=value: value)
    fault: Any
    if target == "leader":
        fault = LeaderPartition(PartitionSpec.model_validate(SPEC))
        fault._proxy, fault._before = proxy, Leadership(1, 1)
    else:
        fault = PostgresPartition(PostgresPartitionSpec.model_validate(POSTGRES))
        fault._how = "its packets were dropped"
    fault._open = True
    proof = fault.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit is bool(clients), proof.evidence
    assert ("127.0.0.1:5000" in str(proof.evidence)) is bool(clients)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (Leadership(1, 1), "it did not need the leader"),
        (Leadership(2, 2), "leadership of out/0 moved from broker 1 (epoch 1) to broker 2 (epoch 2)"),
        (Leadership(1, 2), "broker 1 lost the leadership of out/0 and was elected again (epoch 1, then 2)"),
        (None, "afterwards no leader of out/0 could be found"),
    ],
)
def test_a_batch_that_did_not_wait_is_explained_by_the_leader_of_that_moment(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence], now: Leadership | None, why: str
) -> None:
    healed: list[str] = []

    def leader(topic: str, partition: int) -> Leadership:
        assert (topic, partition) == ("out", 0)
        assert healed == ["broker.back"], "the job must not stay cut off while the brokers are asked"
        if now is None:
            raise WaitTimeout("a leader of out-0: 30 s")
        return now

    timeline = SimpleNamespace(now=lambda: 3.5, emit=lambda kind, **_: healed.append(kind))
    job = SimpleNamespace(starts=1, pids=list)
    context: Any = SimpleNamespace(
        timeline=timeline, job=job, stack=SimpleNamespace(kafka=SimpleNamespace(leader=leader))
    )
    for name, value in (("committed", True), ("is_connected", True)):
        monkeypatch.setattr(f"onceproof.chaos.partition.leader.{name}", lambda *_, value=value: value)
    fault = LeaderPartition(PartitionSpec.model_validate(SPEC))
    fault._proxy, fault._before, fault._open = Cut("127.0.0.1:5000"), Leadership(1, 1), True  # type: ignore[assignment]
    proof = fault.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and proof.evidence[0].startswith("batch 2 committed 3.5 s into the partition: ")
    assert why in proof.evidence[0]


@pytest.mark.real
@pytest.mark.services
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "proof"),
    [
        ("postgres-cut-off.yaml", "Postgres was cut off from its clients"),
        pytest.param("broker-cut-off.yaml", "leadership of copies/0 moved", marks=pytest.mark.full),
    ],
)
def test_a_job_that_waits_for_a_service_holds(run_once: Callable[[str | Path], Result], name: str, proof: str) -> None:
    verdict = run_once(Path(__file__).parents[1] / "scenarios" / name).verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert [fault.hit for fault in verdict.faults] == [True]
    assert any(str(item).startswith(proof) for item in verdict.faults[0].evidence), verdict.faults[0].evidence
