"""Shared by the faults that stop a frame: which frame to stop, in which batch, and what the service then did with it.

The rule is armed when the batch is planned, with the job stopped meanwhile. The frame that it stops therefore belongs to that
batch, unless the batch is already committed by then. A frame does not name its query: in a job with several, the rule must
identify the query by the frame's content.
"""

from __future__ import annotations

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.base.words import times
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.placement import RESTART_S, committed, has_own_file_manager, instruments_of, is_open
from onceproof.instruments.proxy.rules import Action, Cut, Hit, Rule
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point
from onceproof.stack.api import FramedService
from onceproof.stores.frames import FrameSpec, Service, all_frames, frames_of

HIT_S = 60.0
"""Limit for the time from a batch's plan to its COMMIT; a batch of the shipped jobs takes under two seconds."""
ANSWER_S = 20.0


def frame_problems(
    frame: FrameSpec, target: Service, scenario: Scenario, loc: str = "frame", *, query: str | None = None
) -> list[SpecProblem]:
    """Why this frame can never be stopped: its kind is unknown or belongs to the other service, or the stack lacks the service.
    Or why it could belong to another query than the fault's (``query``: the one that the fault names)."""
    of_store = frames_of(target)
    if (missing := of_store.missing(scenario)) is not None:
        return [missing]
    try:
        condition = frame.condition(target)
    except UsageError as wrong:
        return [SpecProblem((loc,), wrong.message, wrong.hint)]
    if not of_store.has(condition.kind):
        hint = "; ".join(f"for {one.service}: {one.kinds}" for one in all_frames())
        return [SpecProblem((loc, "kind"), f"{target} has no request {condition.kind!r}", hint)]
    asked = frame.model_dump(exclude={"kind", "nth"})
    never = [
        SpecProblem((loc, key), f"a frame of {target} has no {key}", f"that is for {other.service}: remove it")
        for other in all_frames()
        for key in other.keys
        if other is not of_store and asked.get(key) is not None
    ]
    never += of_store.unmatchable(asked, condition.kind, scenario, loc)
    if never:
        return never
    if several_queries(scenario, query) and not of_store.identifies_query(frame):
        message = "a frame does not name its query: in a job with several, a frame of another query could be stopped"
        return [SpecProblem((loc,), message, f"name what distinguishes it: {of_store.distinctions}")]
    return []


def commit_problems(frame: FrameSpec, target: Service) -> list[SpecProblem]:
    """A problem for a fault at before-sink-commit if the frame is not a commit: the transaction is then not complete."""
    commit = frames_of(target).commit
    kind = frame.kind or commit
    if kind == commit and frame.committed is not False:
        return []
    loc = ("frame", "kind" if kind != commit else "committed")
    message = (
        f"this {kind} is not a commit: at {Point.BEFORE_SINK_COMMIT.value} {LEFT_BEHIND[Point.BEFORE_SINK_COMMIT]}"
    )
    return [SpecProblem(loc, message, f"use {commit}, or point {Point.IN_TASKS.value} where the fault allows it")]


def several_queries(scenario: Scenario, query: str | None) -> bool:
    """Whether the job has more than one query, as the scenario declares or as the fault implies by naming one."""
    return query is not None or len(scenario.pipeline.queries) > 1


def placement_at_frame(point: Point, proof: str, scenario: Scenario) -> Placement:
    """How exactly a fault can stop a frame of the batch in this scenario."""
    why = f"stops the frame itself: {LEFT_BEHIND[point]}; works with any job"
    if has_own_file_manager(scenario):
        # The driver does not wait while the rule is armed: the frame may already have passed, which is reported as a miss.
        why = (
            f"{why}; the job sets its own checkpoint file manager, so the rule is armed only after the plan was written"
        )
        return Placement("approximate", "protocol proxy, armed by the checkpoint watcher", why, proof)
    return Placement("exact", "protocol proxy", why, proof)


