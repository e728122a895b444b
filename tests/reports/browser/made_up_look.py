"""A run and a qualification to look at: nothing in them changes from one day, or from one machine, to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onceproof.base.timeline import read_events
from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.judge.verdict import write_verdict
from onceproof.qualify import page as qualification_page
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.qualify.strongest import Strongest
from onceproof.reports.html import excerpts, moments
from onceproof.reports.html.run_page import of_run
from onceproof.scenario.points import Point

_CRASH = {"index": 0, "fault": "crash", "target": "driver", "query": "orders", "batch": 2, "point": "after-sink-commit"}
_STALL = {"index": 1, "fault": "stall", "target": "broker", "query": "orders", "batch": 4, "point": "after-offset-log"}
_WALL_START = 1_700_000_000.0
_FAULTS = tuple(
    FaultReport(f["fault"], f["target"], f["query"], f["batch"], f["point"], True, True, True, (Evidence(why),))  # type: ignore[arg-type]
    for f, why in (
        (_CRASH, "batch 2 was replayed and committed"),
        (_STALL, "node 2 was stopped while batch 4 was open"),
    )
)
_DUPLICATE = Finding(
    "duplicate",
    "booked",
    1986,
    "1,986 extra rows, all from the replay of batch 2 (query orders)",
    tuple(
        Witness(
            {"order_id": number},
            f"Input orders/0@{number} is committed, and 1 row is expected from it.\nBut the table holds 2 rows.",
            f"orders/0@{number}",
            2,
            ("booked xid 758", "booked xid 759"),
        )
        for number in (655, 656, 657)
    ),
)


def run_page(folder: Path) -> str:
    """The page of a run with three brokers, two faults and a finding."""
    run = folder / "run"
    run.mkdir()
    scenario = {
        "name": "orders-to-warehouse",
        "chaos": [{}, {}],
        "stack": {"kafka": {"brokers": 3}},
        "outputs": {"booked": {"postgres": "booked"}},
    }
    record = {"scenario": scenario, "scenario_path": "/jobs/orders.yaml", "seed": 7, "observed": True}
    (run / "run.json").write_text(json.dumps(record))
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in _events()))
    batches = tuple(
        BatchReport("orders", n, int(n > 2), int(n > 1), 1000, (), Outcome.VIOLATED if n == 2 else Outcome.HELD)
        for n in range(6)
    )
    batches = (*batches[:2], replace(batches[2], anomalies={"duplicate": 1986}, faults=("crash driver",)), *batches[3:])
    _logs(run)
    promises = {"delivery": "effectively-once", "order": "per-key", "atomic": "none", "liveness": "recovers"}
    reasons = (f"{_DUPLICATE.anomaly} in output {_DUPLICATE.output}: {_DUPLICATE.summary}",)
    verdict = Verdict(
        "orders-to-warehouse",
        Outcome.VIOLATED,
        StatedClaim(promises),
        reasons,
        (_DUPLICATE,),
        _FAULTS,
        seed=7,
        seconds=42,
    )
    write_verdict(run, replace(verdict, batches=batches, counts={"input": 6000, "batches": 6}))
    return of_run(run).replace(str(run), "/jobs/run")


def _logs(run: Path) -> None:
    """Two logs of the driver, and the excerpts that the harness would store."""
    (run / "logs").mkdir()
    said = (
        (0, 6.5, "INFO SparkContext: Running Spark version 4.2.0"),
        (0, 13.1, "INFO MicroBatchExecution: Starting batch 1"),
        (
            0,
            16.2,
            "WARN BookingSink: batch 2 was slow\n\tat booking.Sink.write(Sink.scala:41)\n\tat booking.Sink.run(Sink.scala:17)",
        ),
        (1, 18.0, "INFO SparkContext: Running Spark version 4.2.0"),
        (1, 19.5, "INFO MicroBatchExecution: Resuming at batch 2"),
        (1, 28.0, "WARN NetworkClient: Connection to node 2 (localhost/127.0.0.1:30412) could not be established"),
    )
    for start in (0, 1):
        lines = (
            f"{datetime.fromtimestamp(_WALL_START + at, UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n"
            for of, at, text in said
            if of == start
        )
        (run / "logs" / f"driver-{start}.log").write_text("".join(lines))
    found = moments.moments(read_events(run), [path.name for path in (run / "logs").iterdir()])
    excerpts.write(run, found, _WALL_START)


def _events() -> list[dict[str, Any]]:
    planned = (10.0, 13.0, 16.0, 23.0, 26.0, 33.0)
    committed = (12.5, 15.5, 22.0, 25.5, 32.0, 35.0)
    events: list[dict[str, Any]] = [
        {"at": 2.0, "kind": "stack.ready", "service": "postgres"},
        {"at": 4.0, "kind": "stack.ready", "service": "kafka"},
        {"at": 5.0, "kind": "fault.armed", **_CRASH},
        {"at": 5.1, "kind": "fault.armed", **_STALL},
        {"at": 6.0, "kind": "job.started", "start": 0},
        {"at": 17.0, "kind": "fault.fired", **_CRASH},
        {"at": 17.1, "kind": "job.exited", "start": 0, "code": -9, "killed": True},
        {"at": 17.2, "kind": "job.started", "start": 1},
        {"at": 22.1, "kind": "fault.healed", **_CRASH},
        {"at": 22.2, "kind": "fault.hit", **_CRASH},
        {"at": 27.0, "kind": "fault.fired", **_STALL},
        {"at": 27.1, "kind": "broker.away", "broker": 2, "how": "stopped"},
        {"at": 31.0, "kind": "broker.back", "broker": 2},
        {"at": 31.0, "kind": "fault.healed", **_STALL},
        {"at": 32.1, "kind": "fault.hit", **_STALL},
    ]
    for number, (begins, ends) in enumerate(zip(planned, committed, strict=True)):
        chunk = {"topic": "orders", "chunk": number + 1, "of": 6, "records": 1000}
        events += [
            {"at": begins - 0.5, "kind": "feed.chunk", **chunk},
            {"at": begins, "kind": "batch.planned", "query": "orders", "batch": number},
            {"at": ends, "kind": "batch.committed", "query": "orders", "batch": number, "records": 1000},
        ]
    return sorted(events, key=lambda event: event["at"])


def qualification(folder: Path) -> str:
    """The page of a qualification with cells of every result."""
    words = "COMMIT of booked"
    held = Cell(
        "a", "crash", Point.AFTER_OFFSET_LOG, {"target": "driver"}, state=CellState.EXERCISED, verdict=Outcome.HELD
    )
    cells = (
        replace(held, evidence=("the driver was started again",), runs=("runs/02",)),
        replace(held, name="b", point=Point.AFTER_COMMIT_LOG, runs=("runs/02",)),
        replace(
            held,
            name="c",
            point=Point.AFTER_SINK_COMMIT,
            verdict=Outcome.VIOLATED,
            anomalies={"duplicate": 1986},
            outputs=("booked",),
            witnesses={"duplicate": "order_id=655 (batch 2; output booked xid 758, booked xid 759)"},
            runs=("runs/02", "runs/03"),
        ),
        replace(held, name="d", kind="lost-ack", settings={}, point=Point.COMMIT_UNACKNOWLEDGED, words=words),
        replace(held, name="e", kind="stall", verdict=Outcome.INCONCLUSIVE, why="the batch was no longer open"),
        Cell(
            "f", "lost-request", Point.COMMIT_LOST, state=CellState.NOT_REACHED, why="not tried: the budget was used up"
        ),
        Cell("g", "reject", Point.COMMIT_LOST, state=CellState.N_A, why="no sink of that kind"),
    )
    directory = Directory.create(folder, "orders")
    directory.write(directory.cells / "c.yaml", "name: orders")
    progress = QualificationProgress(
        "orders-to-warehouse",
        "/jobs/orders.yaml",
        "0" * 64,
        7,
        cells=cells,
        steps=3,
        spent_s=312.0,
        first="runs/01",
        ended="budget",
        strongest=Strongest("at-least-once", {"liveness": "recovers"}, {"effectively-once": ["duplicate"]}, []),
    )
    (directory.runs / "01").mkdir()
    claim = StatedClaim({"delivery": "effectively-once", "order": "per-key", "atomic": "none", "liveness": "recovers"})
    write_verdict(directory.runs / "01", Verdict("orders-to-warehouse", Outcome.HELD, claim, ()))
    return qualification_page.page(directory, progress).replace(str(directory.path), "/jobs/qualification")
