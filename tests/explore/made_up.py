"""Made-up runs and a made-up warm tier for tests of an exploration: nothing is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onceproof.explore.outcome import Judged
from onceproof.explore.schedules import ORDER
from onceproof.history.memory import MemoryTables
from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.scenario_files.load import LoadedScenario
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed

Strikes = tuple[Strike, ...]


class Quiet:
    """A `onceproof.explore.session.Listener` that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begins(self, what: str) -> None:
        self.lines.append(what)

    def counts(self, *_: object) -> None: ...

    def print(self, line: str) -> None:
        self.lines.append(line)


class MadeUpRuns:
    """Replaces `onceproof.run.run`. A run takes ``seconds``; it holds unless its number, from 1, says otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 20.0
        self.faults: list[list[dict[str, Any]]] = []
        """For each run, its faults as documents."""
        self.events: list[dict[str, Any]] = []
        """What a survey sees, in addition to a batch."""
        self.violated: set[int] = set()
        self.inconclusive: set[int] = set()
        self.raising: dict[int, BaseException] = {}

    def run(self, loaded: LoadedScenario, *, runs_dir: Path, survey: bool = False) -> Any:
        self.faults.append([fault.model_dump(mode="json", exclude_defaults=True) for fault in loaded.scenario.chaos])
        number = len(self.faults)
        self.now += self.seconds
        if failure := self.raising.pop(number, None):
            raise failure
        run_dir = runs_dir / f"run-{number}"
        run_dir.mkdir()
        batch = {"query": "q", "batch": 1}
        events = [
            {"at": 1.0, "kind": "batch.planned", **batch},
            *self.events,
            {"at": 2.0, "kind": "batch.committed", **batch, "records": 5, "wrote": True},
        ]
        (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events if survey))
        outcome = Outcome.HELD
        findings: tuple[Finding, ...] = ()
        if number in self.violated:
            outcome, findings = Outcome.VIOLATED, (Finding("duplicate", "o", 3, "three", source="batch replay"),)
        elif number in self.inconclusive:
            outcome = Outcome.INCONCLUSIVE
        faults = tuple(
            FaultReport(f.fault, f.target, "q", f.at.batch, f.at.point, True, True, True) for f in loaded.scenario.chaos
        )
        verdict = Verdict("s", outcome, StatedClaim(), ("a reason",), findings, faults)
        return SimpleNamespace(verdict=verdict, run_dir=run_dir)


class MadeUpTier:
    """Replaces `onceproof.warm.tier.WarmTier`: each schedule reaches each point of the first three batches, and ends."""

    def __init__(self) -> None:
        self.instruments = {"psycopg"}
        self.points = ORDER
        self.executed: list[Strikes] = []
        self.changed: dict[Strikes, dict[str, Any]] = {}
        """Schedule -> other fields of its execution."""
        self.violated: set[Strikes] = set()
        self.raising: BaseException | None = None
        """Raised instead of the first schedule with faults."""

    def __call__(self, *_: object, **__: object) -> MadeUpTier:
        return self

    def __enter__(self) -> MadeUpTier:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, schedules: Iterable[Sequence[Strike]]) -> Iterator[Executed]:
        for strikes in map(tuple, schedules):
            if strikes and self.raising is not None:
                raise self.raising
            self.executed.append(strikes)
            known = {
                "number": len(self.executed),
                "strikes": strikes,
                "fired": tuple(range(len(strikes))),
                "starts": 1 + len(strikes),
                "errors": (),
                "ended": True,
                "tables": MemoryTables(),
                "outputs": {},
                "wall_start": 0.0,
                "seconds": 0.1,
                "query": "q",
                "points": tuple((float(b), str(point), b, 0) for b in (1, 2, 3) for point in self.points),
                "instruments": frozenset(self.instruments),
            }
            yield Executed(**{**known, **self.changed.get(strikes, {})})

    def judge(self, *_: object) -> Any:
        """Replaces `onceproof.explore.outcome.Judge`."""

        def verdict(executed: Executed) -> Judged:
            if executed.strikes in self.violated:
                return Judged(Outcome.VIOLATED, {"duplicate": 3}, "three rows too many", "warm/0001")
            return Judged(Outcome.HELD, run="warm/0002")

        return SimpleNamespace(judge=verdict, distinct=2)


Work = Callable[..., Any]
