"""Crash of a partition's leader while it alone has records of the batch: what it acknowledged by itself is gone with it.

Its followers' fetches and its link to the controller are cut when the batch is planned, so that it can neither replicate nor
take its followers off the in-sync replicas; it is killed once it has appended records of the batch, and acknowledged all that it
will. That is how acks=1 loses (Jepsen's Kafka report of 2013; Kafka documentation, Replication).

With ``in_sync: leader`` its link to the controller stays: once its followers lag, the controller takes them off the in-sync
replicas, and "all replicas in sync" is the leader alone. What it acknowledges then is lost with it if another may be elected
uncleanly; if not, the partition has no leader until it is back (KIP-966; Jepsen's Kafka report of 2013).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem
from onceproof.faults.evidence import leadership
from onceproof.faults.frames import is_planned, wait_for_commit
from onceproof.faults.placement import committed, leader_problems, placement, planned, split_leader_of
from onceproof.instruments.proxy.frames import Reply
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Leadership, Proxy, Replicas
from onceproof.stores.kafka.partition_log import PartitionLog

_WRITES_S = 60.0
"""From the plan of a batch to its first record in the output; under two seconds when nobody else is at work."""
_UNACKNOWLEDGED_S = 1.0
"""A leader that acknowledges by itself does so within milliseconds; one that waits for its followers waits in vain."""
_SHRINK_S = 30.0
"""Followers are taken off the in-sync replicas when they have lagged for 1.5 s (replica.lag.time.max.ms of the preset)."""
_NOTED_S = 10.0
"""It notes its epoch as it begins to lead, before it answers for it."""


InSync = Literal["leader"]
"""Who is in sync when the leader dies: the leader alone. Not said: all replicas, as far as anybody else knows."""


class LeaderCrash:
    """`onceproof.chaos.crash.kind` hands over to it for target broker at point in-tasks."""

    def __init__(self, spec: FaultSpec, leader_of: str, in_sync: InSync | None = None) -> None:
        self._spec = spec
        self._leader_of = leader_of
        self._shrinks = in_sync == "leader"
        self._before: Leadership | None = None
        self._proxies: list[Proxy] = []
        self._heard: list[Reply] = []
        self._folder = Path()
        self._size = 0
        self._open = False
        self._over = False
        self._lock = threading.Lock()

    @classmethod
    def problems(
        cls, spec: FaultSpec, leader_of: str | None, in_sync: InSync | None, scenario: Scenario
    ) -> list[SpecProblem]:
        problems = leader_problems(leader_of, scenario)
        if leader_of is not None and split_leader_of(leader_of)[0] in {one.topic for one in scenario.input}:
            message = f"no task of the pipeline writes to {leader_of}, which it reads"
            problems.append(SpecProblem(("leader_of",), message, "name a partition of an output topic"))
        topic = scenario.pipeline.prepare.topics.get((leader_of or "").rpartition("/")[0])
        if in_sync == "leader" and topic is not None and topic.config.get("min.insync.replicas") != "1":
            message = "a leader that is alone in sync may acknowledge nothing while the topic asks for two replicas"
            mend = 'give it config: {min.insync.replicas: "1"} under pipeline: prepare: topics'
            problems.append(SpecProblem(("in_sync",), message, mend))
        return problems

    @classmethod
    def placement(cls, spec: FaultSpec, leader_of: str | None, in_sync: InSync | None, scenario: Scenario) -> Placement:
        proof = f"the leader of {leader_of} had records of the batch that the next leader has not"
        if in_sync == "leader":
            proof = (
                f"the leader of {leader_of} was alone in sync and had acknowledged records of the batch; the next "
                "leader does not have them, or none was elected until it came back"
            )
        how = placement(Point.AFTER_OFFSET_LOG, proof, scenario)
        why = "its replication is cut when the batch is planned, and it is killed when its log has grown"
        return Placement(how.exactness, f"Toxiproxy, {how.instrument} and protocol proxy", why, proof)

    def matches(self, seen: Occurrence) -> bool:
        return is_planned(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        assert context.stack.frames is not None, "the run has started the proxy: this fault reads frames"
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
            context.stack.frames.listen("kafka", self._heard)
            self._open = planned(context, seen.query, seen.batch) and not committed(context, seen.query, seen.batch)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._before is not None
        before, kafka, n = self._before, context.stack.kafka, seen.batch
        topic, partition = split_leader_of(self._leader_of)
        if not self._open:
            return Proof(False, (f"batch {n} was not open any more when broker {before.broker} was cut off",))

        def grown() -> int:
            return _bytes_in(self._folder) - self._size

        def came_to_an_end() -> None:
            if committed(context, seen.query, n) and not grown():
                raise WaitTimeout(f"batch {n} was committed without a record in {self._leader_of}")

        wait_until(
            f"the leader of {self._leader_of} to append records of batch {n}",
            grown,
            deadline_s=_WRITES_S,
            abandon=came_to_an_end,
        )
        if self._shrinks:
            wait_until(
                f"broker {before.broker} to be alone in sync",
                lambda: (now := kafka.replicas(topic, partition)) is not None and now.in_sync == {before.broker},
                deadline_s=_SHRINK_S,
                explain=lambda: f"{kafka.replicas(topic, partition)}",
            )
        alone = self._wait_for_acknowledgements(context, seen)
        size, was_committed = grown(), committed(context, seen.query, n)
        with self._lock:
            if self._over:
                return Proof(False, (f"the run ended before broker {before.broker} was to be killed",))
            kafka.kill_broker(before.broker)
        for proxy in self._proxies:  # not before it is dead: its followers would catch up
            proxy.heal()
        words = [
            f"broker {before.broker}, leader of {self._leader_of}, was killed with {size} bytes of batch {n} in its log",
            _told(alone, alone=self._shrinks),
        ]

        if self._shrinks:
            words.insert(0, f"its followers lagged until broker {before.broker} was the only replica in sync")
            if not alone:
                return Proof(False, tuple(words))
            if self._nobody_elected(context):
                return self._came_back(context, seen, size, was_committed, words)
        after = leadership.wait_for_another(kafka, self._leader_of, before)
        follower = kafka.log_folders(topic)[partition]
        (first,) = wait_until(
            f"broker {after.broker} to have noted where it began to lead",
            lambda: led_from(follower, before.epoch),
            deadline_s=_NOTED_S,
        )
        with PartitionLog.open(self._folder) as log:
            lost = log.batch_of(first)
        if lost is None:
            why = f"broker {after.broker}, which leads from offset {first} on, had all of them"
            return Proof(False, (*words, why))
        words.append(f"from offset {first} on, where broker {after.broker} began to lead, nobody else had them")
        self.heal(context)
        words.append(leadership.said(self._leader_of, before, after))
        return Proof(True, (*words, self._committed_then(context, seen, was_committed)))

    def _nobody_elected(self, context: FaultContext) -> bool:
        """Whether the partition is without a leader once the dead one is known to be dead: nobody in sync was left."""
        assert self._before is not None
        dead, (topic, partition) = self._before.broker, split_leader_of(self._leader_of)

        def decided() -> Replicas | None:
            now = context.stack.kafka.replicas(topic, partition, asking_not=dead)
            return now if now is not None and now.leader != dead else None

        return (
            wait_until(f"the end of broker {dead}'s leadership", decided, deadline_s=leadership.ELECTION_S).leader == -1
        )

    def _came_back(
        self, context: FaultContext, seen: Occurrence, size: int, was_committed: bool, words: list[str]
    ) -> Proof:
        """The remedy at work: the partition waits for the only replica that has everything."""
        assert self._before is not None
        before, (topic, partition) = self._before, split_leader_of(self._leader_of)
        words.append(f"nobody else was elected to lead {self._leader_of}: it was offline")
        self.heal(context)
        after = context.stack.kafka.leader(topic, partition)
        if after.broker != before.broker or _bytes_in(self._folder) < self._size + size:
            return Proof(False, (*words, f"broker {after.broker} leads it now, without all of them"))
        words.append(f"broker {after.broker} came back with all of them and leads again (epoch {after.epoch})")
        return Proof(True, (*words, self._committed_then(context, seen, was_committed)))

    @staticmethod
    def _committed_then(context: FaultContext, seen: Occurrence, was_committed: bool) -> str:
        return (
            f"batch {seen.batch} was committed by Spark before that"
            if was_committed
            else wait_for_commit(context, seen)
        )

    def heal(self, context: FaultContext) -> None:
        with self._lock:  # who proves may come to the kill only now, and nobody would heal that
            self._over = True
        for proxy in self._proxies:
            proxy.heal()
        if context.stack.frames is not None:
            context.stack.frames.unlisten("kafka", self._heard)
        if self._before is not None and not context.stack.kafka.is_running(self._before.broker):
            context.stack.kafka.restart_broker(self._before.broker)

    def _wait_for_acknowledgements(self, context: FaultContext, seen: Occurrence) -> list[Reply]:
        """What the leader acknowledged by itself: nothing, or all that there is to the batch."""
        assert self._before is not None
        route = f"client-{self._before.broker}"

        def acknowledged() -> list[Reply]:
            return [r for r in list(self._heard) if (r.route, r.where, r.code) == (route, self._leader_of, "0")]

        try:
            allowed_s = _WRITES_S if self._shrinks else _UNACKNOWLEDGED_S
            wait_until("an acknowledgement", acknowledged, deadline_s=allowed_s)
        except WaitTimeout:
            return []
        wait_until(
            f"batch {seen.batch} to be committed on the word of a leader that is alone",
            lambda: committed(context, seen.query, seen.batch),
            deadline_s=_WRITES_S,
        )
        return acknowledged()


def led_from(folder: Path, epoch: int) -> list[int]:
    """The offset at which the epochs after ``epoch`` began in this replica's log: what it had when it began to lead.

    As its broker notes it (``leader-epoch-checkpoint``: version, count, then ``epoch offset`` a line; KIP-101). Empty as long as
    it has noted none. What the new leader appends itself is not counted.
    """
    try:
        lines = (folder / "leader-epoch-checkpoint").read_text(encoding="utf-8").splitlines()[2:]
    except FileNotFoundError:
        return []
    starts = [int(start) for began, start in (line.split() for line in lines) if int(began) > epoch]
    return [min(starts)] if starts else []


def _told(acknowledged: list[Reply], *, alone: bool) -> str:
    if not acknowledged and alone:
        return f"alone in sync, it had acknowledged none of them within {_WRITES_S:.0f} s"
    if not acknowledged:
        return f"it had acknowledged none of them within {_UNACKNOWLEDGED_S:.0f} s: it waited for its followers"
    return f"it had acknowledged {len(acknowledged)} requests by itself, the last {acknowledged[-1].message.partition(' ')[2]}"


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))
