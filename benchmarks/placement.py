"""Does every fault hit its point on jobs that do not use onceproof? Many trials in one run per job, at successive batches.

``python benchmarks/placement.py`` runs Spark's JDBC append, a psycopg upsert and Spark's built-in Kafka sink (the shipped
scenarios ``foreign-*``), with 3 trials of each reachable point and kind and 20 of the three that matter most, and prints a
table. A trial counts as shown only if this benchmark itself, without any proxy, found checkpoint and sink in the state of that
point (`state_left.py`); the next column has the harness's own result. The exit code is 1 if any trial missed, or none was made.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import state_left
from measure import machine
from ruamel.yaml import YAML
from state_left import Sink, Trial, Truth, look

from onceproof.base.timeline import Event
from onceproof.kinds import command
from onceproof.run import run as run_loaded
from onceproof.scenario_files.load import load_file, resolved
from onceproof.scenario_files.shipped import find
from onceproof.stack.embedded import EmbeddedStack

_CRASHES = ("before-offset-log", "after-offset-log", "after-sink-commit", "after-commit-log")
_FRAMES = ("in-tasks", "before-sink-commit", "commit-lost", "commit-unacknowledged")
_POINTS = (*_CRASHES, *_FRAMES)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--jobs", nargs="+", choices=["jdbc", "psycopg", "kafka"], default=["jdbc", "psycopg", "kafka"])
parser.add_argument("--few", type=int, default=3, help="trials of each point and kind")
parser.add_argument("--many", type=int, default=20, help="trials of the three that matter most")
parser.add_argument("--points", nargs="+", choices=_POINTS, help="these points only")
parser.add_argument("--json", type=Path, help="file for every trial, as JSON; new trials are added to those in it")
parser.add_argument("--runs", type=Path, help="where the run directories are kept (default: nowhere)")

_ROWS_A_BATCH = 60
#: A Produce holds at most one batch of a partition, 16 KiB by default: this many records make three of them in each partition,
#: however the client combines partitions. (With 60 in all, one trial of 18 had only two Produces.)
_ROWS_OF_KAFKA = 1200
_PARTITIONS = 3


@dataclass(frozen=True)
class Job:
    """One job to try the faults on."""

    scenario: str
    query: str
    """The folder of its checkpoint."""
    table: str | None = None
    topic: str | None = None
    upsert: bool = False


JOBS = {
    "jdbc": Job("foreign-jdbc-append", "departures", table="departures"),
    "psycopg": Job("foreign-psycopg-upsert", "last_seen", table="last_seen", upsert=True),
    "kafka": Job("foreign-kafka-sink", "departures", topic="departures"),
}


def faults(job: Job, few: int, many: int, points: list[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the faults in the order of their batches. Kinds take turns, so that no kind always follows the same other one."""
    kinds: list[tuple[str, str, int]] = [("crash", point, few) for point in _CRASHES if point != "after-sink-commit"]
    kinds += [("crash-at-frame", "in-tasks", few)]
    if job.table is not None:
        kinds += [("crash-at-frame", "before-sink-commit", few)]
        kinds += [("crash", "after-sink-commit", many), ("lost-request", "commit-lost", many)]
        kinds += [("lost-ack", "commit-unacknowledged", many)]
    else:
        kinds += [("crash", "after-sink-commit", few)]
        # The built-in sink has no commit: its points are the n-th Produce.
        for fault, point in (("lost-request", "commit-lost"), ("lost-ack", "commit-unacknowledged")):
            kinds.append((fault, point, few * _PARTITIONS))
    kinds = [kind for kind in kinds if points is None or kind[1] in points]
    batch = 0
    for turn in range(max((times for _, _, times in kinds), default=0)):
        for fault, point, times in kinds:
            if turn < times:
                batch += 1
                yield _fault(job, fault, point, batch, turn)


