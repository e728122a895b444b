"""Faults that stop a frame: which frame a spec may name, and what proves that it was lost. No service is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Fault, Occurrence, Proof, SpecProblem, faults
from onceproof.faults.frames import StoppedFrame, prove_loss
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import Action, Board, Hit, now
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.stores.frames import FrameSpec, frames_of

LOST = {"fault": "lost-ack", "target": "postgres", "at": {"batch": 2, "point": "commit-unacknowledged"}}


@pytest.mark.parametrize(
    ("target", "frame", "identified"),
    [
        ("postgres", {}, False),
        ("postgres", {"transaction": "departures"}, True),
        ("postgres", {"kind": "statement", "sql": "departures"}, True),
        ("postgres", {"nth": 2}, False),
        ("kafka", {}, False),
        ("kafka", {"transactional_id": "^sums-"}, True),
        ("kafka", {"kind": "Produce"}, False),
        ("kafka", {"kind": "Produce", "topic": "out"}, True),
    ],
)
def test_in_a_job_with_several_queries_a_frame_must_identify_its_query(
    problems: Callable[..., list[SpecProblem]], target: str, frame: dict[str, Any], identified: bool
) -> None:
    spec = LOST | {"target": target, "frame": frame}
    assert problems(spec) == []
    several = problems(spec, queries=["a", "b"])
    named = problems(spec | {"at": {"batch": 2, "point": "commit-unacknowledged", "query": "a"}})
    assert several == named
    assert [problem.loc for problem in several] == ([] if identified else [("frame",)])


@pytest.mark.parametrize(
    ("target", "frame", "key", "message", "hint"),
    [
        ("kafka", {"kind": "Produce", "topic": "uot"}, "topic", "no topic is named 'uot'", "did you mean 'out'"),
        ("kafka", {"topic": "out"}, "topic", "EndTxn carries no topic", "choose it by transactional_id"),
        ("kafka", {"kind": "Fetch", "transactional_id": "x"}, "transactional_id", "Fetch carries no", "remove it"),
        ("kafka", {"kind": "Produce", "committed": True}, "committed", "Produce carries no", "remove it"),
        ("kafka", {"sql": "x"}, "sql", "a frame of kafka has no sql", "for postgres"),
        ("postgres", {"topic": "out"}, "topic", "a frame of postgres has no topic", "for kafka"),
        ("postgres", {"committed": False}, "committed", "a frame of postgres has no committed", "for kafka"),
    ],
)
@pytest.mark.parametrize("fault", ["lost-ack", "lost-request", "late-request"])
def test_a_frame_that_can_never_match_is_refused(
    problems: Callable[..., list[SpecProblem]],
    fault: str,
    target: str,
    frame: dict[str, Any],
    key: str,
    message: str,
    hint: str,
) -> None:
    at = {"batch": 2, "point": "commit-unacknowledged" if fault == "lost-ack" else "commit-lost"}
    spec = {"fault": fault, "target": target, "at": at, "frame": frame}
    if fault == "late-request":
        spec["deliver_before"] = {"kind": "statement" if target == "postgres" else "AddPartitionsToTxn"}
    (problem,) = problems(spec)
    assert problem.loc == ("frame", key) and message in problem.message
    assert problem.hint is not None and hint in problem.hint


@pytest.mark.parametrize("kind", [None, "Produce", "AddPartitionsToTxn"])
def test_a_request_that_writes_to_kafka_needs_a_topic_that_the_job_writes_to(
    scenario: Callable[..., Scenario], kind: str | None
) -> None:
    lost = faults.get("lost-ack")
    spec = lost.Spec.model_validate(LOST | {"target": "kafka", "frame": {"kind": kind}})
    nothing = scenario(prepare={})
    output = nothing.outputs["out"].model_copy(update={"topic": None, "table": "t"})
    (problem,) = lost.problems(spec, nothing.model_copy(update={"outputs": {"out": output}}))
    assert problem.loc == ("frame",) and f"the job never sends {kind or 'EndTxn'}" in problem.message
    assert [problem.loc for problem in lost.problems(spec, scenario())] == (
        [("frame", "kind")] if kind == "AddPartitionsToTxn" else []
    )


@pytest.mark.parametrize(
    ("target", "frame", "key"),
    [
        ("kafka", {"kind": "Fetch", "topic": "flights"}, "kind"),
        ("kafka", {"kind": "Metadata"}, "kind"),
        ("kafka", {"committed": False}, "committed"),
        ("kafka", {"kind": "EndTxn", "committed": False}, "committed"),
        ("kafka", {"kind": "EndTxn", "committed": True}, None),
        ("kafka", {"kind": "Produce", "topic": "out"}, None),
        ("postgres", {"kind": "statement", "sql": "INSERT"}, None),
        ("postgres", {}, None),
    ],
)
@pytest.mark.parametrize("fault", ["lost-ack", "lost-request"])
def test_a_frame_that_commits_nothing_is_no_lost_commit(
    problems: Callable[..., list[SpecProblem]], fault: str, target: str, frame: dict[str, Any], key: str | None
) -> None:
    at = {"batch": 2, "point": "commit-unacknowledged" if fault == "lost-ack" else "commit-lost"}
    found = problems({"fault": fault, "target": target, "at": at, "frame": frame})
    assert [problem.loc for problem in found] == ([] if key is None else [("frame", key)])
    assert all(problem.hint is not None and "EndTxn or Produce" in problem.hint for problem in found)


@pytest.mark.parametrize("frame", [{}, {"kind": "EndTxn"}, {"kind": "EndTxn", "transactional_id": "a"}])
def test_an_abort_is_struck_only_if_it_is_asked_for(frame: dict[str, Any]) -> None:
    abort, commit = (
        Frame(b"", "EndTxn", {"transactional_id": "a", "committed": committed}) for committed in (False, True)
    )
    condition = FrameSpec.model_validate(frame).condition("kafka")
    assert condition.why_not(abort) == "it aborts" and condition.why_not(commit) is None
    asked = FrameSpec.model_validate({"kind": "EndTxn", "committed": False}).condition("kafka")
    assert asked.why_not(abort) is None and asked.why_not(commit) == "it commits"
    assert FrameSpec.model_validate({"kind": "Produce"}).condition("kafka").committed is None


@pytest.mark.parametrize("fault", ["lost-ack", "lost-request"])
def test_cut_applies_only_where_the_protocol_proxy_places_the_fault(
    problems: Callable[..., list[SpecProblem]], fault: str
) -> None:
    at = {"batch": 2, "point": "commit-unacknowledged" if fault == "lost-ack" else "commit-lost"}
    assert problems({"fault": fault, "target": "postgres", "at": at, "cut": "silence"}) == []
    (problem,) = problems({"fault": fault, "target": "postgres", "at": {"batch": 2}, "cut": "silence"})
    assert problem.loc == ("cut",) and "Toxiproxy" in problem.message


class Running:
    """A job without processes."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        yield

    no_start = frozen


