"""Stop (SIGTERM): where it can be placed, and what it proves from how a driver ended. Real scenarios show its effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.stop import DriverStop, DriverStopAtFrame, StopAtFrameSpec, StopSpec, _Stopping
from onceproof.faults.contract import Occurrence, Proof, SpecProblem, fault_of
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.points import Point

Problems = Callable[..., list[SpecProblem]]
COPY = {"service": "postgres", "frame": {"kind": "statement", "sql": "copy .departures"}}


def spec(point: str, **settings: Any) -> dict[str, Any]:
    return {"fault": "stop", "target": "driver", **settings, "at": {"batch": 2, "point": point}}


@pytest.mark.parametrize("point", ["after-offset-log", "before-sink-commit", "after-sink-commit"])
def test_a_driver_can_be_stopped_while_its_batch_is_open(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []


def test_it_can_be_stopped_while_a_request_is_on_its_way(problems: Problems) -> None:
    assert problems(spec("in-tasks", **COPY)) == []
    (problem,) = problems(spec("in-tasks", **COPY), postgres=False)
    assert problem.loc == ("service",)


def test_after_the_commit_log_there_is_nothing_to_interrupt(problems: Problems) -> None:
    (problem,) = problems(spec("after-commit-log"))
    assert problem.loc == ("at", "point") and "in-tasks" in (problem.hint or "")


@pytest.mark.parametrize("grace_s", [0, -1, 301])
def test_the_grace_period_has_limits(problems: Problems, grace_s: float) -> None:
    (problem,) = problems(spec("after-offset-log", grace_s=grace_s))
    assert problem.loc == ("grace_s",)


def test_the_point_chooses_the_class() -> None:
    assert fault_of(StopSpec.model_validate(spec("after-offset-log"))) is DriverStop
    assert fault_of(StopAtFrameSpec.model_validate(spec("in-tasks", **COPY))) is DriverStopAtFrame


class Job:
    """A driver that ends with ``code`` when it is asked to, or never (None); the next one starts when it has ended."""

    def __init__(self, code: int | None) -> None:
        self.exits: list[SimpleNamespace] = []
        self.asked, self.killed, self._code = 0, 0, code

    def ask_driver_to_end(self) -> int:
        self.asked += 1
        if self._code is not None:
            self.exits.append(SimpleNamespace(start=0, code=self._code))
        return 0

    def is_running(self) -> bool:
        return not self.exits

    def kill_driver(self) -> int:
        self.killed += 1
        return 0

    @contextmanager
    def no_start(self) -> Iterator[None]:
        yield

    def restarted_since(self, start: int) -> bool:
        return bool(self.exits or self.killed)


def proof_of(
    code: int | None,
    *,
    committed: bool = False,
    planned: bool = True,
    replayed: bool = True,
    counted: bool = True,
    looks: int = 0,
    tried_again: bool = False,
) -> tuple[Proof, Job]:
    """``replayed``: by the next driver, which else finds the commit. ``counted``: attempts are counted. ``looks``: how often the
    fault's thread finds no restart before it is delayed until the next driver has come that far. ``tried_again``: the driver that
    was asked to end restarted its query, and the batch with it."""
    logs = {"offsets": planned, "commits": committed}
    attempts = 1
    job = Job(code)
    ended, left = job.restarted_since, looks

    def restarted_since(start: int) -> bool:
        nonlocal left, attempts
        if not ended(start):
            return False
        left -= 1
        logs["commits"], attempts = True, 1 + replayed + tried_again
        return left < 0

    job.restarted_since = restarted_since  # type: ignore[method-assign]

    def log_exists(_query: str, log: str, _batch: int) -> bool:
        return logs[log]

    def batch(_query: str, number: int) -> Batch | None:
        return Batch("q", number, {}, {}, None, 1.0, 0, 2.0, int(replayed)) if logs["commits"] else None

    checkpoint = SimpleNamespace(log_exists=log_exists, batch=batch, check=lambda: None)
    context: Any = SimpleNamespace(
        job=job, checkpoint=checkpoint, attempt=lambda _query, _batch: attempts if counted else None
    )
    fault = DriverStop(StopSpec.model_validate(spec("after-offset-log", grace_s=0.1)))
    seen = Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint")
    fault.strike(context, seen)
    return fault.prove(context, seen), job


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-15, "the signal ended it")]
)
def test_the_evidence_says_how_the_driver_ended(code: int, words: str) -> None:
    proof, job = proof_of(code)
    assert proof.hit and job.asked == 1 and job.killed == 0
    assert any(words in str(line) for line in proof.evidence), proof.evidence
    assert any("still missing when driver start 1 began" in str(line) for line in proof.evidence), proof.evidence


@pytest.mark.parametrize("looks", [0, 1])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(
    ("replayed", "words"),
    [(True, "still missing when driver start 1 began"), (False, "was committed before driver start 1")],
)
def test_who_committed_the_batch_does_not_depend_on_when_it_is_looked_at(
    replayed: bool, words: str, counted: bool, looks: int
) -> None:
    proof, _ = proof_of(0, replayed=replayed, counted=counted, looks=looks)
    assert proof.hit and any(words in str(line) for line in proof.evidence), proof.evidence


def test_a_batch_that_the_same_driver_tried_again_and_committed_was_not_replayed() -> None:
    proof, _ = proof_of(0, replayed=False, tried_again=True)
    assert proof.hit
    assert any("was committed before driver start 1" in str(line) for line in proof.evidence), proof.evidence


def test_a_driver_that_does_not_end_in_time_is_killed() -> None:
    proof, job = proof_of(None)
    assert proof.hit and job.killed == 1
    assert any("still ran after 0.1 s, and was killed" in str(line) for line in proof.evidence), proof.evidence


def end_of(job: Job) -> str:
    """How the driver ended that was asked to end in an open batch, and had no time for it."""
    context: Any = SimpleNamespace(
        job=job,
        checkpoint=SimpleNamespace(log_exists=lambda _query, log, _batch: log == "offsets"),
        attempt=lambda _query, _batch: 1,
    )
    return _Stopping(context, Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint"), 0.0)._how_it_ended()


def test_the_next_driver_is_not_killed_in_the_place_of_one_that_ended_right_after_its_time() -> None:
    class LastMoment(Job):
        @contextmanager
        def no_start(self) -> Iterator[None]:
            self.exits.append(SimpleNamespace(start=0, code=0))  # and the supervisor has started the next one
            yield

    job = LastMoment(None)
    assert end_of(job) == "it ended with exit code 0" and job.killed == 0


def test_a_driver_that_ends_just_when_its_time_is_up_was_not_killed() -> None:
    class Ending(Job):
        def is_running(self) -> bool:
            self.exits.append(SimpleNamespace(start=0, code=3))  # the supervisor records it a moment later
            return False

    job = Ending(None)
    assert end_of(job) == "it ended with exit code 3" and job.killed == 0


@pytest.mark.parametrize(("planned", "committed"), [(True, True), (False, False)])
def test_a_batch_that_was_not_open_is_a_miss(planned: bool, committed: bool) -> None:
    proof, _ = proof_of(0, planned=planned, committed=committed)
    assert not proof.hit and "no longer open" in str(proof.evidence[-1])
