"""Faults after which a broker gives a message out again: whether there is one to give out, and the proof that it did."""

from __future__ import annotations

from collections.abc import Sequence

from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Proof, SpecProblem
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, Scenario, consumers_of

#: ``acknowledge`` -> the step after which effect and acknowledgement are both done: then no message is given out again.
_LAST_STEP = {"after-effect": "acknowledge", "before-effect": "effect"}


def too_late(spec: ConsumerFaultSpec, scenario: Scenario, struck: str) -> list[SpecProblem]:
    """A problem if nothing is left that the fault could break at its step. ``struck`` names the fault: "a crash"."""
    acknowledge = consumers_of(scenario).acknowledge
    # In which order a user's own command does its steps is known only when it runs, so the proof checks it.
    if scenario.pipeline.command != WORKER or spec.at.after != _LAST_STEP.get(acknowledge):
        return []
    message = (
        f"{struck} after {spec.at.after} exercises nothing with acknowledge: {acknowledge}: "
        f"effect and acknowledgement of message {spec.at.message} are both done by then"
    )
    earlier = "effect" if spec.at.after == "acknowledge" else "acknowledge"
    return [SpecProblem(("at", "after"), message, f"use take or {earlier}")]


def given_out_again(
    spec: ConsumerFaultSpec, struck: str, before: Sequence[TraceEvent], after: Sequence[TraceEvent]
) -> Proof:
    """The proof, from the trace before and after the fault. ``struck`` says what happened to the consumer: "was killed"."""
    target, at = spec.target, spec.at
    lost = _held(before, target)
    if lost is None or lost.message != at.message:
        return Proof(False, (f"{target} did not hold message {at.message} when it {struck}",))
    evidence = [
        f"{target} took message {at.message} from {lost.queue} at tick {lost.tick} and {struck} after {at.after}"
    ]
    if (other := at.while_) is not None:
        theirs = _held(before, other.consumer)
        if theirs is None or theirs.message != other.holds:
            return Proof(False, (*evidence, f"{other.consumer} did not hold message {other.holds} then"))
        evidence.append(f"{other.consumer} had taken message {other.holds} from {theirs.queue} at tick {theirs.tick}")
    if not any(e.kind == "return" and e.consumer == target and e.message == at.message for e in after):
        evidence.append(f"message {at.message} had been acknowledged: the broker has no reason to give it out again")
        if any(e.kind == "effect" for e in _since(before, lost)):
            return Proof(
                False, (*evidence, "its effect was done as well: there was nothing left that the fault could break")
            )
        return Proof(True, tuple(evidence))
    of_group = [e for e in after if e.group == lost.group]  # another group has its own copy
    again = next((e for e in of_group if e.kind == "take" and e.message == at.message), None)
    if again is None and (unseen := _unseen_take(before, after)) is not None:
        why = f"{unseen.consumer} ended by itself in a take at tick {unseen.tick}, before it reported its message"
        return Proof(False, (*evidence, f"it was not observed whether message {at.message} was given out again: {why}"))
    if again is None:
        return Proof(False, (*evidence, f"message {at.message} was never given out again"))
    # The message's identity proves it: published once, taken twice. Qpid omits the mark after a rolled-back transaction.
    mark = "marked as redelivered" if again.redelivered else "without the mark of a redelivery"
    return Proof(True, (*evidence, f"the broker gave it to {again.consumer} at tick {again.tick}, {mark}"))


def _held(trace: Sequence[TraceEvent], consumer: str) -> TraceEvent | None:
    """The take of the message that the consumer holds; None if it has not taken one since it started."""
    for event in reversed(trace):
        if event.consumer == consumer and event.kind == "take":
            return event
        if event.consumer == consumer and event.kind == "start":
            return None
    return None


def _since(trace: Sequence[TraceEvent], take: TraceEvent) -> list[TraceEvent]:
    """What its consumer did after that take."""
    place = max(number for number, event in enumerate(trace) if event is take)
    return [event for event in trace[place + 1 :] if event.consumer == take.consumer]


def _unseen_take(before: Sequence[TraceEvent], after: Sequence[TraceEvent]) -> TraceEvent | None:
    """The end of a consumer that died in a take and reported nothing any more. One that ended at its start took nothing."""
    trace = [*before, *after]
    for place, event in enumerate(trace):
        if event.kind == "end" and event.message == 0:
            earlier = next(
                (e for e in reversed(trace[:place]) if e.consumer == event.consumer and e.kind != "return"), None
            )
            if earlier is not None and earlier.kind != "crash":
                return event
    return None