@pytest.fixture
def context(tmp_path: Path) -> Iterator[FaultContext]:
    """A context with an open batch 2 and the rules of a proxy, without services."""
    root = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (root / "q" / log).mkdir(parents=True)
    (root / "q" / "offsets" / "2").write_text("v1\n{}\n")
    timeline = Timeline(tmp_path / "events.jsonl")
    watcher = CheckpointWatcher(root, clock=timeline.now, start_of_driver=lambda: 0, on_log=lambda *_: None)
    board = Board()
    stack: Any = SimpleNamespace(frames=SimpleNamespace(board=lambda _service: board), postgres=None)
    job: Any = Running()
    yield FaultContext(stack, job, watcher, timeline)
    timeline.close()


@pytest.mark.parametrize("passed", [0, 1])
def test_a_rule_that_never_matched_names_the_nearest_frames(
    context: FaultContext, seen: Callable[..., Occurrence], passed: int
) -> None:
    stopped = StoppedFrame(FrameSpec(kind="Produce", topic="out", nth=2), "kafka", "drop-answer", hold=True)
    occurrence = seen(Point.AFTER_OFFSET_LOG)
    stopped.arm(context, occurrence)
    board = context.board("kafka")
    for number in range(passed):
        assert board.wants("Produce")
        frame = Frame(b"", "Produce", {"correlation_id": 40 + number, "topics": ["out"]})
        assert board.rule_for(frame) is None
    assert not board.wants("Metadata")
    (context.checkpoint.folder("q") / "commits" / "2").touch()
    proof = prove_loss(stopped, context, occurrence)
    nearest = "correlation_id 40, topics ['out']: it was number 1, not 2" if passed else "was seen, only Metadata (1)"
    assert not proof.hit
    assert proof.evidence[0] == "batch 2 was committed without a Produce number 2 with topic 'out'"
    assert nearest in proof.evidence[1]


