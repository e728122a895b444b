"""A leader that dies alone, a replica that lags or takes over: when each is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceproof.base.errors import ScenarioError, ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.chaos.consumers.failover import Failover, FailoverSpec
from onceproof.chaos.consumers.leader_crash import LeaderCrash, LeaderCrashSpec
from onceproof.chaos.consumers.replica_lag import ReplicaLag, ReplicaLagSpec
from onceproof.consumers.faults import StepDone
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.faults.contract import Proof
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.shipped import find
from onceproof.stack.api import Leadership

LOST, LAGS, MOVES = "unclean-election-of-input", "replica-lags", "failover-loses-commit"


def event(kind: Kind, message: int, *, of: str = "c1") -> TraceEvent:
    return TraceEvent(kind, 0, 0.0, of, message, "orders")


def proof_of(fault: Any, after: list[TraceEvent]) -> Proof:
    proof: Proof = fault.prove(None, StepDone(after, 0))
    return proof


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (LOST, "brokers: 3", "brokers: 1", r"a single broker has no followers.*\n.*set stack.kafka.brokers to 3"),
        (LOST, "min.insync.replicas: '1'", "min.insync.replicas: '2'", r"alone in sync must not acknowledge.*\n.*min.insync.replicas"),
        (LOST, "partitions: 1", "partitions: 2", r"the input has 2 partitions"),
        (LOST, "last: 3", "last: 2", r"message 2 is published before the fault strikes\n.*use 3 or more"),
        (LOST, "last: 3", "last: 9", r"there is no message 9"),
        (LOST, "broker: kafka-group", "broker: kafka-group, static: false", r"only static members"),
        (LAGS, "  postgres: {replica: asynchronous}", "  postgres: {}", r"this stack has no replica of Postgres\n.*replica: asynchronous"),
        (LAGS, "fault: replica-lag, target: c1, at: {message: 3}", "fault: replica-lag, target: c1, at: {message: 3, after: effect}", r"before c1 writes the effect of message 3\n.*use take"),
        (MOVES, "  postgres: {replica: synchronous}", "  postgres: {}", r"this stack has no replica of Postgres"),
        (MOVES, "at: {message: 3}}", "at: {message: 3}}\n  - {fault: failover, target: c1, at: {message: 4}}", r"no replica left that could take over\n.*keep one"),
    ],
)  # fmt: skip
def test_a_fault_that_cannot_work_is_refused(tmp_path: Path, name: str, old: str, new: str, expected: str) -> None:
    text = resolved(find(name))
    assert old in text, text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


def test_settings_of_a_topic_are_refused_for_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    text = resolved(find("amqp-queue-per-consumer"))
    path.write_text(text.replace("dataset: messages\n", "dataset: messages\n    config: {retention.ms: '1'}\n"))
    with pytest.raises(ScenarioError, match="config has settings of a topic of Kafka"):
        load(path)


def test_only_consumers_can_have_a_replica(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("base: naive-append\nstack: {postgres: {replica: asynchronous}}\n")
    with pytest.raises(ScenarioError, match=r"only consumers can read from a replica.*\n.*replica"):
        load(path)


def leader_crash(first: int | None, after: Leadership | None) -> LeaderCrash:
    fault = LeaderCrash(
        LeaderCrashSpec.model_validate({"fault": "leader-crash", "target": "c1", "at": {"message": 2}, "last": 3})
    )
    fault._topic, fault._before, fault._after, fault._first = "orders", Leadership(1, 0), after, first
    return fault


PUBLISHED = [event("publish", 3, of=""), event("publish", 4, of="")]


def test_a_dead_leader_hit_if_the_next_one_lacks_its_messages() -> None:
    proof = proof_of(leader_crash(2, Leadership(3, 1)), PUBLISHED)
    assert proof.hit and proof.evidence[1] == "it acknowledged message 3 alone, and was killed before c1 could read on"
    assert proof.evidence[-1] == "the new leader began at offset 2, without those from there on"
    assert not proof_of(leader_crash(3, Leadership(3, 1)), PUBLISHED).hit, "the new leader has message 3"
    slow = proof_of(leader_crash(2, Leadership(3, 1)), [*PUBLISHED, event("take", 3)])
    assert not slow.hit and slow.evidence[-1] == "c1 had already fetched message 3", "an open fetch was answered late"
    assert proof_of(leader_crash(2, Leadership(3, 1)), [*PUBLISHED, event("take", 4)]).hit


def test_a_dead_leader_hit_if_none_was_elected_until_it_was_back() -> None:
    assert proof_of(leader_crash(None, Leadership(1, 2)), PUBLISHED).hit
    assert not proof_of(leader_crash(None, Leadership(2, 2)), PUBLISHED).hit, "another one leads"
    assert not proof_of(leader_crash(None, None), []).hit, "it was never killed"


def replica_lag(lag: int) -> ReplicaLag:
    fault = ReplicaLag(ReplicaLagSpec.model_validate({"fault": "replica-lag", "target": "c1", "at": {"message": 3}}))
    replica: Any = SimpleNamespace(lag_bytes=lambda: lag)
    fault._replica = replica
    return fault


def test_a_replica_lagged_if_it_lacked_the_log_of_an_effect() -> None:
    effect, acknowledged = event("effect", 3), event("acknowledge", 3)
    fault = replica_lag(96)
    assert not fault.is_over([effect]) and fault.is_over([effect, acknowledged])
    proof = proof_of(fault, [effect, acknowledged])
    assert proof.hit and proof.evidence[1:] == (
        "when message 3 was acknowledged, the replica was 96 bytes of the log behind",
        "c1 wrote 1 effect of message 3 meanwhile",
    )
    none = replica_lag(0)
    assert none.is_over([acknowledged]) and not proof_of(none, [effect, acknowledged]).hit
    idle = replica_lag(96)
    assert idle.is_over([acknowledged]) and not proof_of(idle, [acknowledged]).hit, "it wrote nothing"
    assert not proof_of(replica_lag(96), [effect]).hit, "never acknowledged"


class Replica:
    """A replica that lacks 96 bytes of the log. ``waits``: whether a commit waits for it."""

    def __init__(self, waits: bool) -> None:
        self.waits = waits
        self.failovers = 0

    def follow(self) -> None: ...

    def stop_following(self) -> None: ...

    def lag_bytes(self) -> int:
        return 96

    def waiting_commits(self) -> int:
        return int(self.waits)

    def fail_over(self) -> None:
        self.failovers += 1


def failing_over(replica: Replica) -> Failover:
    fault = Failover(FailoverSpec.model_validate({"fault": "failover", "target": "c1", "at": {"message": 3}}))
    context: Any = SimpleNamespace(queues=SimpleNamespace(replica=replica))
    fault.strike(context, StepDone([], 0))
    return fault


def test_a_failover_comes_after_the_answer_to_a_commit() -> None:
    replica = Replica(waits=False)
    fault, context = failing_over(replica), cast("Any", None)
    assert not fault.is_over([event("publish", 4)]) and replica.failovers == 0
    assert fault.is_over([event("effect", 3)]) and fault.is_over([event("effect", 3)])
    fault.heal(context)
    assert replica.failovers == 1
    proof = proof_of(fault, [event("effect", 3), event("effect", 4)])
    assert proof.hit and proof.evidence[1:] == (
        "the primary was killed when it had answered the commit, and the replica was promoted without 96 bytes of its log",
        "consumers wrote 1 more effect after that, to the new primary",
    )
    assert not proof_of(fault, [event("end", 3)]).hit, "the effect never came"


def test_a_failover_comes_while_a_commit_waits_for_the_replica() -> None:
    replica = Replica(waits=True)
    fault = failing_over(replica)
    wait_until("the failover", lambda: replica.failovers, deadline_s=10)
    assert fault.is_over([event("effect", 3)]) and replica.failovers == 1
    fault.heal(cast("Any", None))
    assert "killed while the commit waited for the replica" in str(proof_of(fault, [event("effect", 3)]).evidence[1])


def test_without_an_effect_there_is_no_failover() -> None:
    fault = failing_over(Replica(waits=False))
    fault.heal(cast("Any", None))
    assert proof_of(fault, []).evidence[-1] == "the primary was not killed"


def test_a_replica_that_could_not_take_over_is_a_miss_with_the_reason() -> None:
    class Broken(Replica):
        def fail_over(self) -> None:
            self.failovers += 1
            raise ServiceFailed("the replica of Postgres was not promoted within 60 s")

    replica = Broken(waits=True)
    fault = failing_over(replica)
    wait_until("the failover", lambda: replica.failovers, deadline_s=10)
    fault.heal(cast("Any", None))
    proof = proof_of(fault, [event("effect", 3)])
    assert not proof.hit
    assert proof.evidence[-1] == "the replica did not take over: the replica of Postgres was not promoted within 60 s"
