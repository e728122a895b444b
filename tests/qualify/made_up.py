"""Made-up runs for tests of a qualification: nothing is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onceproof.base.timeline import Event
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.scenario_files.load import LoadedScenario
from onceproof.scenario_files.shipped import find

PATH = find("foreign-psycopg-upsert")


class Quiet:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def starts(self) -> None: ...

    def begins(self, what: str) -> None:
        self.lines.append(what)

    def event(self, event: Event) -> None: ...

    def print(self, line: str) -> None:
        self.lines.append(line)


class MadeUpRuns:
    """Replaces `onceproof.run.run`. By default each fault hits; a run takes ``seconds``, and 15 s more for each fault."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 20.0
        self.files: list[Path] = []
        self.first = Outcome.HELD
        self.missing: set[str] = set()
        self.missing_alone: set[str] = set()
        self.missing_together: set[str] = set()
        self.violated: set[int] = set()
        """Numbers of the runs in which effects were lost, in an unknown batch."""
        self.stuck: set[int] = set()
        self.cut: set[int] = set()
        """Numbers of the runs that ended before they had drained, with inconclusive batches."""
        self.doubts: dict[int, tuple[str, ...]] = {}
        """Number of a run in which a fault missed -> doubts about the whole run."""
        self.slow: dict[int, float] = {}
        self.raising: dict[int, Exception] = {}

    def run(self, loaded: LoadedScenario, *, runs_dir: Path, listeners: Any, survey: bool, shared: object) -> Any:
        self.files.append(loaded.path)
        scenario = loaded.scenario
        self.now += self.seconds + 15 * len(scenario.chaos) + self.slow.get(len(self.files), 0)
        if failure := self.raising.pop(len(self.files), None):
            raise failure
        run_dir = runs_dir / f"{scenario.name}-{len(self.files)}"
        run_dir.mkdir()
        timeline: list[dict[str, Any]] = []
        if survey:
            timeline = [
                {"at": 1.0, "kind": "batch.planned", "query": "last_seen", "batch": 1},
                {
                    "at": 1.5,
                    "kind": "frame.seen",
                    "service": "postgres",
                    "frame": "commit",
                    "writes": ["INSERT INTO last_seen"],
                },
                {"at": 2.0, "kind": "batch.committed", "query": "last_seen", "batch": 1, "records": 5},
            ]
        timeline += [{"at": 3.0, "kind": "fault.fired", "index": n, "instrument": "checkpoint"} for n in range(9)]
        (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timeline))
        verdict = self._verdict(scenario, survey)
        write_verdict(run_dir, verdict)
        drained = len(self.files) not in self.stuck | self.cut
        (run_dir / "run.json").write_text(json.dumps({"scenario": {}, "drained": drained}))
        return SimpleNamespace(verdict=verdict, run_dir=run_dir)

    def _verdict(self, scenario: Any, survey: bool) -> Verdict:
        faults = tuple(
            FaultReport(
                f.fault,
                f.target,
                "last_seen",
                f.at.batch,
                f.at.point,
                True,
                True,
                (
                    f"{f.fault} {f.at.point}" not in self.missing
                    and (len(scenario.chaos) > 1 or f"{f.fault} {f.at.point}" not in self.missing_alone)
                    and (len(scenario.chaos) == 1 or f"{f.fault} {f.at.point}" not in self.missing_together)
                )
                or len(self.files) in self.stuck,
            )
            for f in scenario.chaos
        )
        batches = tuple(BatchReport("last_seen", n, 0, 0, 9, (), Outcome.HELD) for n in range(30))
        outcome = self.first if survey else Outcome.HELD if all(f.hit for f in faults) else Outcome.INCONCLUSIVE
        findings: tuple[Finding, ...] = ()
        if len(self.files) in self.stuck and len(faults) == 1:
            outcome = Outcome.INCONCLUSIVE
        if len(self.files) in self.cut:
            batches = tuple(replace(batch, verdict=Outcome.INCONCLUSIVE) for batch in batches)
            outcome = Outcome.INCONCLUSIVE
        if len(self.files) in self.violated:
            findings = (Finding("lost-write", "last_seen", 3, "three", source="unknown"),)
            batches = tuple(replace(batch, verdict=Outcome.INCONCLUSIVE) for batch in batches)
            outcome = Outcome.VIOLATED
        counts = {f"expected.{output}": 9 for output in scenario.outputs}
        missed = tuple(f"fault {f.fault} {f.target} fired but did not hit" for f in faults if not f.hit)
        return Verdict(
            scenario.name,
            outcome,
            StatedClaim(),
            (*self.doubts.get(len(self.files), ()), *missed) or ("a reason",),
            findings,
            faults=faults,
            counts=counts,
            batches=batches,
        )