@pytest.mark.parametrize("action", ["drop-answer", "drop-request"])
def test_a_client_that_leaves_while_its_frame_is_held_is_reported_at_once(
    context: FaultContext, seen: Callable[..., Occurrence], action: Action
) -> None:
    stopped = StoppedFrame(FrameSpec(), "kafka", action, hold=True)
    occurrence = seen(Point.AFTER_OFFSET_LOG)
    stopped.arm(context, occurrence)
    hit = Hit(Frame(b"", "EndTxn", {"correlation_id": 9}), "client-1", "127.0.0.1:9", 0.0)
    stopped.rule.hits.append(hit)
    hit.undeliverable = (
        "the client closed the connection while the frame was parked, so the frame never reached the service"
    )
    proof = prove_loss(stopped, context, occurrence)
    assert not proof.hit and proof.evidence[-1] == hit.undeliverable


@pytest.mark.parametrize(("frame", "identified"), [({}, False), ({"transactional_id": "^sums-"}, True)])
def test_a_frame_that_may_belong_to_an_undeclared_query_is_a_miss(
    context: FaultContext, seen: Callable[..., Occurrence], frame: dict[str, Any], identified: bool
) -> None:
    context.checkpoint.start()
    (context.checkpoint.folder("other") / "offsets").mkdir(parents=True)
    wait_until("both queries", lambda: len(context.checkpoint.queries()) == 2, deadline_s=5)
    stopped = StoppedFrame(FrameSpec(**frame), "kafka", "drop-answer", hold=True)
    stopped.arm(context, seen(Point.AFTER_OFFSET_LOG))
    hit = Hit(Frame(b"", "EndTxn", {"correlation_id": 9, "committed": True}), "client-1", "127.0.0.1:9", 0.0)
    stopped.rule.hits.append(hit)
    found = stopped.wait_for_frame(context, seen(Point.AFTER_OFFSET_LOG))
    context.checkpoint.stop()
    if identified:
        assert found is hit
    else:
        assert isinstance(found, Proof) and not found.hit
        assert "2 queries (other, q)" in str(found.evidence[-1]) and "pipeline.queries" in str(found.evidence[-1])


class EndedBy(Running):
    """A job whose driver ends when it is killed or asked to; its client is seen to leave then, ``after_s`` seconds from now."""

    def __init__(self, hit: Hit, after_s: float, commit: Path) -> None:
        self.exits: list[SimpleNamespace] = []
        self._hit, self._after_s, self._commit = hit, after_s, commit
        self.current_start = 0

    def kill_driver(self) -> int:
        self._hit.client_left_at, self._hit.undeliverable = now() + self._after_s, "the client closed the connection"
        self.exits.append(SimpleNamespace(start=0, code=-9))
        return 0

    ask_driver_to_end = kill_driver

    def restarted_since(self, _start: int) -> bool:
        self._commit.touch()
        return True


