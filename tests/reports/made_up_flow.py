"""A run directory of consumers whose message flow is made up: c2 dies with a message, which c1 gets again, out of order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.history.run_record import StoredScenario
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

QUEUE = "orders"
STEPS = (
    *("publish 1", "c1 take 1", "publish 2", "c1 effect 1", "c1 acknowledge 1", "c2 take 2", "publish 3", "c1 take 3"),
    *("c2 crash", "c2 return 2", "c1 effect 3", "c1 acknowledge 3", "c1 again 2", "c1 effect 2", "c1 acknowledge 2"),
    *("c2 start", "publish 4", "c2 take 4", "c2 effect 4", "c2 acknowledge 4"),
)


def trace(*steps: str) -> list[TraceEvent]:
    """``"publish 3"``, ``"c2 take 3"``, ``"c1 again 3"``, ``"c2 crash"``: two events per tick."""
    made = []
    for number, text in enumerate(steps):
        words = text.split()
        message = int(words.pop()) if words[-1].isdigit() else 0
        what = words.pop()
        kind: Kind = "take" if what == "again" else what  # type: ignore[assignment]
        queue = "" if kind in ("crash", "start") else QUEUE
        made.append(TraceEvent(kind, number // 2, number * 0.1, "".join(words), message, queue, what == "again"))
    return made


def flow_run(run: Path, *steps: str, queue: str = QUEUE) -> Path:
    """The run directory, judged. ``queue``: the name of the queue in the trace."""
    run.mkdir()
    scenario = load(find("amqp-redelivery-reorders"))
    document = StoredScenario.of(scenario).to_json()
    record = {"scenario": document, "scenario_path": "orders.yaml", "seed": 7}
    (run / "run.json").write_text(json.dumps(record))
    lines = (
        {
            "at": event.at,
            "kind": event.timeline_kind,
            **replace(event, queue=queue and event.queue and queue).timeline_data(),
        }
        for event in trace(*(steps or STEPS))
    )
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reason = "reordered in output processed: 1 row is out of order"
    write_verdict(
        run, Verdict(scenario.name, Outcome.VIOLATED, StatedClaim({"order": "per-partition"}), (reason,), seed=7)
    )
    return run
