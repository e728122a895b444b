"""A takeover: of several queries the struck one must have ended by itself before its writes are reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.faults import takeover as module
from onceproof.faults.contract import Occurrence
from onceproof.faults.takeover import Takeover
from onceproof.scenario.points import Point

REPLACED = "SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."
ENDED = "ERROR MicroBatchExecution: Query {name} [id = {id}, runId = 1-2] terminated with error"


@pytest.fixture
def take_over(tmp_path: Path) -> Any:
    (tmp_path / "metadata").write_text('{"id":"aaaa-1"}')

    def make(log: str, *queries: str, running: bool = True) -> tuple[Takeover, list[str]]:
        done: list[str] = []
        first = SimpleNamespace(
            is_running=lambda: running, log_tail=lambda _lines: log, kill=lambda: done.append("killed"), returncode=1
        )
        checkpoint = SimpleNamespace(
            queries=lambda: dict.fromkeys(queries, tmp_path), folder=lambda _query: tmp_path, log_exists=lambda *_: True
        )
        context: Any = SimpleNamespace(
            job=SimpleNamespace(take_over=lambda *, stopped: (0, first), frozen=nullcontext),
            checkpoint=checkpoint,
            timeline=SimpleNamespace(emit=lambda *_, **__: None),
        )
        return Takeover(context, Occurrence("a", 2, Point.AFTER_OFFSET_LOG, "checkpoint"), stopped=True), done

    return make


@pytest.mark.parametrize("stopped", [True, False])
def test_a_batch_that_the_successor_commits_at_once_was_open(stopped: bool) -> None:
    done: list[str] = []

    @contextmanager
    def frozen() -> Iterator[None]:
        done.append("frozen")
        yield
        done.append("thawed")

    def take_over(*, stopped: bool) -> tuple[int, Any]:
        done.append("committed")  # the second driver is faster than this thread
        return 0, SimpleNamespace()

    context: Any = SimpleNamespace(
        job=SimpleNamespace(take_over=take_over, frozen=frozen),
        checkpoint=SimpleNamespace(log_exists=lambda _query, log, _batch: log == "offsets" or "committed" in done),
    )
    seen = Occurrence("a", 2, Point.AFTER_OFFSET_LOG, "checkpoint")
    assert Takeover(context, seen, stopped=stopped).was_open
    assert done == (["frozen", "committed", "thawed"] if stopped else ["committed"])


def test_the_error_of_the_only_query_shows_that_the_driver_was_replaced(take_over: Any) -> None:
    assert take_over(REPLACED, "a")[0]._is_replaced() and not take_over("nothing", "a")[0]._is_replaced()


def test_of_several_queries_the_struck_one_must_have_ended(take_over: Any) -> None:
    other = ENDED.format(name="b", id="bbbb-2")
    assert not take_over(f"{other}\n{REPLACED}", "a", "b")[0]._is_replaced(), "only another query got the error"
    assert take_over(f"{other}\n{REPLACED}\n{ENDED.format(name='a', id='aaaa-1')}", "a", "b")[0]._is_replaced()


def test_a_driver_that_another_query_ended_is_a_miss(take_over: Any) -> None:
    takeover, done = take_over(f"{ENDED.format(name='b', id='bbbb-2')}\n{REPLACED}", "a", "b", running=False)
    proof = takeover.resume_first(lambda: done.append("resumed"), {}, ["before"], after="after SIGCONT")
    assert not proof.hit and "another query ended the old driver" in proof.evidence[-1]
    assert done == ["resumed", "killed"]


def test_unchanged_sinks_are_reported_with_their_limit(take_over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor may have written the batch a second time before that: a duplicate that this comparison does not show."""
    takeover, done = take_over(REPLACED, "a")
    takeover._context.stack = SimpleNamespace(kafka=None)
    held = {"table t": "400 rows (the newest of transaction 9)"}
    monkeypatch.setattr(module, "sink_state", lambda _stack: held)
    monkeypatch.setattr(module, "undecided", lambda _kafka: False)
    proof = takeover.resume_first(lambda: done.append("resumed"), held, ["before"], after="after SIGCONT")
    assert proof.hit and done == ["resumed", "killed"]
    assert str(proof.evidence[1]).startswith(
        "after SIGCONT, the old driver got the error that it was replaced: last error"
    )
    assert proof.evidence[-1].startswith("no table or topic changed after the old driver resumed")
    assert proof.evidence[-1].endswith("what it wrote before that is not compared")
    monkeypatch.setattr(module, "sink_state", lambda _stack: {"table t": "401 rows (the newest of transaction 10)"})
    wrote = take_over(REPLACED, "a")[0]
    wrote._context.stack = SimpleNamespace(kafka=None)
    last = wrote.resume_first(lambda: None, held, [], after="after SIGCONT").evidence[-1]
    assert last.startswith("meanwhile it changed table t: 400 rows") and "401 rows" in last
