"""The base of faults that make the network to the database slow while a consumer writes the effect of a message."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, only_after
from onceproof.consumers.trace import EFFECT_DONE, TraceEvent
from onceproof.faults.contract import Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario

SpecT = TypeVar("SpecT", bound=ConsumerFaultSpec)

_BEFORE = 3
"""How often the statement is measured while the network is not slow."""


class SlowNetwork(AtItsStep, Generic[SpecT]):
    """It hit if a statement took as much longer as it had to, and so did the effect of the message."""

    def __init__(self, spec: SpecT) -> None:
        self._spec = spec
        self._before_ms = 0.0
        self._during_ms = 0.0
        self._began = 0.0
        self._took_ms: float | None = None
        """How long the effect took, once it is done."""

    @property
    @abstractmethod
    def _least_ms(self) -> float:
        """How much longer the statement takes at least."""

    @property
    @abstractmethod
    def _words(self) -> tuple[str, str, str]:
        """The statement; why the fault missed if it was too quick; and why, if the effect was."""

    @abstractmethod
    def _slow(self, queues: Any) -> None: ...

    @abstractmethod
    def _quick(self, queues: Any) -> None:
        """Undo `_slow`. Does nothing for queues without a database."""

    @abstractmethod
    def _measured_ms(self, queues: Any) -> float:
        """How long the statement takes on the consumers' way to the database."""

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        # The least: a thread that is delayed while it measures only adds to the time.
        self._before_ms = min(self._measured_ms(context.queues) for _ in range(_BEFORE))
        self._slow(context.queues)
        self._during_ms = self._measured_ms(context.queues)
        self._began = time.monotonic()

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        """Implements `onceproof.consumers.routes.Lasts`."""
        over = any(e.consumer == self._spec.target and e.kind in EFFECT_DONE for e in since)
        if over and self._took_ms is None:
            self._took_ms = 1000 * (time.monotonic() - self._began)
        return over

    def heal(self, context: ConsumerFaultContext) -> None:
        self._quick(context.queues)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, message, least_ms = self._spec.target, self._spec.at.message, self._least_ms
        statement, too_quick, no_wait = self._words
        evidence = [f"{statement} took {self._before_ms:.0f} ms before, and {self._during_ms:.0f} ms meanwhile"]
        if self._during_ms - self._before_ms < least_ms / 2 or self._during_ms < least_ms:
            return missed(*evidence, too_quick)
        done = next((e for e in seen.after if e.consumer == target and e.kind in EFFECT_DONE), None)
        if done is None or done.kind == "end" or self._took_ms is None:
            return missed(*evidence, f"{target} did not finish the effect of message {message}")
        evidence.append(f"the effect of message {message} took {self._took_ms:.0f} ms from then on")
        return missed(*evidence, no_wait) if self._took_ms < least_ms else proven(*evidence)


def slow_network_problems(spec: ConsumerFaultSpec, scenario: Scenario, when: str) -> list[SpecProblem]:
    """Problems of such a fault; ``when``: when it strikes, for the message about another step."""
    found = only_after(spec, "take", when)
    if scenario.stack.postgres is None:
        found.append(SpecProblem(("fault",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
    return found
