"""Conducts the faults of one run: armed before the job starts, fired at their logical position, proven, healed.

The instruments (checkpoint file system, checkpoint watcher, failpoints) tell the controller which point a batch has just reached; the controller
strikes with the fault that waits for it, in the instrument's own thread, and proves the hit in a thread of the fault's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import NeedsInput, Occurrence, Proof, reads_frames, strikes_at
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.evidence.writes import NOTHING_IN_DANGER, WriteWatch
from onceproof.faults.table import Armed, FaultTable
from onceproof.instruments.failpoints import Parked, SinkEvent
from onceproof.scenario.model import FaultSpec
from onceproof.scenario.points import Point

_SURVEYED = frozenset(range(1000))
"""Batches that a survey looks at: more than a first run has."""


class FaultController(FaultTable[FaultSpec, FaultContext]):
    """The faults of a Spark job, which strike in the threads of the instruments and are proven in threads of their own."""

    def __init__(self, specs: list[FaultSpec], timeline: Timeline, *, survey: bool = False) -> None:
        """``survey``: look at what each batch writes, not only at those that a fault waits for."""
        super().__init__(specs, timeline)
        struck = frozenset(spec.at.batch for spec in specs)
        committed = frozenset(spec.at.batch for spec in specs if spec.at.point is Point.AFTER_SINK_COMMIT)
        self._writes = WriteWatch(_SURVEYED, _SURVEYED) if survey else WriteWatch(struck, committed)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def feeds(self) -> bool:
        """Whether the next chunk may be released: each fault between firing and healing is one that needs input to go on."""
        return all(isinstance(a.fault, NeedsInput) and a.fault.needs_input for a in self.armed if a.in_progress)

    # -- what the instruments call --------------------------------------------------------------------------------

    def wanted(self) -> list[tuple[int, Point]]:
        """Batches and points at which a fault waits that has not fired, or the outputs are looked at."""
        waits = [(a.spec.at.batch, strikes_at(a.spec)) for a in self.armed if a.fired_at is None]
        return [*waits, *self._writes.points()]

    def wrote(self, query: str, batch: int) -> tuple[str, ...] | None:
        """The outputs that a committed batch was seen to change; None where nobody looked."""
        written = self._writes.at_commit(self._context, query, batch) if self._context is not None else None
        return None if written is None else written.outputs

    def on_log(self, query: str, batch: int, point: Point) -> None:
        """The checkpoint watcher saw it."""
        self._reached(Occurrence(query, batch, point, "watcher"))

    def on_write(self, query: str, batch: int, point: Point, attempt: int) -> threading.Event | None:
        """The driver waits there, in the checkpoint file system, until this returns, or longer: until the event is set."""
        resume, held = threading.Event(), threading.Event()

        def hold() -> Callable[[], None]:
            held.set()
            return resume.set

        self._reached(Occurrence(query, batch, point, "checkpoint", hold=hold, attempt=attempt))
        return resume if held.is_set() else None

    def on_point(self, parked: Parked) -> None:
        query = self._query_of(parked.query_id)
        self._timeline.emit("point", point=parked.point, sink=parked.sink, batch=parked.batch, query=query)
        attempt = self._context.attempt(query, parked.batch) if self._context is not None else None
        seen = Occurrence(
            query, parked.batch, parked.point, "failpoint", parked.sink, parked.facts, parked.release, attempt=attempt
        )
        if not self._reached(seen):
            parked.release()

    def on_sink_event(self, told: SinkEvent) -> None:
        if self._context is not None:
            self._context.sink_events.append(replace(told, query=self._query_of(told.query)))
        self._timeline.emit(f"sink.{told.event}", sink=told.sink, batch=told.batch, facts=told.facts)

    def _query_of(self, query_id: str) -> str:
        known = self._context.checkpoint.query_of_id(query_id) if self._context is not None else None
        return known or query_id

    def _reached(self, seen: Occurrence) -> bool:
        """Strike with every fault that waits for this; say whether one did.

        Those that end the driver last: a rule on frames, or a broker's end, must stand before the driver is gone. Of several
        that do something to one and the same target the first strikes, and the others go on waiting.
        """
        context = self._context
        if context is None:
            return False
        if seen.instrument != "failpoint":
            self._writes.reached(context, seen.query, seen.batch, seen.point)
        with self._lock:
            ready: list[Armed[FaultSpec]] = []
            taken: set[str] = set()
            for armed in self.armed:
                acts = not reads_frames([armed.spec])
                if not (acts and struck_by(armed.spec) in taken) and self._waits_for(armed, seen):
                    ready.append(armed)
                    taken |= {struck_by(armed.spec)} if acts else set()
            ready.sort(key=lambda armed: struck_by(armed.spec) == "driver" and not reads_frames([armed.spec]))
            for armed in ready:
                armed.fired_at = self._timeline.now()
        # What is parked goes on when all have struck, if one of them wants it to, or is settled.
        go, all_struck = threading.Event(), threading.Event()

        def release() -> None:
            go.set()
            if all_struck.is_set() and seen.release is not None:
                seen.release()

        parked = replace(seen, release=release) if seen.release is not None else seen
        for armed in ready:
            self._strike(armed, context, parked)
        all_struck.set()
        if go.is_set():
            release()
        return bool(ready)

    def _strike(self, armed: Armed[FaultSpec], context: FaultContext, seen: Occurrence) -> None:
        try:
            armed.fault.strike(context, seen)
        except Exception as failure:  # a fault that breaks must show as one that did not hit, with the cause
            self._finish(armed, seen, Proof(False, (Evidence("the fault could not act", detail=repr(failure)),)))
            return
        armed.query = seen.query
        self._emit("fault.fired", armed, instrument=seen.instrument)
        thread = threading.Thread(
            target=self._look, args=(armed, seen), name=f"fault-{armed.index}-{armed.spec.fault}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _waits_for(armed: Armed[FaultSpec], seen: Occurrence) -> bool:
        at = armed.spec.at
        return (
            armed.armed_at is not None
            and armed.fired_at is None
            and seen.batch == at.batch
            and at.query in (None, seen.query)
            and at.attempt in (None, seen.attempt)
            and armed.fault.matches(seen)
        )

    def _look(self, armed: Armed[FaultSpec], seen: Occurrence) -> None:
        assert self._context is not None
        try:
            proof = self._in_danger(self._context, seen, armed.fault.prove(self._context, seen))
        except Exception as failure:  # see above
            proof = Proof(False, (Evidence("the hit could not be proven", detail=str(failure)),))
        if armed.spec.at.attempt is not None:
            proof = replace(proof, evidence=(f"attempt {seen.attempt} at batch {seen.batch}", *proof.evidence))
        self._finish(armed, seen, proof)

    def _has_written(self, context: FaultContext, seen: Occurrence, proof: Proof) -> Proof:
        """The proof for a batch that read input, unless it is known that it wrote nothing."""
        written = self._writes.written(context, seen.query, seen.batch)
        if written is None or written.unclear is not None or written.changes:
            return proof
        why = (
            f"batch {seen.batch} read input and wrote nothing to any output: {NOTHING_IN_DANGER}; choose another batch"
        )
        return replace(proof, hit=False, evidence=(*proof.evidence, why))

    def _in_danger(self, context: FaultContext, seen: Occurrence, proof: Proof) -> Proof:
        """The proof, unless the batch neither held data nor wrote any: then nothing was in danger, whatever the fault did.

        After the sink's commit what is in danger is what was written: a batch that only read (a join that found no pair) is
        replayed without a trace, whatever the sink is.
        """
        n = seen.batch
        batch = wait_until(f"the ranges of batch {n}", lambda: context.checkpoint.batch(seen.query, n), deadline_s=5)
        if not proof.hit:
            return proof
        if batch.records() > 0:
            return self._has_written(context, seen, proof) if seen.point is Point.AFTER_SINK_COMMIT else proof
        if (tried := context.tried.get((seen.query, n))) is not None:
            return replace(proof, evidence=(*proof.evidence, f"batch {n} read no input, and {tried}"))
        written = self._writes.written(context, seen.query, n)
        if written is None:
            why = f"batch {n} held no data, and whether it wrote any is not known: nobody looked at the outputs in time"
        elif written.unclear is not None:
            why = f"batch {n} held no data, and whether it wrote any is not known: {written.unclear}"
        elif written.changes:
            return replace(
                proof, evidence=(*proof.evidence, f"batch {n} read no input, and wrote: {'; '.join(written.changes)}")
            )
        else:
            read = [b.batch for b in context.checkpoint.batches() if b.query == seen.query and b.records()]
            other = f"one that reads input, such as batch {read[-1]}" if read else "another batch"
            why = f"batch {n} held no data and wrote none: {NOTHING_IN_DANGER}; choose {other}"
        return Proof(False, (*proof.evidence, why))

    def _finish(self, armed: Armed[FaultSpec], seen: Occurrence, proof: Proof) -> None:
        self._prove(armed, proof, f"batch {seen.batch} of {seen.query} at {armed.spec.at.point}")
        self._heal(armed)
        if seen.release is not None:
            seen.release()
        self._settle(armed)

    def heal_briefly(self, seconds: float) -> None:
        """`heal_all`, but for no longer than that: on the way out of a failed run the services are about to end anyway,
        and a broker that is being started again must not hold up a Ctrl-C."""
        thread = threading.Thread(target=self.heal_all, name="heal", daemon=True)
        thread.start()
        thread.join(seconds)

    def _query(self, spec: FaultSpec) -> str:
        return spec.at.query or ""

    def _why_not(self, armed: Armed[FaultSpec]) -> str:
        at = armed.spec.at
        if armed.armed_at is None:
            return "never armed: the run ended before the job was started"
        if armed.fired_at is None:
            attempt = f" in attempt {at.attempt}" if at.attempt is not None else ""
            return f"armed, but batch {at.batch} was never seen at {at.point}{attempt}"
        return "fired, but the run ended before the hit was proven"


def struck_by(spec: FaultSpec) -> str:
    """What a fault that acts at once does something to: a checkpoint is damaged while its driver is down, which it kills."""
    return "driver" if spec.target == "checkpoint" else spec.target
