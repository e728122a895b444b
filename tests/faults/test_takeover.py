"""A takeover: of several queries the struck one must have come to its own end before anything is said of what it wrote."""

from __future__ import annotations

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
def taken(tmp_path: Path) -> Any:
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
            job=SimpleNamespace(take_over=lambda *, stopped: (0, first)),
            checkpoint=checkpoint,
            timeline=SimpleNamespace(emit=lambda *_, **__: None),
        )
        return Takeover(context, Occurrence("a", 2, Point.AFTER_OFFSET_LOG, "checkpoint"), stopped=True), done

    return make


def test_the_only_query_is_told_by_any_word_of_it(taken: Any) -> None:
    assert taken(REPLACED, "a")[0]._told() and not taken("nothing", "a")[0]._told()


def test_of_several_the_struck_one_must_have_ended(taken: Any) -> None:
    other = ENDED.format(name="b", id="bbbb-2")
    assert not taken(f"{other}\n{REPLACED}", "a", "b")[0]._told(), "another query was told at once"
    assert taken(f"{other}\n{REPLACED}\n{ENDED.format(name='a', id='aaaa-1')}", "a", "b")[0]._told()


def test_a_driver_that_another_query_ended_shows_nothing(taken: Any) -> None:
    takeover, done = taken(f"{ENDED.format(name='b', id='bbbb-2')}\n{REPLACED}", "a", "b", running=False)
    proof = takeover.resume_first(lambda: done.append("let go"), {}, ["before"], how="awake again")
    assert not proof.hit and "another query ended the old driver" in proof.evidence[-1]
    assert done == ["let go", "killed"]


def test_unchanged_sinks_say_nothing_about_what_was_written_before(taken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor may have written the batch a second time by then: a duplicate that the old driver's end does not show."""
    takeover, done = taken(REPLACED, "a")
    takeover._context.stack = SimpleNamespace(kafka=None)
    held = {"table t": "400 rows (the newest of transaction 9)"}
    monkeypatch.setattr(module, "sink_state", lambda _stack: held)
    monkeypatch.setattr(module, "undecided", lambda _kafka: False)
    proof = takeover.resume_first(lambda: done.append("go"), held, ["before"], how="awake again")
    assert proof.hit and done == ["go", "killed"]
    assert proof.evidence[-1].startswith("no table or topic changed from when the old driver went on until its end")
    assert proof.evidence[-1].endswith("what was written before that is not compared")
    monkeypatch.setattr(module, "sink_state", lambda _stack: {"table t": "401 rows (the newest of transaction 10)"})
    wrote = taken(REPLACED, "a")[0]
    wrote._context.stack = SimpleNamespace(kafka=None)
    last = wrote.resume_first(lambda: None, held, [], how="awake again").evidence[-1]
    assert last.startswith("meanwhile table t: 400 rows") and "401 rows" in last
