from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from onceproof.base.timeline import Event
from onceproof.reports.progress import Progress, RunState

FAULT = {"index": 0, "fault": "crash", "target": "driver", "query": "both", "batch": 2, "point": "after-sink-commit"}


def lines(events: list[Event], *, terminal: bool = False) -> str:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=terminal, width=80), "mine", limit_s=300) as progress:
        for event in events:
            progress(event)
    return out.getvalue()


def batches(count: int, every_s: float) -> list[Event]:
    return [Event(n * every_s, "batch.committed", {"query": "q", "batch": n, "records": 100}) for n in range(count)]


def test_phases_faults_and_restarts_get_a_line() -> None:
    text = lines(
        [
            Event(0.0, "phase", {"name": "stack"}),
            Event(1.0, "stack.ready", {"service": "kafka", "seconds": 3.25}),
            Event(2.0, "job.started", {"start": 0, "pid": 1}),
            Event(3.0, "fault.armed", FAULT),
            Event(4.0, "fault.fired", FAULT),
            Event(4.1, "job.exited", {"start": 0, "code": -9, "killed": True}),
            Event(4.2, "job.started", {"start": 1, "pid": 2}),
            Event(5.0, "fault.missed", {**FAULT, "evidence": ["commits/2 there"]}),
            Event(6.0, "warning", {"message": "[bold]odd[/bold]"}),
            Event(7.0, "sink.committed", {"sink": "postgres"}),
        ]
    )
    assert text.splitlines() == [
        "   0.0 s  setting up the services",
        "   1.0 s    kafka is up (3.2 s)",
        "   2.0 s    job started",
        "   4.0 s    fault 1: crash driver fired at batch 2, after-sink-commit",
        "   4.1 s    job exited, code -9 (ended by onceproof)",
        "   4.2 s    job restarted (start 1)",
        "   5.0 s    fault 1: crash driver missed at batch 2, after-sink-commit: commits/2 there",
        "   6.0 s    warning: [bold]odd[/bold]",
    ]


def test_a_log_gets_a_line_about_batches_every_ten_seconds() -> None:
    assert len(lines(batches(100, 0.5)).splitlines()) == 4  # at 10, 20, 30 and 40 s
    assert "batch 20   records fed 0   in committed batches 2,100" in lines(batches(100, 0.5))


def test_a_terminal_shows_what_runs_which_batch_which_fault_and_the_time_left() -> None:
    text = lines(
        [
            Event(0.0, "phase", {"name": "run"}),
            Event(0.0, "feed.chunk", {"topic": "t", "records": 500}),
            *batches(3, 0.1),
            Event(4.0, "fault.fired", FAULT),
            Event(4.0, "phase", {"name": "drain"}),
        ],
        terminal=True,
    )
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text[text.rindex("mine") :])
    for row in (
        "phase draining: faults are healed",
        "batch 2   records fed 500   in committed batches 300",
        "fault crash driver: struck, not healed yet",
        "time  0:00 used, 5:00 left of 5:00",
    ):
        assert row in last


def test_the_state_follows_the_events() -> None:
    state = RunState()
    for event in [
        *batches(3, 1.0),
        Event(4.0, "fault.fired", FAULT),
        Event(5.0, "job.started", {"start": 1}),
    ]:
        state.add(event)
    assert state.summary() == "batch 2   records fed 0   in committed batches 300   restarts 1   active: crash driver"
    state.add(Event(6.0, "fault.healed", FAULT))
    assert state.rows()["fault"] == "none active"
    state.add(Event(6.0, "fault.hit", FAULT))
    assert state.rows()["fault"] == "none active, 1 hit"
    state.add(Event(7.0, "batch.committed", {"query": "other", "batch": 9, "records": None}))
    assert state.summary() == "batch other 9, q 2   records fed 0   in committed batches 300   restarts 1"


@pytest.mark.parametrize("kind", ["point", "batch.planned", "fault.armed", "unheard.of"])
def test_other_events_get_no_line(kind: str) -> None:
    assert lines([Event(0.0, kind, dict(FAULT))]) == ""
