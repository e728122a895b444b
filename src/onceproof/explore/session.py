"""Explores the schedules of one pipeline: executes them in the fastest tier that the job allows, and confirms with real kills."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from onceproof.base.errors import EnvironmentProblem, Interrupted
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import Timeline
from onceproof.explore import schedules
from onceproof.explore.exploration import Confirmation, Directory, Faults, Plan, State, Verdicts
from onceproof.explore.outcome import Judge, reduced
from onceproof.explore.real import HELD_COMMIT, WAITING_SINK, fault_specs, real_run, survey_run, violated_without_result
from onceproof.explore.result import Exploration
from onceproof.explore.schedules import Schedule, scheduled, strikes_of, text_of
from onceproof.history.execution import Execution
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Outcome
from onceproof.scenario.model import FaultSpec
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import LoadedScenario
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed, Unavailable, WarmTier

_SWEEP = 0.6
"""The part of the budget after which no more schedules start in the warm tier: the rest is for real kills."""
_CLEAN_SAMPLE = 0.1
"""The part of the schedules that held which is repeated with real kills, if the budget allows."""
_DRAWING = 0.2
"""The part of the budget after which no more random schedules are drawn."""
CUT_OFF = "it did not end in time"
"""What the session says of a query that it stopped."""
_NO_FAULT: Faults = ()
_UNSEEN = "the session did not see the sink's commit"


class Listener(Protocol):
    """Is notified of the progress. A class that inherits from it ignores what it does not define."""

    def begins(self, what: str) -> None:
        return

    def counts(self, done: int, of: int, states: Counter[State]) -> None:
        return

    def print(self, line: str) -> None:
        return


class Session:
    """Runs one exploration, and stores its state after each schedule."""

    def __init__(
        self,
        loaded: LoadedScenario,
        directory: Directory,
        plan: Plan,
        *,
        budget_s: float,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loaded = loaded
        self._directory = directory
        self._listener = listener
        self._clock = clock
        self._budget_s = budget_s
        self._began = clock()
        self._scenario = reduced(loaded.scenario, plan.rows_per_batch, len(plan.batch_numbers))
        self._drawn = directory.drawn()
        self.result = Exploration(plan, directory)
        self.result.results = directory.results()
        baseline = self.result.results.pop(_NO_FAULT, None)
        if baseline is not None and baseline.state in (State.HELD, State.VIOLATED):  # else it is tried again
            self.result.baseline = baseline
        self.result.confirmations = directory.confirmations()
        self._adopt_violations()

    @property
    def left_s(self) -> float:
        return self._budget_s - (self._clock() - self._began)

    def work(self) -> Exploration:
        """Explore until everything is done, the budget is used, or a signal comes. Raises as a run does, except `Interrupted`."""
        try:
            if self.result.plan.points:  # continued
                self._enumerate()
            elif self.result.plan.mode == "random":  # now, so that no service waits for it
                self._draw(schedules.ORDER)
            if self.result.plan.tier == "warm":
                self._work_warm()
            else:
                self._work_real()
            if self.result.undrawn:
                self.result.ended = "budget"
        except (Interrupted, KeyboardInterrupt):
            self.result.ended = "interrupted"
            with uninterrupted("storing what the last run has shown"):
                self._adopt_violations()
        return self.result

    def _adopt_violations(self) -> None:
        """Count runs that were judged violated, and of which a signal prevented that the result was stored."""
        result = self.result
        shown = [*result.results.values(), *(one.real for one in result.confirmations), result.baseline]
        known = {Path(one.run).name for one in shown if one is not None and one.run is not None}
        for faults, found in violated_without_result(self._directory.runs, known).items():
            if any(place.point not in result.plan.points for place in faults):
                continue  # of the plan before the tier could not go on
            if result.plan.tier == "real":
                if faults == _NO_FAULT:
                    result.baseline = found
                else:
                    result.results[faults] = found
                self._directory.add_result(faults, found)
            elif faults in result.results:
                result.confirmations.append(one := Confirmation(faults, result.results[faults], found))
                self._directory.add_confirmation(one)

    # -- the warm tier --------------------------------------------------------------------------------------------

    def _work_warm(self) -> None:
        try:
            self._sweep()
        except Unavailable as unavailable:
            self._fall_back(unavailable.message)
            return
        self._confirm()

    def _fall_back(self, why: str) -> None:
        """Explore with real kills only. Comparisons with them stay, since a violation that they have shown stays one."""
        self._listener.print(f"not in the warm tier: {why}; every schedule is a run with real kills")
        self._directory.set_aside_results()
        self.result.results, self.result.baseline = {}, None
        # What the session does not see, real kills may show.
        seen = {point: text for point, text in self.result.plan.not_explored.items() if not text.startswith(_UNSEEN)}
        blank = replace(self.result.plan, points=(), not_explored=seen, before_commit=None)
        self._save(replace(blank, tier="real", tier_reason=why))
        self._work_real()

    def _sweep(self) -> None:
        """Execute all schedules that have no result yet."""
        self._listener.begins("starting the services and the Spark session")
        run_dir = RunDir.below(_fresh(self._directory))
        timeline = Timeline(run_dir.events)
        execution = Execution(self._scenario, self._loaded.path, run_dir, timeline)
        try:
            with WarmTier(execution, last_batch=max(self.result.plan.batch_numbers)) as tier:
                judge = Judge(tier, execution, run_dir.path / "outcomes", self._specs)
                self._baseline(tier, judge)
                self._enumerate()
                self._execute(tier, judge)
                self.result.distinct = judge.distinct
        finally:
            timeline.close()

    def _baseline(self, tier: WarmTier, judge: Judge) -> None:
        """Execute the run without faults: it shows which points this job reaches in the session, and whether it holds at all.

        Raises `Unavailable` if it does not: only an ordinary run shows whether the cause is the job or the session.
        """
        self._listener.begins("the run without faults")
        (executed,) = tier.execute([()])
        if executed.failed or not executed.ended:
            why = executed.failed or "; ".join(executed.errors[-1:]) or "it did not end"
            raise Unavailable(f"without faults the query fails in the session: {why}")
        found = self._judged(judge, executed)
        if found.state is not State.HELD:
            raise Unavailable(
                f"without faults the session shows {found.verdict}: {found.why} (run: {found.run}); does the job reach its "
                "tables other than by the arguments {postgres} and {postgres.jdbc}?"
            )
        self.result.baseline = found
        if self.result.plan.points:
            return  # continued
        reached = {Point(point) for _, point, batch, _ in executed.points if batch in self.result.plan.batch_numbers}
        left_out = {
            str(point): f"{_UNSEEN}: it sees those of onceproof's sinks and of psycopg, in the thread that Spark calls"
            for point in schedules.ORDER
            if point not in reached
        }
        seen = {batch for _, _, batch, _ in executed.points}
        if missing := set(self.result.plan.batch_numbers) - seen:
            raise Unavailable(
                f"the query made no batch {min(missing)}: the session limits the batches of a Kafka source read by "
                "spark.readStream, and needs three records or more in each partition"
            )
        points = tuple(point for point in schedules.ORDER if point in reached)
        not_explored = {**self.result.plan.not_explored, **left_out}
        before_commit = WAITING_SINK if "failpoint" in executed.instruments else HELD_COMMIT
        self._save(replace(self.result.plan, points=points, not_explored=not_explored, before_commit=before_commit))
        self._directory.add_result(_NO_FAULT, found)

    def _enumerate(self) -> None:
        """List the schedules of the points that can be reached."""
        plan = self.result.plan
        everywhere = schedules.places(plan.points, plan.batch_numbers)
        if plan.mode == "singles":
            listed = schedules.singles(everywhere)
        elif plan.mode == "pairs":
            listed = schedules.singles(everywhere) + schedules.pairs(everywhere)
        else:
            listed = self._draw(plan.points)
        self.result.wanted, self.result.impossible = [], {}
        for faults in listed:
            schedule = scheduled(faults)
            if isinstance(schedule, str):
                self.result.impossible[faults] = schedule
            else:
                self.result.wanted.append(faults)

    def _draw(self, points: Sequence[Point]) -> list[Faults]:
        """Random schedules with faults at these points only, as many as are wanted, or as the budget allows to draw."""
        plan = self.result.plan
        everywhere = schedules.places(schedules.ORDER, plan.batch_numbers)
        usable = frozenset(schedules.places(points, plan.batch_numbers))
        before = self._drawn
        number = schedules.reachable(list(usable), plan.number)
        self.result.undrawn = 0
        try:
            with schedules.own_storage():
                while len(found := self._drawn.within(usable)) < number and not self._drawn.exhausted:
                    if self._drawn.faults and self.left_s < self._budget_s * (1 - _DRAWING):
                        self.result.undrawn = number - len(found)
                        break
                    if self._drawn is before:
                        self._listener.begins(f"drawing {number} schedules")
                    self._drawn = self._drawn.more(everywhere, plan.seed)
        finally:
            if self._drawn is not before:
                self._directory.save_drawn(self._drawn)
        return found[:number]

    def _execute(self, tier: WarmTier, judge: Judge) -> None:
        todo = [faults for faults in self.result.wanted if faults not in self.result.results]
        self._listener.begins(f"{len(todo)} schedules in the warm tier")
        by_schedule = {strikes_of(faults): faults for faults in todo}
        began = self._clock()
        for executed in tier.execute(self._within_budget(todo)):
            self._keep(by_schedule[executed.strikes], self._judged(judge, executed))
            self.result.warm_done += 1
            self.result.warm_s = self._clock() - began
        if len(self.result.results) < len(self.result.wanted):
            self.result.ended = "budget"

    def _within_budget(self, todo: Sequence[Faults]) -> Iterator[Schedule]:
        for faults in todo:
            if self.left_s < self._budget_s * (1 - _SWEEP):
                return
            yield strikes_of(faults)

    def _judged(self, judge: Judge, executed: Executed) -> Verdicts:
        if executed.failed is not None:
            return Verdicts("error", {}, executed.failed, None, False)
        cut_off = not executed.ended and CUT_OFF in executed.errors
        if cut_off and not executed.reached:
            return Verdicts("error", {}, CUT_OFF, None, False)
        if not executed.reached:
            missed = executed.strikes[len(executed.fired)]
            why = f"the run did not reach {missed.point} of batch {missed.batch} (attempt {missed.attempt})"
            absent = executed.passed(missed)
            if absent and judge.judge(executed.as_far_as_it_came()).outcome is not Outcome.HELD:
                absent, why = False, f"{why}, and its output is not as claimed"
            elif absent:
                why = f"attempt {missed.attempt} at batch {missed.batch} ended without {missed.point}: the sink committed nothing"
            return Verdicts("inconclusive", {}, "; ".join([why, *executed.errors[-1:]]), None, False, absent)
        found = judge.judge(executed)
        if cut_off and found.outcome is not Outcome.VIOLATED:
            return Verdicts("error", {}, CUT_OFF, found.run, True)
        return Verdicts(found.outcome.value, found.anomalies, found.reason, found.run, True)

    # -- real kills -----------------------------------------------------------------------------------------------

    def _work_real(self) -> None:
        if self.result.baseline is None:
            self._survey()
        if self.result.baseline is None or self.result.baseline.state is not State.HELD:
            return
        self._enumerate()
        todo = [faults for faults in self.result.wanted if faults not in self.result.results]
        self._listener.begins(f"{len(todo)} schedules as runs with real kills")
        longest = 0.0
        for faults in todo:
            if self.left_s < longest:
                self.result.ended = "budget"
                return
            began = self._clock()
            self._keep(faults, self._real(faults))
            longest = max(longest, self._clock() - began)

    def _survey(self) -> None:
        """Run the job without faults, and look at which points its driver can be crashed. Raises as a run does."""
        self._listener.begins("the run without faults")
        seen = survey_run(self._loaded, self._scenario, self._directory.runs)
        self.result.baseline = seen.verdicts
        if seen.verdicts.state is State.HELD:
            plan = self.result.plan
            not_explored = {**plan.not_explored, **seen.not_explored}
            self._save(replace(plan, points=seen.points, not_explored=not_explored, before_commit=seen.before_commit))
        self._directory.add_result(_NO_FAULT, seen.verdicts)

    def _confirm(self) -> None:
        """Repeat with real kills: violations first, then a sample of the schedules that held."""
        done = {one.faults for one in self.result.confirmations if one.decided}
        violated = [faults for faults in _covering(self.result.results) if faults not in done]
        clean = sorted(faults for faults, found in self.result.results.items() if found.state is State.HELD)
        self.result.sample = -(-len(clean) // round(1 / _CLEAN_SAMPLE))
        chosen = random.Random(self.result.plan.seed).sample(clean, self.result.sample)  # noqa: S311  # no secret
        todo = [*violated, *(faults for faults in chosen if faults not in done)]
        self._listener.begins(f"{len(todo)} schedules again with real kills")
        longest = 0.0
        for number, faults in enumerate(todo):
            # A violation is never reported without real kills: at least one is tried, whatever time is left.
            if (number > 0 or not violated) and self.left_s < longest:
                self.result.ended = "budget"
                return
            began = self._clock()
            one = Confirmation(faults, self.result.results[faults], self._real(faults))
            longest = max(longest, self._clock() - began)
            self.result.confirmations.append(one)
            self._directory.add_confirmation(one)
            agrees = "agrees" if one.agrees else "DISAGREES" if one.decided else "no verdict"
            self._listener.print(f"real kills, {text_of(faults)}: {one.real.state}, {agrees} ({one.fast.state} before)")

    def _real(self, faults: Faults) -> Verdicts:
        return real_run(self._loaded, self._scenario, self._specs(strikes_of(faults)), self._directory.runs)

    def _specs(self, schedule: Sequence[Strike]) -> list[FaultSpec]:
        return fault_specs(self._scenario, schedule, self.result.plan.before_commit)

    def _keep(self, faults: Faults, found: Verdicts) -> None:
        self.result.results[faults] = found
        self._directory.add_result(faults, found)
        self._listener.counts(len(self.result.results), len(self.result.wanted), self.result.count())

    def _save(self, plan: Plan) -> None:
        self.result.plan = plan
        self._directory.save(plan)


def _covering(results: dict[Faults, Verdicts]) -> list[Faults]:
    """Violated schedules that together have every point and anomaly of all of them: few faults first."""
    violated = sorted(
        (faults for faults, found in results.items() if found.state is State.VIOLATED),
        key=lambda faults: (len(faults), faults),
    )
    covered: set[tuple[Point, str]] = set()
    chosen = []
    for faults in violated:
        shows = {(place.point, anomaly) for place in faults for anomaly in results[faults].anomalies}
        if not shows <= covered:
            chosen.append(faults)
            covered |= shows
    return chosen


def _fresh(directory: Directory) -> Path:
    """A folder for this session of the warm tier: a continued exploration has one for each."""
    for number in range(1, 10_000):
        path = directory.warm / f"{number:02d}"
        if not path.exists():
            return path
    raise EnvironmentProblem(f"{directory.warm} holds too many sessions")
