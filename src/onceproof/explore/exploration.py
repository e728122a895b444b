"""The state of an exploration, stored after each step, so that it can be continued.

::

    exploration.json   what is explored, and how it ended
    drawn.json         random schedules, as far as they were drawn
    results.jsonl      one line for each schedule that was executed
    confirmed.jsonl    one line for each schedule that was repeated with real kills
    warm/              logs of the services and of the session, and a run directory for each distinct outcome
    runs/              a run directory for each ordinary run
    lock               locked while a command works in the directory; empty
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, with_config

from onceproof.base.errors import UsageError
from onceproof.base.paths import absolute
from onceproof.explore.schedules import Drawn, Place
from onceproof.history import run_files
from onceproof.history.run_directory import run_dir_problem
from onceproof.scenario.points import Point

FILE = "exploration.json"
VERSION = 2
_RESULTS, _CONFIRMED, _DRAWN = "results.jsonl", "confirmed.jsonl", "drawn.json"

T = TypeVar("T")
Faults = tuple[Place, ...]


class State(StrEnum):
    """What is known of one schedule."""

    HELD = "held"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_EXERCISED = "not exercised"
    N_A = "n/a"
    """This job does not reach the point in this attempt: the attempt went on to its end without it."""
    NOT_EXECUTED = "not executed"
    """The harness could not execute it, or not to its end. It is tried again when the exploration is continued."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Verdicts:
    """What an execution of a schedule showed."""

    verdict: str
    """The verdict of its judge; ``error`` if it was not executed to its end."""
    anomalies: Mapping[str, int] = field(default_factory=dict)
    """Anomaly -> rows or records that violate the claim."""
    why: str = ""
    run: str | None = None
    """Its run directory."""
    hit: bool = True
    """Whether every fault hit."""
    absent: bool = False
    """Whether the attempt at which the next fault was due went on to its end without that point."""

    @property
    def state(self) -> State:
        if self.verdict == "violated":  # an ordinary run shows this also if a fault missed its point
            return State.VIOLATED
        if self.verdict == "error":
            return State.NOT_EXECUTED
        if not self.hit:
            return State.N_A if self.absent else State.NOT_EXERCISED
        return State(self.verdict) if self.verdict in ("held", "violated") else State.INCONCLUSIVE

    def same_as(self, other: Verdicts) -> bool:
        return self.state is other.state and self.anomalies.keys() == other.anomalies.keys()