def _fault(job: Job, fault: str, point: str, batch: int, turn: int) -> dict[str, Any]:
    service = "kafka" if job.table is None else "postgres"
    spec: dict[str, Any] = {"fault": fault, "target": "driver", "at": {"batch": batch, "point": point}}
    if fault == "crash":
        return spec
    spec["service" if fault == "crash-at-frame" else "target"] = service
    if job.table is None:
        spec["frame"] = {"kind": "Produce", "topic": job.topic, "nth": turn % _PARTITIONS + 1}
    elif point == "in-tasks":
        spec["frame"] = {"kind": "statement", "sql": f"INSERT INTO {job.table}", "nth": 10 * turn + 1}
    else:
        spec["frame"] = {"transaction": job.table, "nth": turn % _PARTITIONS + 1}  # one COMMIT per partition
    return spec


class Watcher:
    """Handles the run's events in the threads that emit them, while the reported process waits, and records the state at once."""

    def __init__(self, job: Job) -> None:
        self.trials: dict[int, Trial] = {}
        self._job = job
        self._sink: Sink | None = None
        self._checkpoint = Path()
        self._now: Trial | None = None
        self._exited = False

    def started(self, stack: EmbeddedStack, run_dir: Path) -> None:
        self._sink = Sink(stack, table=self._job.table, topic=self._job.topic)
        self._checkpoint = run_dir / "checkpoint" / self._job.query

    def __call__(self, event: Event) -> None:
        hear = getattr(self, "_" + event.kind.replace(".", "_"), None)
        if hear is not None:
            hear(event.data)

    def final(self) -> state_left.Look:
        """Return the state after the run: of the checkpoint alone, because the services have been stopped."""
        return look(self._checkpoint, _Nothing())

    def _fault_fired(self, data: dict[str, Any]) -> None:
        """Begin a trial: the driver is dead, or waits in its own log write."""
        self._now = trial = Trial(data["index"], data["point"], data["fault"], data["batch"])
        self._exited = False
        self.trials[trial.index] = trial
        if trial.fault == "crash":
            self._look("killed")

    def _frame_stopped(self, data: dict[str, Any]) -> None:
        if self._now is None or self._sink is None:
            return
        if self._job.table is not None:
            self._now.xid = self._sink.xid_of(data["backend_pid"])
        else:
            self._now.correlation = data["correlation_id"]
            self._look("stopped", rows=False)

    def _frame_released(self, _data: dict[str, Any]) -> None:
        """Record the state right before the request is lost or delivered."""
        if self._job.topic is not None:
            self._look("released", rows=False)

    def _frame_answered(self, data: dict[str, Any]) -> None:
        """Record the state while the client, which has just been cut off, has had no time to ask again."""
        if self._now is not None and self._job.topic is not None:
            self._now.codes = data["answer"].get("error_codes")
            self._look("answered", rows=False)

    def _job_exited(self, _data: dict[str, Any]) -> None:
        self._exited = True

    def _job_started(self, _data: dict[str, Any]) -> None:
        """Record what the last driver left: it has ended, and the new one needs seconds until its first write."""
        now = self._now
        if now is None or self._sink is None or not self._exited or now.fault == "crash" or "left" in now.looks:
            return
        now.became = self._sink.became(now.xid) if now.xid is not None else None
        self._look("left")

    def _fault_hit(self, data: dict[str, Any], *, hit: bool = True) -> None:
        trial = self.trials[data["index"]]
        trial.reported_hit, trial.evidence = hit, data["evidence"]

    def _fault_missed(self, data: dict[str, Any]) -> None:
        if data["index"] in self.trials:
            self._fault_hit(data, hit=False)

    def _look(self, when: str, *, rows: bool = True) -> None:
        assert self._now is not None and self._sink is not None
        self._now.looks[when] = look(self._checkpoint, self._sink, rows=rows)


class _Nothing(Sink):
    def __init__(self) -> None:
        pass

    def rows(self) -> list[tuple[state_left.Flight, str]]:
        return []

    def records(self) -> int:
        return 0


