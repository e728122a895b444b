"""The cells of a qualification: every point x fault kind, the result of each, and the order in which they are tried."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, ValidationError, with_config

from onceproof.faults.contract import Fault, faults
from onceproof.faults.job import Job, OffersCells, OffersMoreCells, Try
from onceproof.judge.findings import Outcome
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.checks.external import lacking
from onceproof.stack.external.profile import StackProfile

#: A batch that every qualification reaches; used only to ask a kind of fault about a position.
SOME_BATCH = 2
_ROOM = 4
"""Chunks after that batch: some kinds need a batch or two more."""

#: Kinds that share the column of another kind in the matrix.
_COLUMNS = {"crash-at-frame": "crash"}


class CellState(StrEnum):
    """How far the work on a cell has come."""

    PENDING = "pending"
    EXERCISED = "exercised"
    APPROXIMATE = "approximate"
    NOT_REACHED = "not reached"
    N_A = "n/a"


@dataclass(frozen=True)
class Found:
    """What violates the claim in a run, or in a part of it."""

    anomalies: Mapping[str, int]
    outputs: tuple[str, ...]
    witnesses: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.anomalies)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Shared:
    """What a shared run showed of a cell without showing which of its cells caused it. Round-trips through JSON."""

    run: str
    """The run directory, below that of the qualification."""
    why: str
    hit: bool
    """Whether the cell's own fault hit in that run."""
    others: tuple[str, ...] = ()
    """Titles of the other cells that may have caused it."""
    anomalies: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    witnesses: Mapping[str, str] = field(default_factory=dict)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Cell:
    """One way to place one fault at one point, and the result. Round-trips through JSON."""

    name: str
    """Unique, and a file name: ``crash-driver-after-sink-commit``."""
    kind: str
    point: Point
    settings: Mapping[str, Any] = field(default_factory=dict)
    query: str | None = None
    words: str = ""
    approximate: bool = False
    """Whether the fault cannot be placed exactly; known before any run."""
    state: CellState = CellState.PENDING
    why: str | None = None
    """The reason for ``n/a`` or ``not reached``; for other states a reservation, if there is one."""
    of_tool: bool = False
    """Whether it is ``n/a`` because of what onceproof can place, not because of the job."""
    verdict: Outcome | None = None
    anomalies: Mapping[str, int] = field(default_factory=dict)
    """Anomaly -> number of rows or records that the claim does not allow."""
    outputs: tuple[str, ...] = ()
    """The outputs in which the anomalies were found."""
    witnesses: Mapping[str, str] = field(default_factory=dict)
    """Anomaly -> the first row that shows it, in one line."""
    evidence: tuple[str, ...] = ()
    alone: bool = False
    """Whether it needs a separate run, or had one, because a shared run did not decide its verdict."""
    empty: tuple[int, ...] = ()
    """Batches at which its fault struck when nothing was in danger. The cell is not tried there again."""
    shared: Shared | None = None
    """What a shared run showed, until a run of its own decides."""
    runs: tuple[str, ...] = ()
    """Run directories, below that of the qualification: one for each run that was finished. That of the last one comes last."""
    failed: int = 0
    """How many repetitions of the cell the harness could not finish."""
    hits: tuple[int, ...] = ()
    """The batches at which its fault hit and the run showed a verdict on the cell."""

    @property
    def target(self) -> str:
        return str(self.settings.get("target", ""))

    @property
    def column(self) -> str:
        """The column of the matrix: kinds that differ only in how they are placed share one."""
        return _COLUMNS.get(self.kind, self.kind)

    @property
    def reachable(self) -> bool:
        return self.state is not CellState.N_A

    @property
    def exercised(self) -> bool:
        return self.state in (CellState.EXERCISED, CellState.APPROXIMATE)

    @property
    def together(self) -> bool:
        """Whether it is violated in a shared run and not separated from the other cells of that run."""
        return self.shared is not None and self.verdict is Outcome.VIOLATED

    @property
    def word(self) -> str:
        """``violated``, with marks: ``~`` placed approximately, ``*`` not separated from other cells, ``?`` not proven to have hit."""
        if self.verdict is None or not self.reachable:
            return self.state.value
        near = "~" if self.state is CellState.APPROXIMATE else ""
        return f"{near}{self.verdict}{'*' if self.together else ''}{'' if self.exercised else '?'}"

    @property
    def tries(self) -> int:
        """How many runs tried the cell."""
        return len(self.runs) + self.failed

    @property
    def counted(self) -> str:
        """``2/3``: in two of three runs its fault hit and showed a verdict; empty if none did."""
        return f"{len(self.hits)}/{self.tries}" if self.hits else ""

    def title(self) -> str:
        """``lost-ack postgres at commit-unacknowledged (COMMIT of departures)``"""
        words = f" ({self.words})" if self.words else ""
        return f"{' '.join(filter(None, [self.kind, self.target]))} at {self.point}{words}"

    def fault(self, batch: int) -> dict[str, Any]:
        """Return the fault as an item of a scenario's ``chaos:``."""
        at: dict[str, Any] = {"batch": batch, "point": str(self.point)}
        if self.query is not None:
            at["query"] = self.query
        return {"fault": self.kind, **self.settings, "at": at}

    def with_found(self, found: Found | Shared, **changes: Any) -> Cell:
        """Return the cell with what was found, and with ``changes``."""
        return replace(self, anomalies=found.anomalies, outputs=found.outputs, witnesses=found.witnesses, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


#: The order of trying. First the cells that show most: a sink that forgets what it committed, one that misjudges a commit, one
#: that hides errors. Then the rest of the matrix, then zombies and whatever else a kind offers.
_ORDER: tuple[tuple[str, Point | None], ...] = (
    ("crash", Point.AFTER_SINK_COMMIT),
    ("lost-ack", Point.COMMIT_UNACKNOWLEDGED),
    ("lost-request", Point.COMMIT_LOST),
    ("reject", None),
    ("crash-at-frame", Point.BETWEEN_SINKS),
    ("crash", Point.STATE_PARTLY_COMMITTED),
    ("crash-at-frame", Point.IN_TASKS),
    ("crash-at-frame", Point.BEFORE_SINK_COMMIT),
    ("lost-ack", None),
    ("lost-request", None),
    ("crash", Point.BEFORE_SINK_COMMIT),
    ("crash", Point.AFTER_OFFSET_LOG),
    ("crash", Point.AFTER_COMMIT_LOG),
    ("crash", None),
)


def priority(cell: Cell) -> int:
    """Return the cell's place in the order of trying; 0 comes first."""
    places = [i for i, (kind, point) in enumerate(_ORDER) if kind == cell.kind and point in (None, cell.point)]
    return min(places, default=len(_ORDER))


def kinds() -> list[str]:
    """Return the kinds of faults that offer cells: those in `_ORDER` first, then those that are always tried (zombies), then those
    that ``--kinds`` must name."""
    first = dict.fromkeys(kind for kind, _ in _ORDER)
    always, named = (
        [name for name in faults.names() if any(isinstance(each, offers) for each in faults.all(name))]
        for offers in (OffersCells, OffersMoreCells)
    )
    return list(dict.fromkeys([*(name for name in first if name in always), *always, *named]))


def unnamed_kinds() -> list[str]:
    """Return the kinds that are tried if ``--kinds`` names none."""
    return [kind for kind in kinds() if any(isinstance(each, OffersCells) for each in faults.all(kind))]


def _tries(fault: type[Fault], job: Job, named: bool) -> Iterator[Try]:
    """The cells that a class of a kind offers; ``named``: whether ``--kinds`` names the kind."""
    if isinstance(fault, OffersCells):
        yield from fault.tries(job)
    if named and isinstance(fault, OffersMoreCells):
        yield from fault.more_tries(job)


def cells(job: Job, scenario: Scenario, profile: StackProfile | None = None, named: Collection[str] = ()) -> list[Cell]:
    """Return every cell of the matrix for this job in the order of trying; those that are ``n/a``, with the reason, come last.

    ``profile``: the stack of its runs; None: services of their own. ``named``: the kinds that ``--kinds`` names, without any
    other; none: those that need not be named.
    """
    room = [spec.model_copy(update={"chunks": max(spec.chunks, SOME_BATCH + _ROOM)}) for spec in scenario.input]
    roomy = scenario.model_copy(update={"input": room, "chaos": []})
    found: list[Cell] = []
    chosen = [kind for kind in kinds() if kind in named or _COLUMNS.get(kind) in named]
    for kind in chosen or unnamed_kinds():
        for fault in faults.all(kind):
            found += [_cell(kind, one, roomy, fault, profile) for one in _tries(fault, job, kind in named)]
    for column in dict.fromkeys(cell.column for cell in found):
        offered = {cell.point for cell in found if cell.column == column}
        elsewhere = f"{column} can be placed only at {', '.join(p for p in Point if p in offered) or 'no point'}"
        found += [
            Cell(f"{column}-{point}", column, point, state=CellState.N_A, why=elsewhere, of_tool=True)
            for point in Point
            if point not in offered
        ]
    return sorted(_with_unique_names(found), key=lambda cell: (not cell.reachable, priority(cell)))


def _cell(kind: str, one: Try, scenario: Scenario, fault: type[Fault], profile: StackProfile | None) -> Cell:
    parts = [kind, str(one.settings.get("target", "")), one.point, one.query or ""]
    name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-")
    cell = Cell(name, kind, one.point, dict(one.settings), one.query, one.words, alone=one.alone)
    if one.n_a is not None:
        return replace(cell, state=CellState.N_A, why=one.n_a, of_tool=one.of_tool)
    if one.gap is not None:
        return replace(cell, state=CellState.NOT_REACHED, why=one.gap)
    try:
        spec = fault.Spec.model_validate(cell.fault(SOME_BATCH))
    except ValidationError as wrong:  # the kind offers what its own spec refuses: report it
        first = wrong.errors()[0]
        why = f"{kind} refuses its own offer: {first['loc']}: {first['msg']}"
        return replace(cell, state=CellState.N_A, why=why, of_tool=True)
    if (absent := lacking(spec, scenario, profile)) is not None:
        return replace(cell, state=CellState.N_A, why=f"it needs control of {absent.what}", of_tool=True)
    problems = fault.problems(spec, scenario)
    if problems:
        return replace(cell, state=CellState.N_A, why=problems[0].message, of_tool=True)
    placed = fault.placement(spec, scenario)
    if placed.exactness == "n/a":
        return replace(cell, state=CellState.N_A, why=placed.why, of_tool=True)
    return replace(cell, approximate=placed.exactness == "approximate")


def _with_unique_names(found: Iterable[Cell]) -> list[Cell]:
    """Number the cells of one kind at one point (with two sinks, for example), so that names are unique."""
    count: dict[str, int] = {}
    apart = []
    for cell in found:
        count[cell.name] = count.get(cell.name, 0) + 1
        apart.append(cell if count[cell.name] == 1 else replace(cell, name=f"{cell.name}-{count[cell.name]}"))
    return apart


def outcome(found: Iterable[Cell]) -> Outcome:
    """Return the outcome of the whole matrix: violated if any cell is; held only if every reachable cell was exercised and held."""
    reachable = [cell for cell in found if cell.reachable]
    if any(cell.verdict is Outcome.VIOLATED for cell in reachable):
        return Outcome.VIOLATED
    if reachable and all(cell.exercised and cell.verdict is Outcome.HELD for cell in reachable):
        return Outcome.HELD
    return Outcome.INCONCLUSIVE
