"""Controls the faults of one run: arms them before the job starts, fires each at its position, proves the hit, and heals it.

The instruments (checkpoint file system, checkpoint watcher, failpoints) report each point that a batch reaches. The controller
fires the fault that waits for that point, in the instrument's thread, and proves the hit in a separate thread per fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import NeedsInput, Occurrence, Proof, missed, reads_frames, strikes_at
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.evidence.unrecorded import UnrecordedRows
from onceproof.faults.evidence.writes import NOTHING_IN_DANGER, WriteWatch
from onceproof.faults.table import Armed, FaultTable
from onceproof.instruments.failpoints import Parked, SinkEvent
from onceproof.scenario.model import FaultSpec
from onceproof.scenario.modes import without_batches
from onceproof.scenario.points import Point

_SURVEYED = frozenset(range(1000))
"""The batches that a survey compares: more than a first run has."""


class FaultController(FaultTable[FaultSpec, FaultContext]):
    """The faults of a Spark job: each strikes in an instrument's thread and is proven in a thread of its own."""

    def __init__(self, specs: list[FaultSpec], timeline: Timeline, *, survey: bool = False) -> None:
        """``survey``: compare the outputs before and after every batch, not only those that a fault waits for."""
        super().__init__(specs, timeline)
        struck = frozenset(spec.at.batch for spec in specs)
        committed = frozenset(spec.at.batch for spec in specs if spec.at.point is Point.AFTER_SINK_COMMIT)
        self._writes = WriteWatch(_SURVEYED, _SURVEYED) if survey else WriteWatch(struck, committed)
        unplanned = frozenset(spec.at.batch for spec in specs if spec.at.point is Point.BEFORE_OFFSET_LOG)
        self._unrecorded = UnrecordedRows(unplanned)
        self._lock = threading.Lock()
        self._uncounted: set[int] = set()
        """Faults that wait for an attempt, and whose position was seen where nothing counts attempts."""
        self._threads: list[threading.Thread] = []
        self._reaching = 0
        """How many reports of the instruments are being acted on."""

    @property
    def quiet(self) -> bool:
        """Also False while a report of an instrument is acted on: a fault may be about to fire, once the outputs have been read."""
        return not self._reaching and super().quiet

    @property
    def feeds(self) -> bool:
        """Whether the next chunk of input may be released: every fault between firing and healing needs input to continue."""
        return not self._reaching and all(
            isinstance(a.fault, NeedsInput) and a.fault.needs_input for a in self.armed if a.in_progress
        )

    # -- what the instruments call --------------------------------------------------------------------------------

    def wanted(self) -> list[tuple[int, Point]]:
        """Batches and points at which an unfired fault waits, or at which the outputs are read."""
        waits = [(a.spec.at.batch, strikes_at(a.spec)) for a in self.armed if a.fired_at is None]
        return [*waits, *self._writes.points(), *self._unrecorded.points()]

    def wrote(self, query: str, batch: int) -> tuple[str, ...] | None:
        """The outputs that a committed batch changed; None if they were not compared."""
        written = self._writes.at_commit(self._context, query, batch) if self._context is not None else None
        return None if written is None else written.outputs

    def on_log(self, query: str, batch: int, point: Point) -> None:
        """Called by the checkpoint watcher, after the file was written."""
        if self._context is not None and self._context.attempt(query, batch) is None:
            self._uncounted |= {
                armed.index
                for armed in self.armed
                if armed.spec.at.attempt is not None
                and (armed.spec.at.batch, strikes_at(armed.spec)) == (batch, point)
                and armed.spec.at.query in (None, query)
            }
        self._reached(Occurrence(query, batch, point, "watcher"))

    def on_write(self, query: str, batch: int, point: Point, attempt: int) -> threading.Event | None:
        """Called by the checkpoint file system: the driver waits until this returns and the returned event, if any, is set."""
        resume, held = threading.Event(), threading.Event()

        def hold() -> Callable[[], None]:
            held.set()
            return resume.set

        self._reached(Occurrence(query, batch, point, "checkpoint", hold=hold, attempt=attempt))
        return resume if held.is_set() else None

    def on_point(self, parked: Parked) -> None:
        """Called when a sink has parked at a failpoint."""
        query = self._query_of(parked.query_id)
        self._timeline.emit("point", point=parked.point, sink=parked.sink, batch=parked.batch, query=query)
        attempt = self._context.attempt(query, parked.batch) if self._context is not None else None
        seen = Occurrence(
            query, parked.batch, parked.point, "failpoint", parked.sink, parked.facts, parked.release, attempt=attempt
        )
        if not self._reached(seen):
            parked.release()

    def on_sink_event(self, event: SinkEvent) -> None:
        """Called when a sink reports something."""
        if self._context is not None:
            self._context.sink_events.append(replace(event, query=self._query_of(event.query)))
        self._timeline.emit(f"sink.{event.event}", sink=event.sink, batch=event.batch, facts=event.facts)

    def _query_of(self, query_id: str) -> str:
        known = self._context.checkpoint.query_of_id(query_id) if self._context is not None else None
        return known or query_id

    def _reached(self, seen: Occurrence) -> bool:
        """Fire every fault that waits for this occurrence; return whether one did.

        Faults that kill the driver strike last: a rule on frames must be armed, or a broker killed, before the driver is gone.
        Of several faults with the same target only the first strikes; the others keep waiting.
        """
        context = self._context
        if context is None:
            return False
        with self._lock:
            self._reaching += 1
        try:
            return self._fire(context, seen)
        finally:
            with self._lock:
                self._reaching -= 1

    def _fire(self, context: FaultContext, seen: Occurrence) -> bool:
        if seen.instrument != "failpoint":
            self._writes.reached(context, seen.query, seen.batch, seen.point)
            self._unrecorded.reached(context, seen)
        with self._lock:
            ready: list[Armed[FaultSpec]] = []
            taken: set[str] = set()
            for armed in self.armed:
                acts = not reads_frames([armed.spec])
                if not (acts and struck_target(armed.spec) in taken) and self._waits_for(armed, seen):
                    ready.append(armed)
                    taken |= {struck_target(armed.spec)} if acts else set()
            ready.sort(key=lambda armed: struck_target(armed.spec) == "driver" and not reads_frames([armed.spec]))
            for armed in ready:
                armed.fired_at = self._timeline.now()
        # A parked sink resumes once all faults have struck and one of them has released it or is settled.
        released, all_struck = threading.Event(), threading.Event()

        def release() -> None:
            released.set()
            if all_struck.is_set() and seen.release is not None:
                seen.release()

        parked = replace(seen, release=release) if seen.release is not None else seen
        for armed in ready:
            self._strike(armed, context, replace(parked, only_attempt=armed.spec.at.attempt))
        all_struck.set()
        if released.is_set():
            release()
        return bool(ready)

    def _strike(self, armed: Armed[FaultSpec], context: FaultContext, seen: Occurrence) -> None:
        try:
            armed.fault.strike(context, seen)
        except Exception as failure:  # a fault that raises is reported as a miss, with the cause
            self._finish(armed, seen, missed(Evidence("injecting the fault failed", detail=repr(failure))))
            return
        armed.query = seen.query
        self._emit("fault.fired", armed, instrument=seen.instrument)
        thread = threading.Thread(
            target=self._prove_hit, args=(armed, seen), name=f"fault-{armed.index}-{armed.spec.fault}", daemon=True
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

    def _prove_hit(self, armed: Armed[FaultSpec], seen: Occurrence) -> None:
        assert self._context is not None
        try:
            proof = self._check_stakes(self._context, seen, armed.fault.prove(self._context, seen))
        except Exception as failure:  # as in `_strike`
            proof = missed(Evidence("the hit could not be proven", detail=str(failure)))
        if armed.spec.at.attempt is not None:
            struck = f"it struck attempt {seen.attempt} at batch {seen.batch}"
            proof = replace(proof, evidence=(struck, *proof.evidence))
        self._finish(armed, seen, proof)

    def _check_write(self, context: FaultContext, seen: Occurrence, proof: Proof) -> Proof:
        """The proof for a batch that read input; a miss if the batch is known to have written nothing."""
        written = self._writes.written(context, seen.query, seen.batch)
        if written is None or written.unclear is not None or written.changes:
            return proof
        why = (
            f"batch {seen.batch} read input and wrote nothing to any output: {NOTHING_IN_DANGER}; choose another batch"
        )
        return replace(proof, hit=False, evidence=(*proof.evidence, why))

    def _check_stakes(self, context: FaultContext, seen: Occurrence, proof: Proof) -> Proof:
        """The proof; a miss if the batch neither read input nor wrote anything, because then nothing was in danger.

        After the sink's commit only the batch's writes are in danger: replaying a batch that read input and wrote nothing (a
        join that found no pair) leaves no trace with any sink.
        """
        n = seen.batch
        if not proof.hit:
            return proof
        batch = wait_until(f"the ranges of batch {n}", lambda: context.checkpoint.batch(seen.query, n), deadline_s=5)
        in_epochs = seen.query in without_batches(context.modes)
        if in_epochs and seen.point is Point.BEFORE_OFFSET_LOG:
            return self._unrecorded.check(seen, proof)
        if batch.records() > 0:  # the rows of an epoch are in the output before its end is logged
            writes_late = seen.point is Point.AFTER_SINK_COMMIT and not in_epochs
            return self._check_write(context, seen, proof) if writes_late else proof
        if (attempted := context.attempted_writes.get((seen.query, n))) is not None:
            return replace(proof, evidence=(*proof.evidence, f"batch {n} read no input, but {attempted}"))
        written = self._writes.written(context, seen.query, n)
        unknown = f"batch {n} read no input, and whether it wrote anything is not known"
        if written is None:
            why = f"{unknown}: no output of query {seen.query} was read when the batch was planned"
        elif written.unclear is not None:
            why = f"{unknown}: {written.unclear}"
        elif written.changes:
            changes = "; ".join(written.changes)
            return replace(proof, evidence=(*proof.evidence, f"batch {n} read no input, but wrote: {changes}"))
        else:
            read = [b.batch for b in context.checkpoint.batches() if b.query == seen.query and b.records()]
            other = f"one that reads input, such as batch {read[-1]}" if read else "another batch"
            why = f"batch {n} read no input and wrote nothing: {NOTHING_IN_DANGER}; choose {other}"
        return missed(*proof.evidence, why)

    def _finish(self, armed: Armed[FaultSpec], seen: Occurrence, proof: Proof) -> None:
        self._prove(armed, proof, f"batch {seen.batch} of {seen.query} at {armed.spec.at.point}")
        self._settle(armed)  # before it is healed: then the run may end, and no event is written any more
        self._heal(armed)
        if seen.release is not None:
            seen.release()

    def heal_briefly(self, seconds: float) -> None:
        """Call `heal_all`, but wait at most ``seconds`` for it: after a failed run the services are stopped anyway, and a
        broker that is being restarted must not delay a Ctrl-C."""
        thread = threading.Thread(target=self.heal_all, name="heal", daemon=True)
        thread.start()
        thread.join(seconds)

    def _query(self, spec: FaultSpec) -> str:
        return spec.at.query or ""

    def _why_not(self, armed: Armed[FaultSpec]) -> str:
        at = armed.spec.at
        if armed.armed_at is None:
            return "never armed: the run ended before the job started"
        if armed.fired_at is None:
            query = f" of query {at.query}" if at.query is not None else ""
            attempt = f" in attempt {at.attempt}" if at.attempt is not None else ""
            if armed.index in self._uncounted:
                attempt += (
                    ": only the checkpoint watcher saw that point, which does not count attempts, because the job has a "
                    "checkpoint file manager of its own; leave out `attempt`, or that file manager"
                )
            return f"armed, but batch {at.batch}{query} was never seen at {at.point}{attempt}"
        return "fired, but the run ended before the hit was proven"


def struck_target(spec: FaultSpec) -> str:
    """The target that a fault acts on when it strikes: damage to a checkpoint first kills the driver."""
    return "driver" if spec.target == "checkpoint" else spec.target
