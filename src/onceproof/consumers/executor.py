"""Executes a schedule of consumers: publishing, taking, working and dying, on a clock that only this module advances.

The order within a tick: consumers whose work is over do their steps; a message that is due is published; a consumer that was
dead long enough is started again; free consumers take. Of several, the one named first goes first. While one consumer does a
step all others wait, so two executions of a schedule differ only in what the broker does, and that is what a run looks at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.consumers.brokers.contract import Locks, Queues, Rebalances
from onceproof.consumers.faults import ConsumerFaultContext, ConsumerFaults
from onceproof.consumers.gate import StepReport
from onceproof.consumers.layout import Layout, Message
from onceproof.consumers.processes import ConsumerDied, ConsumerProcesses
from onceproof.consumers.recorder import TraceRecorder
from onceproof.consumers.routes import (
    AddsPartitions,
    CountsReady,
    Disconnects,
    HasRoutes,
    OutlastsItsBroker,
    Pauses,
    Rewinds,
)
from onceproof.consumers.slow_consumers import SlowConsumers
from onceproof.consumers.state import ConsumerState
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.data import Record
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import ConsumerFaultSpec

#: How often in a row the broker may give a consumer nothing although a message is ready in its queues.
_MOST_EMPTY_TAKES = 20
#: How often in a row an output may refuse a message while no fault is in force. The consumer waits twice as long each time.
_MOST_REFUSALS = 10


class _CannotContinue(Exception):
    """Raised when the execution cannot end usefully; the text says why."""


@dataclass
class ScheduleExecutor:
    """Executes one schedule. It judges nothing: it records how the execution ended."""

    spec: ConsumersSpec
    messages: Sequence[Message]
    layout: Layout
    processes: ConsumerProcesses
    queues: Queues
    records: Sequence[Record]
    """The record of each message, in order."""
    timeline: Timeline
    chaos: Sequence[ConsumerFaultSpec]
    deadline_s: float
    trace: list[TraceEvent] = field(default_factory=list)
    note: str | None = None
    """Why the execution ended early."""
    stuck: bool = False
    """Whether a fault had struck and the remaining messages could never be done."""
    died: ConsumerDied | None = None

    def __post_init__(self) -> None:
        self._tick = 0
        self._record = TraceRecorder(self.trace, self.timeline, self.layout, lambda: self._tick)
        self._published = 0
        self._context = ConsumerFaultContext(self.processes, self.queues, self.layout)
        # (group, queue) -> messages that its members may take there now; and (tick, group, message) for later.
        self._ready: dict[tuple[str, str], set[int]] = {}
        self._later: list[tuple[int, str, int]] = []
        # (group, message) -> of how many copies the broker still waits for an acknowledgement.
        self._open: Counter[tuple[str, int]] = Counter()
        self._consumers = [
            ConsumerState(name, self.layout.group_of[name], self.layout.queues_of[name]) for name in self.spec.names
        ]
        self._slow = SlowConsumers(self._consumers, self.queues)
        self._by_id = {f"m{message.number}": message for message in self.messages}
        self._empty_takes = 0
        self.faults = ConsumerFaults(self.chaos, self.timeline, self.spec, self._context, self.trace)

    # -- the clock ------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Return when every message is acknowledged, or when nothing more can happen."""
        try:
            for consumer in self._consumers:
                self.processes.start(consumer.name)
            for consumer in self._consumers:
                self._await_start(consumer)
            while True:
                self._one_tick()
                following = self._next_tick()
                if following is None:
                    return
                if self.timeline.now() > self.deadline_s:
                    done = f"{len(self._all_done())} of {len(self.messages)} messages done"
                    raise _CannotContinue(f"limits.deadline_s ran out at tick {self._tick}, with {done}")
                self._tick = following
        except ConsumerDied as dead:
            self._ended_by_itself(dead)
        except _CannotContinue as reason:
            self.note = str(reason)

    def _ended_by_itself(self, dead: ConsumerDied) -> None:
        """Note that a consumer ended by itself: after a fault this means that the pipeline did not recover."""
        consumer = self._named(dead.consumer)
        self.died, self.stuck = dead, self.faults.any_fired
        self.note = f"{dead} (tick {self._tick}{f', message {consumer.holds.number}' if consumer.holds else ''})"
        if not dead.held:  # else the trace would show it as ended in a step
            self._record.consumer("end", consumer)

    @property
    def drained(self) -> bool:
        return len(self._all_done()) == len(self.messages)

    def acknowledged(self, group: str) -> set[int]:
        """Numbers of the messages that the broker counts as done by that group."""
        return {message.number for message in self.messages[: self._published] if not self._open[group, message.number]}

    def _all_done(self) -> set[int]:
        return set[int].intersection(*(self.acknowledged(group) for group in self.layout.groups()))

    def _one_tick(self) -> None:
        busy = [c for c in self._consumers if c.holds and c.due <= self._tick and not c.waits]
        for consumer in sorted(busy, key=lambda consumer: consumer.due):
            self._finish(consumer)
        if self._publishes() and self._published * self.spec.every <= self._tick:
            self._publish(self.messages[self._published])
        for entry in [entry for entry in self._later if entry[0] <= self._tick]:
            self._later.remove(entry)
            assert self.layout.retry is not None
            self._ready.setdefault((entry[1], self.layout.retry), set()).add(entry[2])
        for consumer in self._consumers:
            if consumer.back_at is not None and consumer.back_at <= self._tick:
                self._restart(consumer)
        self._slow.rebalance()
        for consumer in self._consumers:
            if self._slow.may_take(consumer) and self._has_something(consumer):
                self._take(consumer)

    def _publishes(self) -> bool:
        return self._published < len(self.messages) and not self._slow.any_held

    def _has_something(self, consumer: ConsumerState) -> bool:
        return any(self._ready.get((consumer.group, queue)) for queue in consumer.queues)

    def _next_tick(self) -> int | None:
        """The tick at which something is due next; None: nothing ever will be."""
        dues = [consumer.due for consumer in self._consumers if consumer.holds is not None and not consumer.waits]
        dues += [c.back_at for c in self._consumers if c.back_at is not None and not self.drained]
        if self._publishes():
            dues.append(self._published * self.spec.every)
        dues += [due for due, _group, _number in self._later]
        if any(consumer.alive and not consumer.holds and self._has_something(consumer) for consumer in self._consumers):
            dues.append(self._tick + 1)  # the broker gave it nothing, although something is ready
        if self._slow.rebalance_due and not self.drained:
            dues.append(self._tick + 1)
        if not dues and not self.drained:
            self.note = self._stranded()
        return max(min(dues), self._tick) if dues else None

    def _stranded(self) -> str:
        done = self._all_done()
        left = ", ".join(str(m.number) for m in self.messages if m.number not in done)
        self.stuck = self.faults.any_fired
        return f"messages {left} are not acknowledged, and no consumer is left that would take them"

    # -- the steps ------------------------------------------------------------------------------------------------

    def _publish(self, message: Message) -> None:
        for fault in self.faults.outlasting(message.number):
            fault.before_publish(self._context)
        self.queues.publish(message, self.records[message.number - 1])
        self._published += 1
        for group in self.layout.groups():
            self._open[group, message.number] += 1
            self._ready.setdefault((group, message.queue), set()).add(message.number)
        self._record.message("publish", "", message)
        self._resume_stopped()

    def _take(self, consumer: ConsumerState) -> None:
        report = self.processes.step(consumer.name).did
        assert report is not None
        if consumer.reconnects:
            self._check_mark(consumer)
            consumer.reconnects = False
        if report.message is None:
            self._empty_takes += 1
            if self._empty_takes > _MOST_EMPTY_TAKES:
                queues = ", ".join(consumer.queues)
                self.stuck = self.faults.may_miss
                raise _CannotContinue(
                    f"the broker gives {consumer.name} nothing from {queues}, where messages are ready"
                )
            return
        self._empty_takes = 0
        message = self._taken_message(consumer, report)
        self._ready[consumer.group, message.queue].discard(message.number)
        if self.faults.may_miss:
            self._never_given("skip", consumer, (consumer.group, message.queue), range(message.number))
        other = next((c for c in self._consumers if c.group == consumer.group and c.holds == message), None)
        if other is not None and not other.lapsed and isinstance(self.queues, Locks):
            raise _lock_ended(
                other, f"{consumer.name} was given message {message.number}, which {other.name} still has"
            )
        for fault in self.faults.outlasting(message.number):
            fault.after_take(self._context)
        if (slow := self._slow.slow_holder(consumer.group, message)) is not None:
            self._record.message("lapse", slow.name, message)
        consumer.holds, consumer.acknowledged, consumer.released, consumer.refusals = message, False, False, 0
        consumer.due = self._tick + self.spec.slow.get(message.number, self.spec.work)
        self._record.message("take", consumer.name, message, redelivered=report.redelivered)
        self._strike()

    def _taken_message(self, consumer: ConsumerState, report: StepReport) -> Message:
        message = self._by_id.get(report.message or "")
        if message is None:
            raise _CannotContinue(f"{consumer.name} took message {report.message!r}, which was never published")
        if self.layout.retry in consumer.queues:
            return Message(message.number, self.layout.retry)
        return message

    def _finish(self, consumer: ConsumerState) -> None:
        """Let a consumer whose work is over do its steps, until it would take the next message, or dies."""
        message = consumer.holds
        assert message is not None
        while self.processes.await_step(consumer.name).before != "take":
            request = self.processes.step(consumer.name)
            report = request.did
            assert report is not None
            kind = "refuse" if report.refused else "fenced" if report.fenced else "lost" if report.lost else report.step
            self._record.message(
                kind, consumer.name, self.layout.recorded_as(report.step, message), output=report.output or ""
            )
            if report.fenced and not consumer.lapsed and isinstance(self.queues, Locks):
                raise _lock_ended(consumer, f"{consumer.name} no longer has message {message.number}")
            consumer.acknowledged = consumer.acknowledged or (report.step == "acknowledge" and not report.lost)
            consumer.released = consumer.released or report.step == "release"
            if report.step == "retry" and not report.lost:
                self._put_off(consumer, message)
            self._strike()
            if not consumer.alive:
                return
            if report.lost or (consumer.cut_off and request.before == "take"):
                self._resolve_lost_step(consumer, message)
                return
            if report.refused and request.before == "effect":
                self._put_off_effect(consumer, message)
                return
        consumer.holds = None
        if consumer.lapsed:
            self._slow.finished(consumer)
        elif consumer.acknowledged:
            self._open[consumer.group, message.number] -= 1
        elif consumer.released:
            self._ready[consumer.group, message.queue].add(message.number)

    def _put_off_effect(self, consumer: ConsumerState, message: Message) -> None:
        """The consumer tries again later, and keeps the message meanwhile."""
        consumer.refusals = consumer.refusals + 1 if self.faults.quiet else 1
        if consumer.refusals >= _MOST_REFUSALS:
            self.stuck = self.faults.any_fired
            raise _CannotContinue(
                f"{consumer.name} tried message {message.number} {consumer.refusals} times, each after a wait twice as long, and "
                "its output refused it each time, with no fault in force"
            )
        consumer.due = self._tick + self.spec.work * 2 ** (consumer.refusals - 1)

    def _resolve_lost_step(self, consumer: ConsumerState, message: Message) -> None:
        """A step, usually an acknowledgement, got no answer: find out whether the broker counts the message as done."""
        consumer.holds, consumer.reconnects = None, isinstance(self.queues, HasRoutes)
        if consumer.lapsed:
            self._slow.finished(consumer)
            return
        if consumer.cut_off:
            consumer.cut_off = False  # the broker took the message back when the connection was cut
            return
        self.queues.await_gone(consumer.name, self.processes.mark(consumer.name))
        if self.faults.arrived(consumer.name, message.number):
            self._settle_without_answer(consumer, message)
            self._await_ready(consumer, message)
            return
        committed = self.queues.committed(consumer.group)
        if committed is not None:
            place = [m.number for m in self.messages if m.queue == message.queue].index(message.number)
            if committed[self.layout.inputs.index(message.queue)] > place:
                self._settle_without_answer(consumer, message)
                return
        self._give_back(consumer, message)

    def _settle_without_answer(self, consumer: ConsumerState, message: Message) -> None:
        """Count a message as done that the broker counts as done, although its consumer got no answer; its effect too, if with it."""
        self._open[consumer.group, message.number] -= 1
        if self.spec.acknowledge == "with-effect":
            self._record.message("commit", consumer.name, message)

    def _give_back(self, consumer: ConsumerState, message: Message) -> None:
        self._ready[consumer.group, message.queue].add(message.number)
        self._record.message("return", consumer.name, message)
        self._await_ready(consumer, message)

    def _await_ready(self, consumer: ConsumerState, message: Message) -> None:
        if isinstance(self.queues, CountsReady):
            waiting = sum(group == consumer.group for _due, group, _number in self._later)
            later = waiting if message.queue == self.layout.retry else 0
            self.queues.await_ready(message.queue, len(self._ready[consumer.group, message.queue]) + later)

    def _put_off(self, consumer: ConsumerState, message: Message) -> None:
        """Schedule the copy of the message that is now in the retry topic."""
        assert self.spec.retry is not None, "validated: a consumer that retries has a retry topic"
        self._open[consumer.group, message.number] += 1
        self._later.append((self._tick + self.spec.retry.after, consumer.group, message.number))

    def _restart(self, consumer: ConsumerState) -> None:
        consumer.back_at = None
        self.processes.start(consumer.name)
        self._await_start(consumer)
        consumer.alive = True

    def _await_start(self, consumer: ConsumerState) -> None:
        """Wait until the consumer is at its first step. Refuse one without a mark: its death could not be seen later."""
        self.processes.await_step(consumer.name)
        self._check_mark(consumer)
        self._record.consumer("start", consumer)

    def _check_mark(self, consumer: ConsumerState) -> None:
        mark = self.processes.mark(consumer.name)
        if not self.queues.is_connected(consumer.name, mark, self.processes.check_running):
            came = "took over a new connection" if consumer.reconnects else "came to its first step"
            raise EnvironmentProblem(
                f"consumer {consumer.name} {came} without its mark: there is no queue {mark}",
                hint="it must declare and consume the queue ONCEPROOF_MARK, on a new connection too, before it asks at its gate "
                "(docs/consumers.md)",
            )

    def _named(self, name: str) -> ConsumerState:
        return next(consumer for consumer in self._consumers if consumer.name == name)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        held = {c.name: c.holds.number for c in self._consumers if c.alive and c.holds is not None}
        for armed in self.faults.armed:
            if armed.fired_at is None and self.faults.is_reached(armed.spec, held) and self.faults.strike(armed):
                consumer = self._named(armed.spec.target)
                if isinstance(armed.fault, OutlastsItsBroker):
                    self._slow.hold(consumer)
                    assert consumer.holds is not None, "a fault strikes a consumer that has a message"
                    self._ready[consumer.group, consumer.holds.queue].add(consumer.holds.number)
                elif isinstance(armed.fault, Pauses):
                    consumer.stopped = True
                    self._record.consumer("stop", consumer)
                elif isinstance(armed.fault, AddsPartitions):
                    self._use_partitions(armed.fault.added())
                elif not self.processes.is_alive(consumer.name):
                    message = consumer.holds
                    self._after_death(consumer)
                    if isinstance(armed.fault, Rewinds) and message is not None:
                        self._give_out_again(consumer, message.queue, armed.fault.rewound())
                elif isinstance(armed.fault, Disconnects) and armed.fault.disconnects():
                    self._after_cut(consumer)
            if isinstance(armed.fault, Pauses):
                continue
            if armed.in_progress and self.faults.heal_if_over(armed) and isinstance(armed.fault, OutlastsItsBroker):
                consumer = self._named(armed.spec.target)
                consumer.held_back, consumer.due = False, self._tick + 1
        self._resume_stopped()

    def _resume_stopped(self) -> None:
        """Resume each consumer whose fault is over."""
        for armed in self.faults.armed:
            if armed.in_progress and isinstance(armed.fault, Pauses) and self.faults.is_over(armed):
                consumer, deleted = self._named(armed.spec.target), set(armed.fault.before_resume(self._context))
                for place in self._ready:
                    self._never_given("delete", consumer, place, deleted)
                self.faults.heal_if_over(armed)
                consumer.stopped, consumer.due = False, self._tick + 1
                self._record.consumer("resume", consumer)

    def _never_given(self, kind: Kind, consumer: ConsumerState, place: tuple[str, str], numbers: Iterable[int]) -> None:
        """Those of the messages that are ready at this place, a group and a queue, will not be given to it any more."""
        for number in sorted(self._ready[place].intersection(numbers)):
            self._ready[place].remove(number)
            self._open[place[0], number] -= 1
            self._record.message(kind, consumer.name, Message(number, place[1]))

    def _after_death(self, consumer: ConsumerState) -> None:
        self._record.consumer("crash", consumer)
        self._broker_takes_back(consumer)
        if consumer.lapsed:
            self._slow.finished(consumer)
        elif not self.spec.static:
            self._slow.left(consumer)
        consumer.holds, consumer.alive = None, False
        consumer.held_back = consumer.cut_off = consumer.reconnects = False
        consumer.back_at = None if self.spec.restart_after is None else self._tick + self.spec.restart_after

    def _give_out_again(self, consumer: ConsumerState, queue: str, numbers: Sequence[int]) -> None:
        """The group's offsets were set back, so that it will be given messages again that were done."""
        for number in numbers:
            self._open[consumer.group, number] += 1
            self._ready[consumer.group, queue].add(number)
            self._record.message("return", consumer.name, Message(number, queue))

    def _use_partitions(self, total: int | None) -> None:
        """If the input now has ``total`` partitions, a message still to be published goes to that of its key among all of them."""
        if total is None:
            return
        later = self.layout.messages(self.records, total)
        self.messages = [*self.messages[: self._published], *later[self._published :]]
        self._by_id = {f"m{message.number}": message for message in self.messages}
        assert isinstance(self.queues, Rebalances), "validated: a consumer group"
        assigned = self.queues.await_rebalance(self.spec.names)
        for consumer in self._consumers:
            consumer.queues = assigned[consumer.name]

    def _after_cut(self, consumer: ConsumerState) -> None:
        """Record the cut. The consumer works on, and learns at its next step that its connection is gone."""
        self._record.consumer("cut", consumer)
        self._broker_takes_back(consumer)
        consumer.cut_off = True

    def _broker_takes_back(self, consumer: ConsumerState) -> None:
        """Wait until the broker has taken back what a consumer without a connection had not settled."""
        self.queues.await_gone(consumer.name, self.processes.mark(consumer.name))
        if consumer.lapsed or consumer.cut_off:
            return  # the broker had taken it back before
        message = consumer.holds
        if message is not None and self._unsettled(consumer):
            self._give_back(consumer, message)
        elif message is not None:
            self._open[consumer.group, message.number] -= 1
            self._await_ready(consumer, message)

    def _unsettled(self, consumer: ConsumerState) -> bool:
        """Whether the broker still counted its message as held by the consumer: in a transaction, until the commit."""
        if self.spec.acknowledge != "with-effect":
            return not consumer.acknowledged
        done = (e.kind for e in reversed(self.trace) if e.consumer == consumer.name and e.kind not in ("crash", "cut"))
        return next(done) != "commit"


def _lock_ended(consumer: ConsumerState, shown_by: str) -> _CannotContinue:
    return _CannotContinue(f"{shown_by}: the lock of {consumer.name} ended, and no fault was meant to outlast it")
