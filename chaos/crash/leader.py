"""Crash of a partition's leader while only it has records of the batch: the records that it acknowledged alone are lost.

When the batch is planned, its followers' fetches and its link to the controller are cut, so that it can neither replicate nor
remove its followers from the in-sync replicas. It is killed once it has appended records of the batch and acknowledged all that
it will. That is how acks=1 loses records (Jepsen's Kafka report of 2013; Kafka documentation, Replication).

With ``in_sync: leader`` its link to the controller stays: once its followers lag, the controller removes them from the in-sync
replicas, and "all replicas in sync" is the leader alone. The records that it then acknowledges are lost with it if another
broker may be elected uncleanly; if not, the partition has no leader until it is back (KIP-966; Jepsen's Kafka report of 2013).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence import leadership
from onceproof.faults.frames import AtItsFrame, wait_for_commit
from onceproof.faults.placement import LeaderOf, committed, is_open, leader_problems, placement_at, split_leader_of
from onceproof.instruments.proxy.frames import Frame, Reply
from onceproof.instruments.proxy.rules import Condition, Rule
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Leadership, Proxy, Replicas
from onceproof.stores.kafka.partition_log import PartitionLog

_WRITES_S = 60.0
"""Limit for the time from a batch's plan to its first record in the output; under two seconds on an idle machine."""
_UNACKNOWLEDGED_S = 1.0
"""A leader that waits for its cut-off followers never acknowledges. One that is asked for its own acknowledgement alone is waited for
longer: on a loaded machine it may take this time."""
_SHRINK_S = 30.0
"""Followers are removed from the in-sync replicas when they have lagged for 1.5 s (replica.lag.time.max.ms of the preset)."""
_NOTED_S = 10.0
"""A new leader records its epoch when it begins to lead, before it answers requests."""


class LeaderCrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["broker"]
    leader_of: LeaderOf | None = Field(None, description="TOPIC/PARTITION whose leader is struck")
    in_sync: Literal["leader"] | None = Field(
        None,
        description="leader: it dies once it is the only replica in sync; by default it dies while the controller still counts "
        "all replicas as in sync",
    )


