"""What proves that a consumer was struck while it had a message: who held what, and that the broker gave it out again."""

from __future__ import annotations

from collections.abc import Sequence

from onceproof.consumers.trace import Move
from onceproof.faults.contract import Proof
from onceproof.scenario.model import ConsumerFaultSpec

#: The step after which effect and acknowledgement are both done, by ``acknowledge``: nothing comes again then.
LAST_STEP = {"after-effect": "acknowledge", "before-effect": "effect"}


def given_out_again(spec: ConsumerFaultSpec, struck: str, before: Sequence[Move], after: Sequence[Move]) -> Proof:
    """From the moves before and after; ``struck`` says what became of the consumer: "was killed"."""
    target, at = spec.target, spec.at
    lost = _held(before, target)
    if lost is None or lost.message != at.message:
        return Proof(False, (f"{target} did not hold message {at.message} when it {struck}",))
    told = [f"{target} took message {at.message} from {lost.queue} at tick {lost.tick} and {struck} after {at.after}"]
    if (other := at.while_) is not None:
        theirs = _held(before, other.consumer)
        if theirs is None or theirs.message != other.holds:
            return Proof(False, (*told, f"{other.consumer} did not hold message {other.holds} then"))
        told.append(f"{other.consumer} had taken message {other.holds} from {theirs.queue} at tick {theirs.tick}")
    if not any(m.kind == "return" and m.consumer == target and m.message == at.message for m in after):
        told.append(f"message {at.message} was acknowledged by then: the broker has no reason to give it out again")
        if any(m.kind == "effect" for m in _since(before, lost)):
            return Proof(False, (*told, "its effect was done as well: there was nothing that the fault could break"))
        return Proof(True, tuple(told))
    of_group = [m for m in after if m.group == lost.group]  # another group has a copy of its own
    again = next((m for m in of_group if m.kind == "take" and m.message == at.message), None)
    if again is None and (unseen := _unseen_take(before, after)) is not None:
        why = f"{unseen.consumer} ended by itself in a take at tick {unseen.tick}, before it reported what it was given"
        return Proof(False, (*told, f"whether message {at.message} was given out again was not seen: {why}"))
    if again is None:
        return Proof(False, (*told, f"message {at.message} was never given out again"))
    # Its identity proves it: it was published once and taken twice. Qpid leaves the mark out after a rolled back transaction.
    mark = "marked as redelivered" if again.redelivered else "without the mark of a redelivery"
    return Proof(True, (*told, f"the broker gave it to {again.consumer} at tick {again.tick}, {mark}"))


def _held(moves: Sequence[Move], consumer: str) -> Move | None:
    """The take of the message that the consumer had last, unless it was done with it."""
    for move in reversed(moves):
        if move.consumer == consumer and move.kind == "take":
            return move
        if move.consumer == consumer and move.kind == "start":
            return None
    return None


def _since(moves: Sequence[Move], take: Move) -> list[Move]:
    """What its consumer did after that take."""
    place = max(number for number, move in enumerate(moves) if move is take)
    return [move for move in moves[place + 1 :] if move.consumer == take.consumer]


def _unseen_take(before: Sequence[Move], after: Sequence[Move]) -> Move | None:
    """The end of a consumer that had been let take and told nothing any more; one that ended at its start took nothing."""
    moves = [*before, *after]
    for place, move in enumerate(moves):
        if move.kind == "end" and move.message == 0:
            earlier = next(
                (m for m in reversed(moves[:place]) if m.consumer == move.consumer and m.kind != "return"), None
            )
            if earlier is not None and earlier.kind != "crash":
                return move
    return None