def run(name: str, few: int, many: int, points: list[str] | None, runs: Path) -> list[dict[str, Any]]:
    """Run all trials of a job in one run; return a row for each."""
    job = JOBS[name]
    chaos = list(faults(job, few, many, points))
    if not chaos:
        return []
    scenario = runs / f"{job.scenario}.placed.yaml"
    _write(scenario, job, chaos)
    watcher = Watcher(job)

    class Observed(EmbeddedStack):
        """Gives the watcher the addresses of the services."""

        @classmethod
        def start(cls, spec: Any, owner: Any, run_dir: Path, *args: Any, **kwargs: Any) -> Any:
            stack = super().start(spec, owner, run_dir, *args, **kwargs)
            watcher.started(stack, run_dir)
            return stack

    with patch.object(command, "EmbeddedStack", Observed):
        result = run_loaded(load_file(scenario), runs_dir=runs, listeners=[watcher, _narrate])
    truth, last = Truth(result.run_dir, upsert=job.upsert), watcher.final()
    words = "\n".join(path.read_text(errors="replace") for path in (result.run_dir / "logs").glob("driver-*.log"))
    rows = []
    for index, spec in enumerate(chaos):
        trial = watcher.trials.get(index)
        point, fault = spec["at"]["point"], spec["fault"]
        row = {"job": name, "point": point, "fault": fault, "batch": spec["at"]["batch"], "frame": spec.get("frame")}
        why = "it never fired" if trial is None else state_left.why_not(trial, truth, last, words)
        row |= {"shown": why is None, "why_not": why, "said": trial is not None and trial.reported_hit}
        rows.append(row | {"evidence": trial.evidence if trial is not None else []})
    return rows


def _write(path: Path, job: Job, chaos: list[dict[str, Any]]) -> None:
    """Write the shipped scenario with these faults, and one chunk of input for each of them."""
    document = YAML(typ="safe").load(resolved(find(job.scenario)))
    chunks = len(chaos) + 2
    rows = _ROWS_A_BATCH if job.topic is None else _ROWS_OF_KAFKA
    document["input"][0] |= {"chunks": chunks, "rows": chunks * rows, "partitions": _PARTITIONS}
    document["chaos"] = chaos
    # These jobs write duplicates when they are hit; here only the hits count.
    document["claim"] = {"delivery": "at-least-once"}
    document["limits"] = {"deadline_s": 14_400, "stuck_s": 600}
    document.pop("expect", None)
    path.write_text(json.dumps(document))  # JSON is YAML


def _narrate(event: Event) -> None:
    if event.kind in ("fault.hit", "fault.missed", "warning"):
        shown = {k: v for k, v in event.data.items() if k in ("fault", "batch", "point", "message")}
        missed = f" {event.data['evidence']}" if event.kind == "fault.missed" else ""
        print(f"{event.at:8.1f} {event.kind} {shown}{missed}", file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a line for each job, point and kind."""
    trials = Counter((r["job"], r["point"], r["fault"]) for r in rows)
    shown = Counter((r["job"], r["point"], r["fault"]) for r in rows if r["shown"])
    reported = Counter((r["job"], r["point"], r["fault"]) for r in rows if r["said"])
    lines = [
        "| job | point | fault | trials | shown by the state left | hit, as the harness reports |",
        "| --- " * 6 + "|",
    ]
    lines += [
        f"| {job} | `{point}` | {fault} | {count} | {shown[job, point, fault]} | {reported[job, point, fault]} |"
        for (job, point, fault), count in sorted(trials.items())
    ]
    return "\n".join(lines)


def main() -> int:
    args = parser.parse_args()
    print(machine(), flush=True)
    rows: list[dict[str, Any]] = []
    if args.json is not None and args.json.exists():
        rows = json.loads(args.json.read_text())
    known = len(rows)
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch:
        runs = args.runs or Path(scratch)
        runs.mkdir(parents=True, exist_ok=True)
        for name in args.jobs:
            rows += run(name, args.few, args.many, args.points, runs)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    if len(rows) == known:
        print("no trial was made: nothing is shown", file=sys.stderr)
        return 1
    wrong = [row for row in rows if not (row["shown"] and row["said"])]
    for row in wrong:
        print(
            f"  {row['job']}, batch {row['batch']}, {row['fault']} at {row['point']}: {row['why_not']}; {row['evidence']}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