def at_plan(seen: Occurrence) -> bool:
    """Whether a batch's plan was just written, which is when rules on its frames are armed."""
    return seen.point is Point.AFTER_OFFSET_LOG and seen.instrument in instruments_of(seen.point)


class AtItsFrame:
    """Base of the faults that strike at a frame of their batch: armed when the batch is planned."""

    @classmethod
    def reads_frames(cls, spec: AnyFaultSpec) -> bool:
        return True

    def matches(self, seen: Occurrence) -> bool:
        return at_plan(seen)


class StoppedRequest:
    """A request of one batch: `arm` arms the rule, `wait_for_hit` returns the stopped request, `close` disarms the rule."""

    def __init__(self, service: FramedService, rule: Rule) -> None:
        self.service = service
        self.rule = rule
        self._was_open = False

    def arm(self, context: FaultContext, seen: Occurrence, *others: Rule) -> None:
        """Arm the rules while the job is stopped, so that no frame of the batch passes before."""
        with context.job.frozen():
            for rule in (self.rule, *others):
                context.board(self.service).arm(rule)
            self._was_open = is_open(context, seen.query, seen.batch)

    def wait_for_hit(self, context: FaultContext, seen: Occurrence) -> Hit | Proof:
        """The first stopped request; or a miss that says why there is none."""
        if not self._was_open:
            return missed(f"batch {seen.batch} was no longer open when the rule was armed")

        def raise_if_committed() -> None:
            # Not `hits`: the service may commit a delivered frame before the proxy's thread has added its hit.
            if committed(context, seen.query, seen.batch) and not self.rule.stopped:
                raise WaitTimeout(f"batch {seen.batch} was committed without a {self.rule.describe()}")

        what = f"a {self.rule.describe()}"
        try:
            return wait_until(
                what, lambda: next(iter(self.rule.hits), None), deadline_s=HIT_S, abandon=raise_if_committed
            )
        except WaitTimeout as never:
            return missed(never.message, f"nearest: {self.rule.nearest()}")

    def close(self, context: FaultContext) -> None:
        context.board(self.service).disarm(self.rule)


class StoppedFrame(StoppedRequest):
    """One frame of one batch, and what its service did with it; `wait_for_frame` returns the stopped frame.

    Its client may still leave while the frame is held: a fault that strikes meanwhile asks `Hit.lost_before` afterwards."""

    def __init__(self, spec: FrameSpec, target: Service, action: Action, *, hold: bool, cut: Cut = "reset") -> None:
        super().__init__(target, Rule(spec.condition(target), action, cut, nth=spec.nth, hold=hold, name=action))
        self.store = frames_of(target)
        self._spec = spec
        self.xid: str | None = None

    def wait_for_frame(self, context: FaultContext, seen: Occurrence) -> Hit | Proof:
        """The frame, stopped while its batch was open; or a miss that says why there is none."""
        hit = self.wait_for_hit(context, seen)
        if isinstance(hit, Proof):
            return hit
        now = context.attempt(seen.query, seen.batch)
        if seen.only_attempt is not None and now != seen.only_attempt:
            why = f"it came in attempt {now} at batch {seen.batch}, and the fault waits for attempt {seen.only_attempt}"
            return missed(self.describe_stop(hit, seen), why)
        if (several := self._may_be_another_querys(context)) is not None:
            return missed(self.describe_stop(hit, seen), several)
        if (self.rule.hold or self.rule.action == "late") and committed(context, seen.query, seen.batch):
            return missed(f"the stopped {hit.frame.kind} was sent only after batch {seen.batch} was committed")
        if self.store.recorded(hit.frame) is not None:
            context.attempted_writes[seen.query, seen.batch] = f"sent {self.store.describe(hit.frame)}"
        self.xid = self.store.transaction(context.stack, hit.frame)
        if self.rule.hold and hit.undeliverable is not None:
            return missed(self.describe_stop(hit, seen), hit.undeliverable)
        return hit

    def _may_be_another_querys(self, context: FaultContext) -> str | None:
        """Why the frame may belong to another query; None if it cannot. `frame_problems` asks this of declared queries only."""
        queries = sorted(context.checkpoint.queries())
        if len(queries) < 2 or self.store.identifies_query(self._spec):
            return None
        return (
            f"the job has {len(queries)} queries ({', '.join(queries)}), and the frame may belong to any of them: declare "
            f"pipeline.queries, and name under frame what distinguishes it: {self.store.distinctions}"
        )

    def describe_stop(self, hit: Hit, seen: Occurrence) -> str:
        return f"{self.store.describe(hit.frame)} was stopped by {hit.proxy} while batch {seen.batch} was open"

    def wait_for_outcome(self, context: FaultContext) -> str | None:
        """What became of the frame's transaction, once it has ended; None if its id is not known."""
        return None if self.xid is None else self.store.outcome(context.stack, self.xid)


