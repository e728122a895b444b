"""Failover: the database's primary dies, and its replica takes over without the last commits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar, Literal

import psycopg

from onceproof.base.errors import OnceproofError
from onceproof.base.words import times
from onceproof.chaos.consumers.replica_lag import replica_problems
from onceproof.consumers.brokers.contract import HasReplica
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.trace import EFFECT_DONE, TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario
from onceproof.stack.api import Replica

#: How often it looks whether a commit waits for the replica.
_LOOK_EVERY_S = 0.05


class FailoverSpec(ConsumerFaultSpec):
    fault: Literal["failover"]


@consumer_faults.register("failover")
class Failover(AtItsStep):
    """Nothing more arrives at the replica. The primary is killed once it has answered the effect of the message.

    A commit that waits for the replica (``synchronous_commit``) is not answered: then the primary is killed while it waits. Either way
    the replica is promoted, and clients are led to it.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = FailoverSpec
    about: ClassVar[str] = (
        "SIGKILL of the database's primary with a commit that its replica does not have, and promotion of the replica"
    )

    def __init__(self, spec: FailoverSpec) -> None:
        self._spec = spec
        self._replica: Replica | None = None
        self._lag = 0
        """How much of the primary's log the replica lacked when the primary was killed, bytes."""
        self._how = ""
        """When the primary was to be killed, as a clause; empty: never."""
        self._done = False
        """Whether the replica has taken over."""
        self._failed: Exception | None = None
        """Why `_look` ended. Also set if it asked the primary that `is_over` was just killing."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None

    @classmethod
    def problems(cls, spec: FailoverSpec, scenario: Scenario) -> list[SpecProblem]:
        found = replica_problems(spec, scenario)
        if len([fault for fault in scenario.chaos if fault.fault == spec.fault]) > 1:
            message = "after a failover there is no replica left that could take over"
            found.append(SpecProblem(("fault",), message, "keep one"))
        return found

    @classmethod
    def placement(cls, spec: FailoverSpec, scenario: Scenario) -> Placement:
        proof = f"how much of the primary's log the replica lacked when the primary was killed, and an effect of message {spec.at.message}"
        why = "consumers ask before each step: the effect is allowed once nothing arrives at the replica, the next step after the promotion"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, HasReplica) and context.queues.replica is not None, "validated"
        self._replica = context.queues.replica
        self._replica.follow()
        self._replica.stop_following()
        self._watch = threading.Thread(target=self._look, name="failover", daemon=True)
        self._watch.start()

    def _look(self) -> None:
        """Fail over once a commit waits for the replica: its consumer cannot come to its next step."""
        assert self._replica is not None, "it struck"
        try:
            while not self._over.wait(_LOOK_EVERY_S):
                if self._replica.waiting_commits():
                    self._fail_over("while the commit waited for the replica")
                    return
        except (OnceproofError, psycopg.Error) as failed:
            self._failed = failed

    def _fail_over(self, how: str) -> None:
        with self._lock:
            if self._how or self._replica is None:
                return
            self._how, self._lag = how, self._replica.lag_bytes()
            self._replica.fail_over()
            self._done = True

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        """Implements `onceproof.consumers.routes.Lasts`."""
        if any(e.consumer == self._spec.target and e.kind in EFFECT_DONE for e in since):
            self._fail_over("when it had answered the commit")
            return True
        return False

    def heal(self, context: ConsumerFaultContext) -> None:
        """The dead primary stays dead: the replica has taken its place."""
        self._over.set()
        if self._watch is not None:
            self._watch.join()

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, message = self._spec.target, self._spec.at.message
        evidence = [
            f"the replica had all commits when {target} had taken message {message}; from then on nothing arrived there"
        ]
        if not self._done:
            what = "the replica did not take over" if self._how else "the primary was not killed"
            return missed(*evidence, what if self._failed is None else f"{what}: {self._failed}")
        evidence.append(
            f"the primary was killed {self._how}, and the replica was promoted without {times(self._lag, 'byte')} of its log"
        )
        effects = [e for e in seen.after if e.kind == "effect" and (e.consumer, e.message) == (target, message)]
        if not self._lag or not effects:
            return missed(*evidence, f"{target} wrote {times(len(effects), 'effect')} of message {message}")
        later = [e.message for e in seen.after if e.kind == "effect" and e.message != message]
        return proven(*evidence, f"consumers wrote {times(len(later), 'more effect')} after that, to the new primary")