@pytest.mark.parametrize(("after_s", "hits"), [(-0.1, False), (0.1, True)])
@pytest.mark.parametrize("kind", ["crash-at-frame", "stop"])
def test_a_client_that_left_before_the_driver_was_struck_is_a_miss(
    context: FaultContext,
    seen: Callable[..., Occurrence],
    fault: Callable[[dict[str, Any]], Fault],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after_s: float,
    hits: bool,
) -> None:
    monkeypatch.setattr("onceproof.chaos.crash_at_frame.sink_state", lambda _stack: {})
    at = {"batch": 2, "point": "in-tasks"}
    struck: Any = fault({"fault": kind, "target": "driver", "service": "kafka", "at": at})
    hit = Hit(Frame(b"", "EndTxn", {"correlation_id": 9}), "client-1", "127.0.0.1:9", 0.0)
    job: Any = EndedBy(hit, after_s, context.checkpoint.folder("q") / "commits" / "2")
    context.job, context.attempt = job, lambda _query, _batch: 1
    struck.strike(context, seen(Point.AFTER_OFFSET_LOG))
    struck._stopped.rule.hits.append(hit)
    proof = struck.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit is hits, proof.evidence
    assert hits or proof.evidence[-1] == hit.undeliverable


class Quick(Running):
    """A job whose next driver commits the batch, and writes to an output, as soon as it may start: within the kill if nothing
    keeps it from starting."""

    current_start = 0

    def __init__(self, commit: Path, wrote: list[str]) -> None:
        self._commit, self._wrote, self._held = commit, wrote, False

    @contextmanager
    def no_start(self) -> Iterator[None]:
        self._held = True
        yield
        self._held = False
        self._start()

    def _start(self) -> None:
        if not self._held:
            self._commit.touch()
            self._wrote.append("a row")

    def kill_driver(self) -> int:
        self._start()
        return 0

    def restarted_since(self, _start: int) -> bool:
        return True