@faults.register("crash", "broker", Point.IN_TASKS)
class LeaderCrash(AtItsFrame):
    """The leader dies while it alone has records of the batch."""

    Spec: ClassVar[type[FaultSpec]] = LeaderCrashSpec
    about: ClassVar[str] = "SIGKILL of a partition's leader in the middle of tasks, with records that no follower has"

    def __init__(self, spec: LeaderCrashSpec) -> None:
        self._leader_of = spec.leader_of or ""  # `problems` refuses a spec without it
        self._shrinks = spec.in_sync == "leader"
        self._before: Leadership | None = None
        self._proxies: list[Proxy] = []
        self._heard: list[Reply] = []
        self._acks: set[int] = set()
        """Whose acknowledgement the requests to its topic asked for: 1 is the leader's alone."""
        self._requests: Rule | None = None
        self._folder = Path()
        self._size = 0
        self._open = False
        self._over = False
        self._lock = threading.Lock()

    @classmethod
    def needs_control(cls, spec: LeaderCrashSpec) -> str | None:
        return "the brokers' files"

    @classmethod
    def problems(cls, spec: LeaderCrashSpec, scenario: Scenario) -> list[SpecProblem]:
        leader_of = spec.leader_of
        problems = leader_problems(leader_of, scenario)
        if leader_of is not None and split_leader_of(leader_of)[0] in {one.topic for one in scenario.input}:
            message = f"no task of the pipeline writes to {leader_of}: it is an input"
            problems.append(SpecProblem(("leader_of",), message, "name a partition of an output topic"))
        topic = scenario.pipeline.prepare.topics.get((leader_of or "").rpartition("/")[0])
        if spec.in_sync == "leader" and topic is not None and topic.config.get("min.insync.replicas") != "1":
            message = (
                "a leader that is alone in sync must not acknowledge while the topic requires two replicas in sync"
            )
            hint = 'give the topic config: {min.insync.replicas: "1"} under pipeline: prepare: topics'
            problems.append(SpecProblem(("in_sync",), message, hint))
        return problems

    @classmethod
    def placement(cls, spec: LeaderCrashSpec, scenario: Scenario) -> Placement:
        proof = f"the leader of {spec.leader_of} had records of the batch that the next leader does not have"
        if spec.in_sync == "leader":
            proof = (
                f"the leader of {spec.leader_of} was alone in sync and had acknowledged records of the batch; the next "
                "leader does not have them, or none was elected until it came back"
            )
        how = placement_at(Point.AFTER_OFFSET_LOG, proof, scenario)
        why = "its replication is cut when the batch is planned, and it is killed when its log has grown"
        return Placement(how.exactness, f"Toxiproxy, {how.instrument} and protocol proxy", why, proof)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        kafka = context.stack.kafka
        topic, partition = split_leader_of(self._leader_of)
        with context.job.frozen():
            self._before = kafka.leader(topic, partition)
            broker = self._before.broker
            self._folder = kafka.log_folders(topic)[partition]
            self._proxies = [kafka.replication_proxy(broker)]
            self._proxies += [] if self._shrinks else [kafka.controller_proxy(broker)]
            for proxy in self._proxies:
                proxy.add_toxic("timeout", "upstream", timeout=0)
                proxy.add_toxic("timeout", "downstream", timeout=0)
            self._size = _bytes_in(self._folder)
            context.board("kafka").listen(self._heard)
            self._requests = Rule(Condition("Produce", topic=topic), "park", name="acks", proceed=self._note_acks)
            context.board("kafka").arm(self._requests)
            self._open = is_open(context, seen.query, seen.batch)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._before is not None
        before, kafka, n = self._before, context.stack.kafka, seen.batch
        topic, partition = split_leader_of(self._leader_of)
        if not self._open:
            return missed(f"batch {n} was no longer open when broker {before.broker} was cut off")

        def grown() -> int:
            return _bytes_in(self._folder) - self._size

        def raise_if_committed() -> None:
            if committed(context, seen.query, n) and not grown():
                raise WaitTimeout(f"batch {n} was committed without a record in {self._leader_of}")

        wait_until(
            f"the leader of {self._leader_of} to append records of batch {n}",
            grown,
            deadline_s=_WRITES_S,
            abandon=raise_if_committed,
        )
        if self._shrinks:
            wait_until(
                f"broker {before.broker} to be alone in sync",
                lambda: (now := kafka.replicas(topic, partition)) is not None and now.in_sync == {before.broker},
                deadline_s=_SHRINK_S,
                explain=lambda: f"{kafka.replicas(topic, partition)}",
            )
        acknowledged = self._wait_for_acknowledgements(context, seen)
        size, was_committed = grown(), committed(context, seen.query, n)
        with self._lock:
            if self._over:
                return missed(f"the run ended before broker {before.broker} could be killed")
            kafka.kill_broker(before.broker)
            context.timeline.emit("broker.away", broker=before.broker, how="killed")
        for proxy in self._proxies:  # only once the leader is dead: otherwise its followers would catch up
            proxy.heal()
        evidence = [
            f"broker {before.broker}, leader of {self._leader_of}, was killed with {size} bytes of batch {n} in its log",
            _describe_acknowledgements(acknowledged, self._allowed_s, alone=self._shrinks),
        ]
        if self._shrinks:
            evidence.insert(0, f"its followers lagged until broker {before.broker} was the only replica in sync")
            if not acknowledged:
                return missed(*evidence)
            if self._has_no_leader(context):
                return self._prove_waited(context, seen, size, was_committed, evidence)
        after = leadership.wait_for_new_leader(kafka, self._leader_of, before)
        follower = kafka.log_folders(topic)[partition]
        (first,) = wait_until(
            f"broker {after.broker} to record the offset at which it began to lead",
            lambda: led_from(follower, before.epoch),
            deadline_s=_NOTED_S,
        )
        with PartitionLog.open(self._folder) as log:
            lost = log.batch_of(first)
        if lost is None:
            why = f"broker {after.broker}, which leads from offset {first} on, had all these records"
            return missed(*evidence, why)
        evidence.append(
            f"broker {after.broker} began to lead at offset {first} without the dead leader's records from there on"
        )
        self.heal(context)
        evidence.append(leadership.describe_move(self._leader_of, before, after))
        return proven(*evidence, self._committed_then(context, seen, was_committed))

    def _has_no_leader(self, context: FaultContext) -> bool:
        """Whether no other broker was elected after the leader's death, because no other replica was in sync."""
        assert self._before is not None
        dead, (topic, partition) = self._before.broker, split_leader_of(self._leader_of)

        def decided() -> Replicas | None:
            now = context.stack.kafka.replicas(topic, partition, asking_not=dead)
            return now if now is not None and now.leader != dead else None

        found = wait_until(f"the end of broker {dead}'s leadership", decided, deadline_s=leadership.ELECTION_S)
        return found.leader == -1

    def _prove_waited(
        self, context: FaultContext, seen: Occurrence, size: int, was_committed: bool, evidence: list[str]
    ) -> Proof:
        """Prove that the remedy worked: the partition waited for the only replica that has all records."""
        assert self._before is not None
        before, (topic, partition) = self._before, split_leader_of(self._leader_of)
        evidence.append(f"no other broker was elected: {self._leader_of} had no leader")
        self.heal(context)
        after = context.stack.kafka.leader(topic, partition)
        if after.broker != before.broker or _bytes_in(self._folder) < self._size + size:
            return missed(*evidence, f"broker {after.broker} leads it now, without all of these records")
        evidence.append(f"broker {after.broker} came back with all these records and leads again (epoch {after.epoch})")
        return proven(*evidence, self._committed_then(context, seen, was_committed))

    @staticmethod
    def _committed_then(context: FaultContext, seen: Occurrence, was_committed: bool) -> str:
        before = f"batch {seen.batch} was committed by Spark before that"
        return before if was_committed else wait_for_commit(context, seen)

    def heal(self, context: FaultContext) -> None:
        with self._lock:  # `prove` must not kill the broker after this: nothing would restart it
            self._over = True
        for proxy in self._proxies:
            proxy.heal()
        context.board("kafka").unlisten(self._heard)
        if self._requests is not None:
            context.board("kafka").disarm(self._requests)
        if self._before is not None and not context.stack.kafka.is_running(self._before.broker):
            context.stack.kafka.restart_broker(self._before.broker)
            context.timeline.emit("broker.back", broker=self._before.broker)

    def _note_acks(self, frame: Frame) -> bool:
        """Called before the request goes on, and so before the leader has its records."""
        self._acks.add(frame.facts.get("acks", 0))
        return False  # do not stop it

    @property
    def _allowed_s(self) -> float:
        """How long to wait for the leader's first acknowledgement."""
        return _WRITES_S if self._shrinks or 1 in self._acks else _UNACKNOWLEDGED_S

    def _wait_for_acknowledgements(self, context: FaultContext, seen: Occurrence) -> list[Reply]:
        """The leader's acknowledgements: none, or all of the batch."""
        assert self._before is not None
        proxy = f"client-{self._before.broker}"

        def acknowledged() -> list[Reply]:
            return [r for r in list(self._heard) if (r.route, r.where, r.code) == (proxy, self._leader_of, "0")]

        try:
            wait_until("an acknowledgement", acknowledged, deadline_s=self._allowed_s)
        except WaitTimeout:
            return []
        wait_until(
            f"batch {seen.batch} to be committed after the leader's acknowledgements",
            lambda: committed(context, seen.query, seen.batch),
            deadline_s=_WRITES_S,
        )
        return acknowledged()


def led_from(folder: Path, epoch: int) -> list[int]:
    """The offset at which the first epoch after ``epoch`` began in this replica's log: its log end when it began to lead.

    Its broker records it in ``leader-epoch-checkpoint`` (version, count, then one ``epoch offset`` per line; KIP-101). Empty
    until then. Records that the new leader appends itself are not included.
    """
    try:
        lines = (folder / "leader-epoch-checkpoint").read_text(encoding="utf-8").splitlines()[2:]
    except FileNotFoundError:
        return []
    starts = [int(start) for began, start in (line.split() for line in lines) if int(began) > epoch]
    return [min(starts)] if starts else []


def _describe_acknowledgements(acknowledged: list[Reply], waited_s: float, *, alone: bool) -> str:
    if not acknowledged and alone:
        return f"it was alone in sync, but acknowledged none of these records within {waited_s:.0f} s"
    if not acknowledged:
        return f"it acknowledged none of these records within {waited_s:.0f} s: it waited for its followers"
    last = acknowledged[-1].message.partition(" ")[2]
    return f"it had acknowledged {len(acknowledged)} requests without its followers, the last {last}"


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))