@dataclass(frozen=True)
class Confirmation:
    """One schedule in both tiers."""

    faults: Faults
    fast: Verdicts
    real: Verdicts

    @property
    def decided(self) -> bool:
        """Whether the ordinary run can agree or disagree: its faults hit, and it has a verdict."""
        return self.real.state in (State.HELD, State.VIOLATED)

    @property
    def agrees(self) -> bool:
        return self.decided and self.real.same_as(self.fast)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Plan:
    """What is explored."""

    scenario: str
    scenario_path: str
    digest: str
    """SHA-256 of the scenario's file when the exploration began."""
    mode: str
    """``singles``, ``pairs`` or ``random``."""
    number: int
    """How many random schedules are wanted."""
    seed: int
    batch_numbers: tuple[int, ...]
    rows_per_batch: int
    tier: str
    """``warm`` or ``real``."""
    tier_reason: str = ""
    """Why not the warm tier."""
    points: tuple[Point, ...] = ()
    not_explored: Mapping[str, str] = field(default_factory=dict)
    """Point or kind of fault -> why it is not explored."""
    before_commit: Mapping[str, Any] | None = None
    """The fault by which a run crashes the driver before its sink's commit, without ``at``; None: not known yet, or none can."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> SHA-256 of the other files that the results depend on (`onceproof.explore.sources`), when the exploration began."""
    onceproof: str = ""
    """The version of onceproof that began it."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Plan:
        """Raises `ValueError`."""
        return _PLAN.validate_python({name: value for name, value in stored.items() if name != "version"})


_VERDICTS, _PLAN, _PLACES = TypeAdapter(Verdicts), TypeAdapter(Plan), TypeAdapter(tuple[tuple[int, Point], ...])


class Directory:
    """The folder of one exploration."""

    def __init__(self, path: Path) -> None:
        self.path = absolute(path)
        self.warm = self.path / "warm"
        self.runs = self.path / "runs"

    @classmethod
    def create(cls, runs_dir: Path, scenario: str) -> Directory:
        """Create a folder below ``runs_dir``. Raises `EnvironmentProblem` if it cannot be written."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        made = cls(runs_dir / f"explore-{scenario}-{stamp}-{secrets.token_hex(2)}")
        try:
            made.runs.mkdir(parents=True)
        except OSError as refused:
            raise run_dir_problem(refused, runs_dir) from refused
        return made

    @classmethod
    def open(cls, path: Path) -> tuple[Directory, Plan]:
        """Open the folder of an exploration to continue it. Raises `UsageError` if it holds none that can be read."""
        hint = "to begin a new one: onceproof explore SCENARIO"
        try:
            stored = json.loads(run_files.read_text(path / FILE))
            if stored.get("version") != VERSION:
                raise ValueError(f"its version is {stored.get('version')}, and this onceproof reads {VERSION}")
            return cls(path), Plan.from_json(stored)
        except FileNotFoundError:
            raise UsageError(
                f"{str(path)!r} is not the directory of an exploration: it has no {FILE}", hint=hint
            ) from None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as damaged:
            raise UsageError(f"{path / FILE} cannot be read: {damaged}", hint=hint) from None

    def save(self, plan: Plan) -> None:
        """Replace the plan in one step."""
        self._replace(FILE, json.dumps({"version": VERSION, **asdict(plan)}, indent=2) + "\n")

    def add_result(self, faults: Faults, found: Verdicts) -> None:
        self._append(_RESULTS, {"faults": _stored(faults), **asdict(found)})

    def add_confirmation(self, one: Confirmation) -> None:
        row = {"faults": _stored(one.faults), "fast": asdict(one.fast), "real": asdict(one.real)}
        self._append(_CONFIRMED, row)

    def results(self) -> dict[Faults, Verdicts]:
        """What was found until now, without schedules that could not be executed. Raises `UsageError` for a damaged file."""
        found: dict[Faults, Verdicts] = {}
        for faults, one in self._rows(_RESULTS, lambda row: (_faults(row.pop("faults")), _verdicts(row))):
            if faults not in found or found[faults].state is not State.VIOLATED:  # a violation is never retried away
                found[faults] = one
        return {faults: one for faults, one in found.items() if one.state is not State.NOT_EXECUTED}

    def drawn(self) -> Drawn:
        """The random schedules that were drawn until now. Raises `UsageError` if they cannot be read."""
        path = self.path / _DRAWN
        try:
            stored = json.loads(run_files.read_text(path))
            return Drawn(tuple(_faults(one) for one in stored["schedules"]), stored["portions"], stored["idle"])
        except FileNotFoundError:
            return Drawn()
        except (OSError, ValueError, KeyError, TypeError) as damaged:
            hint = "begin a new exploration: onceproof explore SCENARIO"
            raise UsageError(f"{path} cannot be read: {damaged}", hint=hint) from None

    def save_drawn(self, drawn: Drawn) -> None:
        """Replace the drawn schedules in one step."""
        stored = {"portions": drawn.portions, "idle": drawn.idle, "schedules": [_stored(one) for one in drawn.faults]}
        self._replace(_DRAWN, json.dumps(stored) + "\n")

    def set_aside_results(self) -> None:
        """Keep the results of a tier that could not go on, but no longer count them."""
        path = self.path / _RESULTS
        if path.exists():
            path.replace(self.path / f"abandoned-{_RESULTS}")

    def confirmations(self) -> list[Confirmation]:
        """Raises `UsageError` for a damaged file."""

        def parsed(row: Any) -> Confirmation:
            return Confirmation(_faults(row["faults"]), _verdicts(row["fast"]), _verdicts(row["real"]))

        return list(self._rows(_CONFIRMED, parsed))

    def _replace(self, name: str, text: str) -> None:
        try:
            run_files.write_text(self.path / name, text)
        except OSError as refused:
            raise run_dir_problem(refused, self.path) from refused

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                # A new line before it, too: a command that was killed may have left half a line.
                file.write("\n" + json.dumps(row) + "\n")
        except OSError as refused:
            raise run_dir_problem(refused, self.path) from refused

    def _rows(self, name: str, parse: Callable[[Any], T]) -> Iterator[T]:
        path = self.path / name
        if not path.exists():
            return
        for number, line in enumerate(run_files.read_text(path).splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # half a line, because the command was killed: that schedule is executed again
            try:
                yield parse(row)
            except (ValueError, KeyError, TypeError, AttributeError) as damaged:
                why = f"{type(damaged).__name__}: {str(damaged).partition(chr(10))[0]}"
                hint = "restore the file, or begin a new exploration: onceproof explore SCENARIO"
                raise UsageError(f"line {number} of {path} is damaged: {why}", hint=hint) from None


def _stored(faults: Sequence[Place]) -> list[list[Any]]:
    return [[place.batch, str(place.point)] for place in faults]


def _faults(stored: Any) -> Faults:
    return tuple(Place(batch, point) for batch, point in _PLACES.validate_python(stored))


def _verdicts(stored: Any) -> Verdicts:
    return _VERDICTS.validate_python(stored)