def test_the_next_driver_starts_only_after_what_a_killed_one_left_behind_was_read(
    context: FaultContext,
    seen: Callable[..., Occurrence],
    fault: Callable[[dict[str, Any]], Fault],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrote: list[str] = []
    monkeypatch.setattr("onceproof.chaos.crash_at_frame.sink_state", lambda _stack: {"table t": f"{len(wrote)} rows"})
    at = {"batch": 2, "point": "in-tasks"}
    struck: Any = fault({"fault": "crash-at-frame", "target": "driver", "service": "kafka", "at": at})
    context.job = cast(Any, Quick(context.checkpoint.folder("q") / "commits" / "2", wrote))
    struck.strike(context, seen(Point.AFTER_OFFSET_LOG))
    struck._stopped.rule.hits.append(Hit(Frame(b"", "EndTxn", {"correlation_id": 9}), "client-1", "127.0.0.1:9", 0.0))
    proof = struck.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "the batch had written nothing to any sink until then" in proof.evidence, proof.evidence


@pytest.mark.parametrize("point", ["after-offset-log", "after-sink-commit"])
def test_a_crash_is_proven_by_what_the_killed_driver_left_and_not_by_the_next_one(
    context: FaultContext, seen: Callable[..., Occurrence], fault: Callable[[dict[str, Any]], Fault], point: str
) -> None:
    crash = fault({"fault": "crash", "target": "driver", "at": {"batch": 2, "point": point}})
    context.job = cast(Any, Quick(context.checkpoint.folder("q") / "commits" / "2", []))
    crash.strike(context, seen(Point(point)))
    proof = crash.prove(context, seen(Point(point)))
    assert proof.hit and "commits/2 missing" in str(proof.evidence[0]), proof.evidence


def test_a_driver_is_not_killed_for_a_frame_that_was_abandoned(
    context: FaultContext, seen: Callable[..., Occurrence]
) -> None:
    stopped = StoppedFrame(FrameSpec(), "kafka", "drop-request", hold=True)
    stopped.arm(context, seen(Point.AFTER_OFFSET_LOG))
    hit = Hit(Frame(b"", "EndTxn", {"correlation_id": 9}), "client-1", "127.0.0.1:9", 0.0, undeliverable="it left")
    stopped.rule.hits.append(hit)
    found = stopped.wait_for_frame(context, seen(Point.AFTER_OFFSET_LOG))
    assert isinstance(found, Proof) and not found.hit and found.evidence[-1] == "it left"


@pytest.mark.parametrize(("only", "attempt", "hits"), [(1, 2, False), (2, 2, True), (None, 2, True)])
def test_a_frame_of_another_attempt_is_a_miss(
    context: FaultContext, seen: Callable[..., Occurrence], only: int | None, attempt: int, hits: bool
) -> None:
    context.attempt = lambda _query, _batch: attempt
    planned = replace(seen(Point.AFTER_OFFSET_LOG), attempt=only, only_attempt=only)
    stopped = StoppedFrame(FrameSpec(), "kafka", "drop-answer", hold=True)
    stopped.arm(context, planned)
    stopped.rule.hits.append(Hit(Frame(b"", "EndTxn", {"correlation_id": 9}), "client-1", "127.0.0.1:9", 0.0))
    found = stopped.wait_for_frame(context, planned)
    assert isinstance(found, Hit) is hits
    if isinstance(found, Proof):
        assert found.evidence[-1] == "it came in attempt 2 at batch 2, and the fault waits for attempt 1"


def test_with_a_file_manager_of_the_jobs_own_the_placement_is_approximate(
    scenario: Callable[..., Scenario],
) -> None:
    kind = faults.get("lost-ack")
    spec = kind.Spec.model_validate(LOST)
    assert kind.placement(spec, scenario()).exactness == "exact"
    own = kind.placement(spec, scenario(command=["true", "--conf", f"{FILE_MANAGER}=mine.Manager"]))
    assert own.exactness == "approximate" and "watcher" in own.instrument


@pytest.mark.parametrize(
    ("kind", "xid", "facts", "reason"),
    [
        ("commit", "7", {"tags": ["COMMIT"], "sqlstate": None}, None),
        ("commit", "7", {"tags": ["INSERT 0 1", "COMMIT"], "sqlstate": None}, None),
        ("commit", "7", {"tags": ["ROLLBACK"], "sqlstate": None}, "did not commit"),
        ("commit", "7", {"tags": [], "sqlstate": None}, "did not commit"),
        ("commit", "7", {"tags": [], "sqlstate": "40001"}, "refused"),
        ("commit", None, {"tags": ["COMMIT"], "sqlstate": None}, "had no id"),
        ("statement", "7", {"tags": ["INSERT 0 1"], "sqlstate": None}, None),
        ("statement", None, {"tags": ["INSERT 0 1"], "sqlstate": None}, "had no id"),
        ("EndTxn", None, {"error_codes": [0]}, None),
        ("EndTxn", None, {"error_codes": [0, 51]}, "refused"),
        ("EndTxn", None, {"error_codes": []}, "not known"),
        ("EndTxn", None, {"undecodable": "version 99 of EndTxn"}, "version 99 of EndTxn"),
    ],
)
def test_a_lost_answer_counts_only_if_the_request_was_certainly_applied(
    kind: str, xid: str | None, facts: dict[str, Any], reason: str | None
) -> None:
    frame = Frame(b"", kind)
    store = frames_of("kafka" if kind == "EndTxn" else "postgres")
    why = store.why_not_applied(frame, Answer(b"", frame, facts), xid)
    assert (why is None) if reason is None else (why is not None and reason in why)
