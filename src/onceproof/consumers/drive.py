"""Driving a run of consumers: publishing, taking, working and dying, in the order of a clock that only this module moves.

A tick has this order: whose work is over does its steps; a message that is due is published; who was dead long enough
comes back; who is free takes. Of several, the one named first goes first. Nobody moves while another does a step, so two
plays of one schedule differ in nothing but what the broker does, and that is what is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.consumers.brokers.contract import Locks, Queues
from onceproof.consumers.faults import ConsumerFaults, Scene
from onceproof.consumers.gate import Did
from onceproof.consumers.layout import Layout, Message
from onceproof.consumers.processes import ConsumerDied, Crew
from onceproof.consumers.routes import CountsReady, Disconnects, HasRoads, KnowsArrival, Outlasts
from onceproof.consumers.state import Hand
from onceproof.consumers.takeover import Takeover
from onceproof.consumers.trace import Kind, Move, event_kind
from onceproof.data import Record
from onceproof.faults.table import Armed
from onceproof.scenario.model import ConsumerFaultSpec, ConsumersSpec

#: In a row, that a consumer may be told of an empty queue although something is ready in it.
_EMPTY_HANDED = 20


class _Enough(Exception):
    """There is no use in going on."""


@dataclass
class Drive:
    """Plays one schedule. Judges nothing: it notes how it ended."""

    spec: ConsumersSpec
    messages: Sequence[Message]
    layout: Layout
    crew: Crew
    queues: Queues
    records: Sequence[Record]
    """Of each message, in order."""
    timeline: Timeline
    chaos: Sequence[ConsumerFaultSpec]
    deadline_s: float
    moves: list[Move] = field(default_factory=list)
    note: str | None = None
    stuck: bool = False
    """A fault had struck, and what is left would never be done."""
    died: ConsumerDied | None = None

    def __post_init__(self) -> None:
        self._tick = 0
        self._published = 0
        self._scene = Scene(self.crew, self.queues, self.layout)
        # A group and a queue -> what its members may take there now; and what they may take there later.
        self._ready: dict[tuple[str, str], set[int]] = {}
        self._later: list[tuple[int, str, int]] = []
        # A group and a message -> of how many copies the broker still waits for an acknowledgement.
        self._open: Counter[tuple[str, int]] = Counter()
        self._hands = [Hand(name, self.layout.group_of[name], self.layout.queues_of[name]) for name in self.spec.names]
        self._takeover = Takeover(self._hands, self.queues)
        self._by_id = {f"m{message.number}": message for message in self.messages}
        self._empty_handed = 0
        self.faults = ConsumerFaults(self.chaos, self.timeline, self.spec, self._scene, self.moves)

    # -- the play -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Returns when every message is acknowledged, or when there is no use in going on."""
        try:
            for hand in self._hands:
                self.crew.start(hand.name)
            for hand in self._hands:
                self._arrive(hand)
            while True:
                self._one_tick()
                following = self._next_tick()
                if following is None:
                    return
                if self.timeline.now() > self.deadline_s:
                    raise _Enough(
                        f"limits.deadline_s was over at tick {self._tick}, with {len(self._all_done())} of {len(self.messages)} messages done"
                    )
                self._tick = following
        except ConsumerDied as dead:
            self._ended(dead)
        except _Enough as enough:
            self.note = str(enough)

    def _ended(self, dead: ConsumerDied) -> None:
        """A consumer ended by itself. After a fault that says something about the pipeline: it did not recover."""
        hand = next(hand for hand in self._hands if hand.name == dead.consumer)
        self.died, self.stuck = dead, self.faults.any_fired
        self.note = f"{dead} (tick {self._tick}{f', message {hand.holds.number}' if hand.holds else ''})"
        self._note("end", hand)

    @property
    def drained(self) -> bool:
        return len(self._all_done()) == len(self.messages)

    def acknowledged(self, group: str) -> set[int]:
        """Numbers of the messages that the broker counts as done by that group."""
        return {message.number for message in self.messages[: self._published] if not self._open[group, message.number]}

    def _all_done(self) -> set[int]:
        return set[int].intersection(*(self.acknowledged(group) for group in self.layout.groups()))

    def _one_tick(self) -> None:
        busy = [hand for hand in self._hands if hand.holds and hand.due <= self._tick and not hand.kept]
        for hand in sorted(busy, key=lambda hand: hand.due):
            self._finish(hand)
        if self._publishes() and self._published * self.spec.every <= self._tick:
            self._publish(self.messages[self._published])
        for entry in [entry for entry in self._later if entry[0] <= self._tick]:
            self._later.remove(entry)
            assert self.layout.retry is not None
            self._ready.setdefault((entry[1], self.layout.retry), set()).add(entry[2])
        for hand in self._hands:
            if hand.back_at is not None and hand.back_at <= self._tick:
                self._come_back(hand)
        self._takeover.settle()
        for hand in self._hands:
            if self._takeover.may_take(hand) and self._has_something(hand):
                self._take(hand)

    def _publishes(self) -> bool:
        return self._published < len(self.messages) and not self._takeover.waits

    def _has_something(self, hand: Hand) -> bool:
        return any(self._ready.get((hand.group, queue)) for queue in hand.queues)

    def _next_tick(self) -> int | None:
        """When something is due next. None: nothing ever will be."""
        dues = [hand.due for hand in self._hands if hand.holds is not None and not hand.kept]
        dues += [hand.back_at for hand in self._hands if hand.back_at is not None and not self.drained]
        if self._publishes():
            dues.append(self._published * self.spec.every)
        dues += [due for due, _group, _number in self._later]
        if any(hand.alive and not hand.holds and self._has_something(hand) for hand in self._hands):
            dues.append(self._tick + 1)  # the broker had nothing for it, although something is ready
        if self._takeover.comes and not self.drained:
            dues.append(self._tick + 1)
        if not dues and not self.drained:
            self.note = self._stranded()
        return max(min(dues), self._tick) if dues else None

    def _stranded(self) -> str:
        done = self._all_done()
        left = ", ".join(str(m.number) for m in self.messages if m.number not in done)
        self.stuck = self.faults.any_fired
        return f"messages {left} are never acknowledged, and nobody is left who would take them"

    def _publish(self, message: Message) -> None:
        for fault in self._outlasting(message):
            fault.foresee(self._scene)
        self.queues.publish(message, self.records[message.number - 1])
        self._published += 1
        for group in self.layout.groups():
            self._open[group, message.number] += 1
            self._ready.setdefault((group, message.queue), set()).add(message.number)
        self._move("publish", "", message)

    def _take(self, hand: Hand) -> None:
        did = self.crew.step(hand.name).did
        assert did is not None
        if hand.anew:
            self._check_mark(hand)
            hand.anew = False
        if did.message is None:
            self._empty_handed += 1
            if self._empty_handed > _EMPTY_HANDED:
                raise _Enough(f"{hand.name} finds {', '.join(hand.queues)} empty, though the broker was given messages")
            return
        self._empty_handed = 0
        message = self._known(hand, did)
        self._ready[hand.group, message.queue].discard(message.number)
        other = next((h for h in self._hands if h.group == hand.group and h.holds == message), None)
        if other is not None and not other.lapsed and isinstance(self.queues, Locks):
            raise _Enough(f"{hand.name} was given message {message.number}, which {other.name} has: {_lapsed(other)}")
        for fault in self._outlasting(message):
            fault.is_taken(self._scene)
        if (loser := self._takeover.loser(hand.group, message)) is not None:
            self._move("lapse", loser.name, message)
        hand.holds, hand.acknowledged, hand.released = message, False, False
        hand.due = self._tick + self.spec.slow.get(message.number, self.spec.work)
        self._move("take", hand.name, message, redelivered=did.redelivered)
        self._strike()

    def _outlasting(self, message: Message) -> list[Outlasts]:
        """Faults still to come that will have this message given to two."""
        struck = [a.fault for a in self.faults.armed if a.fired_at is None and a.spec.at.message == message.number]
        return [fault for fault in struck if isinstance(fault, Outlasts)]

    def _known(self, hand: Hand, did: Did) -> Message:
        message = self._by_id.get(did.message or "")
        if message is None:
            raise _Enough(f"{hand.name} says that it took message {did.message!r}, which nobody has published")
        if self.layout.retry in hand.queues:
            return Message(message.number, self.layout.retry)
        return message

    def _finish(self, hand: Hand) -> None:
        """The steps of a consumer whose work is over, until it would take the next message, or dies."""
        message = hand.holds
        assert message is not None
        while self.crew.at_step(hand.name).before != "take":
            ask = self.crew.step(hand.name)
            did = ask.did
            assert did is not None
            kind = "refuse" if did.refused else "fenced" if did.fenced else "lost" if did.lost else did.step
            self._move(kind, hand.name, self._whereto(did, message))
            if did.fenced and not hand.lapsed and isinstance(self.queues, Locks):
                raise _Enough(f"{hand.name} has message {message.number} no longer: {_lapsed(hand)}")
            hand.acknowledged = hand.acknowledged or (did.step == "acknowledge" and not did.lost)
            hand.released = hand.released or did.step == "release"
            if did.step == "retry" and not did.lost:
                self._put_off(hand, message)
            self._strike()
            if not hand.alive:
                return
            if did.lost or (hand.cut_off and ask.before == "take"):
                self._forgotten(hand, message)
                return
            if did.refused and ask.before == "effect":
                hand.due = self._tick + self.spec.work  # it tries again, and holds on to the message meanwhile
                return
        hand.holds = None
        if hand.lapsed:
            self._takeover.is_done(hand)
        elif hand.acknowledged:
            self._open[hand.group, message.number] -= 1
        elif hand.released:
            self._ready[hand.group, message.queue].add(message.number)

    def _forgotten(self, hand: Hand, message: Message) -> None:
        """No answer came to its step, an acknowledgement mostly: what the broker has of it is found out."""
        hand.holds, hand.anew = None, isinstance(self.queues, HasRoads)
        if hand.lapsed:
            self._takeover.is_done(hand)
            return
        if hand.cut_off:
            hand.cut_off = False  # it came back when the connection was cut
            return
        self.queues.await_gone(hand.name, self.crew.mark(hand.name))
        if any(self._arrived(armed, hand, message) for armed in self.faults.armed):
            self._stands(hand, message)
            self._await_ready(hand, message)
            return
        committed = self.queues.committed(hand.group)
        if committed is not None:
            place = [m.number for m in self.messages if m.queue == message.queue].index(message.number)
            if committed[self.layout.inputs.index(message.queue)] > place:
                self._stands(hand, message)
                return
        self._give_back(hand, message)

    def _stands(self, hand: Hand, message: Message) -> None:
        """The broker has as done what its consumer has no answer to; in a transaction, with the effect."""
        self._open[hand.group, message.number] -= 1
        if self.spec.acknowledge == "with-effect":
            self._move("commit", hand.name, message)

    def _arrived(self, armed: Armed[ConsumerFaultSpec], hand: Hand, message: Message) -> bool:
        """Whether this fault knows that the broker has what its consumer has no answer to."""
        spec, fault = armed.spec, armed.fault
        ours = armed.fired_at is not None and (spec.target, spec.at.message) == (hand.name, message.number)
        return ours and isinstance(fault, KnowsArrival) and bool(fault.arrived())

    def _give_back(self, hand: Hand, message: Message) -> None:
        self._ready[hand.group, message.queue].add(message.number)
        self._move("return", hand.name, message)
        self._await_ready(hand, message)

    def _await_ready(self, hand: Hand, message: Message) -> None:
        if isinstance(self.queues, CountsReady):
            waiting = [number for _due, group, number in self._later if group == hand.group]
            later = len(waiting) if message.queue == self.layout.retry else 0
            self.queues.await_ready(message.queue, len(self._ready[hand.group, message.queue]) + later)

    def _whereto(self, did: Did, message: Message) -> Message:
        """The message as its move tells it: put into the retry topic, it is in another queue from then on."""
        if did.step == "retry" and self.layout.retry is not None:
            return Message(message.number, self.layout.retry)
        return message

    def _put_off(self, hand: Hand, message: Message) -> None:
        """A copy of it is in the retry topic now."""
        assert self.spec.retry is not None, "validated: who retries has a retry topic"
        self._open[hand.group, message.number] += 1
        self._later.append((self._tick + self.spec.retry.after, hand.group, message.number))

    def _come_back(self, hand: Hand) -> None:
        hand.back_at = None
        self.crew.start(hand.name)
        self._arrive(hand)
        hand.alive = True

    def _arrive(self, hand: Hand) -> None:
        """Wait until it is at its first step. One without a mark is refused now: its death could not be seen later."""
        self.crew.at_step(hand.name)
        self._check_mark(hand)
        self._note("start", hand)

    def _check_mark(self, hand: Hand) -> None:
        mark = self.crew.mark(hand.name)
        if not self.queues.is_there(hand.name, mark):
            came = "took over a new connection" if hand.anew else "came to its first step"
            raise EnvironmentProblem(
                f"consumer {hand.name} {came} without its mark: there is no queue {mark}",
                hint="it must declare and consume the queue ONCEPROOF_MARK, on a new connection too, before it asks at its gate "
                "(docs/consumers.md)",
            )

    # -- faults ---------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        for armed in self.faults.armed:
            if armed.fired_at is None and self._is_there(armed.spec) and self.faults.strike(armed):
                hand = next(hand for hand in self._hands if hand.name == armed.spec.target)
                if isinstance(armed.fault, Outlasts):
                    self._takeover.keep(hand)
                    assert hand.holds is not None, "a fault strikes who has a message"
                    self._ready[hand.group, hand.holds.queue].add(hand.holds.number)
                elif not self.crew.is_alive(hand.name):
                    self._after_death(hand)
                elif isinstance(armed.fault, Disconnects) and armed.fault.disconnects():
                    self._after_cut(hand)
            if armed.in_progress and self.faults.heal_if_over(armed) and isinstance(armed.fault, Outlasts):
                hand = next(hand for hand in self._hands if hand.name == armed.spec.target)
                hand.kept, hand.due = False, self._tick + 1

    def _is_there(self, spec: ConsumerFaultSpec) -> bool:
        held = {hand.name: hand.holds.number for hand in self._hands if hand.alive and hand.holds is not None}
        if held.get(spec.target) != spec.at.message:
            return False
        last = next(m for m in reversed(self.moves) if m.consumer == spec.target)
        there = last.kind == spec.at.after and last.message == spec.at.message
        return there and (spec.at.while_ is None or held.get(spec.at.while_.consumer) == spec.at.while_.holds)

    def _after_death(self, hand: Hand) -> None:
        self._note("crash", hand)
        self._let_go(hand)
        if hand.lapsed:
            self._takeover.is_done(hand)
        hand.holds, hand.alive = None, False
        hand.kept = hand.cut_off = hand.anew = False
        hand.back_at = None if self.spec.restart_after is None else self._tick + self.spec.restart_after

    def _after_cut(self, hand: Hand) -> None:
        """It lives, and works on: that its connection is gone it learns at its next step."""
        self._note("cut", hand)
        self._let_go(hand)
        hand.cut_off = True

    def _let_go(self, hand: Hand) -> None:
        """Its connection is gone: what it had not settled is the broker's again."""
        self.queues.await_gone(hand.name, self.crew.mark(hand.name))
        if hand.lapsed or hand.cut_off:
            return  # it was the broker's again before
        if hand.holds is not None and self._unsettled(hand, hand.holds):
            self._give_back(hand, hand.holds)
        elif hand.holds is not None:
            self._open[hand.group, hand.holds.number] -= 1
            self._await_ready(hand, hand.holds)

    def _unsettled(self, hand: Hand, message: Message) -> bool:
        """Whether the broker still had it in the consumer's hands: in a transaction, until that is committed."""
        if self.spec.acknowledge != "with-effect":
            return not hand.acknowledged
        last = next(m for m in reversed(self.moves) if m.consumer == hand.name and m.kind not in ("crash", "cut"))
        return last.kind != "commit"

    # -- what is noted --------------------------------------------------------------------------------------------

    def _note(self, kind: Kind, hand: Hand) -> None:
        self._append(Move(kind, self._tick, consumer=hand.name, message=hand.holds.number if hand.holds else 0))

    def _move(self, kind: Kind, consumer: str, message: Message, *, redelivered: bool = False) -> None:
        groups = self.layout.groups()
        group = self.layout.group_of[consumer] if consumer and len(groups) > 1 else ""
        self._append(Move(kind, self._tick, 0.0, consumer, message.number, message.queue, redelivered, group))

    def _append(self, move: Move) -> None:
        event = self.timeline.emit(event_kind(move), **move.event())
        self.moves.append(replace(move, at=event.at))


def _lapsed(hand: Hand) -> str:
    return f"the lock of {hand.name} ended, which no fault was to outlast"