def wait_for_restart(context: FaultContext, start: int) -> str:
    """Wait until the supervisor has started a driver after ``start``; returns that as evidence. Raises `WaitTimeout`."""
    wait_until("the driver to be started again", lambda: context.job.restarted_since(start), deadline_s=RESTART_S)
    return "the driver was started again"


def wait_for_commit(context: FaultContext, seen: Occurrence) -> str:
    """Wait until Spark has committed the batch; returns that as evidence. Raises `WaitTimeout`."""
    wait_until(
        f"batch {seen.batch} to be committed after the fault",
        lambda: committed(context, seen.query, seen.batch),
        deadline_s=RESTART_S,
        explain=lambda: f"driver start {context.job.current_start}",
    )
    return f"batch {seen.batch} was committed by Spark afterwards"


def prove_loss(stopped: StoppedFrame, context: FaultContext, seen: Occurrence) -> Proof:
    """Prove a lost request or a lost answer: the frame is held, then it or its answer is dropped, and the service is asked."""
    found = stopped.wait_for_frame(context, seen)
    if isinstance(found, Proof):
        return found
    evidence = [stopped.describe_stop(found, seen)]
    stopped.rule.release()
    lost_answer = stopped.rule.action == "drop-answer"
    if found.undeliverable is not None:
        return missed(*evidence, found.undeliverable)
    if lost_answer:
        answer = stopped.rule.wait_for_answer(found, ANSWER_S)
        facts = {name: value for name, value in answer.facts.items() if value is not None}
        how = "its client was left waiting" if stopped.rule.cut == "silence" else "its client's connection was cut"
        evidence.append(f"it was delivered; the service answered {facts}; the answer was dropped, and {how}")
        why_not = stopped.store.why_not_applied(found.frame, answer, stopped.xid)
        if why_not is not None:
            return missed(*evidence, why_not)
    else:
        wait_until("the request to be lost", lambda: found.cut_at or found.undeliverable, deadline_s=ANSWER_S)
        if found.undeliverable is not None:
            return missed(*evidence, found.undeliverable)
        end = {"reset": "its client's connection was reset", "close": "its client's connection was closed"}
        evidence.append(f"it was never delivered; {end.get(stopped.rule.cut, 'its client was left waiting')}")
        unknown = stopped.store.unknown_after_loss(found.frame, stopped.xid)
        if unknown is not None:
            evidence.append(unknown[1])
            if not unknown[0]:
                return missed(*evidence)
    became, wanted = stopped.wait_for_outcome(context), "committed" if lost_answer else "aborted"
    if became is not None:
        evidence.append(f"pg_xact_status of transaction {stopped.xid}: {became}")
        if became != wanted:
            return missed(*evidence)
    evidence.append(wait_for_commit(context, seen))
    later = stopped.rule.fitting - stopped.rule.nth
    if later > 0:
        evidence.append(
            f"{times(later, 'matching request')} came later: the client, or a restarted one, connected again"
        )
    return proven(*evidence)
